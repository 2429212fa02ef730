// Tests speculated tokens that are rejected: a step computes their rows, and then the sequence is
// rewound. Later logits and complete chunks must have the same bits as without the rejected rows.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <vector>

#include "tests/support/tiny_checkpoint.h"
#include "worker/model/invariant/invariant_gemma.h"

namespace hearth {
namespace {

// the last chunk has one token less than kChunk
constexpr int kChunk = 16, kPrompt = 21, kTokens = 159;
constexpr uint64_t kArenaBytes = uint64_t{1} << 30;

KvQuantization QuantizationOf(const std::string& name) {
  uint32_t residual = 0;
  if (name != "quantized") return {};
  return *ParseKvQuantization("bits=4,group=16,residual=16", &residual);
}

class RewoundRowsTest : public testing::TestWithParam<const char*> {
 protected:
  RewoundRowsTest() {
    TinyGeometry geometry;
    geometry.layer_types = "lgl";
    geometry.window = 24;
    static const std::string* const dir = new std::string(NewTinyCheckpoint(geometry, "forgotten"));
    auto gemma = InvariantGemma::Load(*dir, {/*threads=*/2, kChunk, kArenaBytes});
    EXPECT_TRUE(gemma.ok()) << gemma.status();
    gemma_ = *std::move(gemma);
    std::mt19937 random(11);
    for (int i = 0; i < kTokens; ++i) text_.push_back(3 + static_cast<int32_t>(random() % 150));
  }

  InvariantGemma::Kv Prefilled() const {
    InvariantGemma::Kv kv = gemma_->NewKv(QuantizationOf(GetParam()));
    if (std::string(GetParam()) == "static") kv.ReserveBlocks(11, 5);
    std::vector<float> logits;
    EXPECT_TRUE(gemma_->Step(&kv, {text_.data(), kPrompt}, 1, &logits).ok());
    return kv;
  }
  static void Forget(int length, InvariantGemma::Kv* kv) {
    kv->Rewind(length);
    kv->ReleaseRoom();
  }
  // Returns the logits for the text after the prompt, computed token by token.
  std::vector<float> Single(InvariantGemma::Kv* kv) const {
    std::vector<float> all, logits;
    for (int at = kPrompt; at < kTokens; ++at) {
      EXPECT_TRUE(gemma_->Step(kv, {text_.data() + at, 1}, 1, &logits).ok());
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }
  // Returns the logits for the text after the prompt, computed in steps of several tokens; some
  // tokens are wrong guesses, which are rewound after the step.
  std::vector<float> Guessing(uint64_t seed, InvariantGemma::Kv* kv) const {
    const int vocabulary = gemma_->config().vocab_size;
    std::mt19937 random(seed);
    std::vector<float> all, logits;
    for (int at = kPrompt; at < kTokens; at = kv->length()) {
      const int right = std::min(1 + static_cast<int>(random() % 4), kTokens - at);
      std::vector<int32_t> step(text_.begin() + at, text_.begin() + at + right);
      for (size_t wrong = random() % 6; wrong > 0; --wrong) {
        step.push_back(3 + static_cast<int32_t>(random() % 150));
      }
      EXPECT_TRUE(gemma_->Step(kv, step, static_cast<int>(step.size()), &logits).ok());
      all.insert(all.end(), logits.begin(), logits.begin() + ptrdiff_t{right} * vocabulary);
      Forget(at + right, kv);
      EXPECT_EQ(kv->length(), at + right);
    }
    return all;
  }
  static std::vector<std::byte> BytesOf(const InvariantGemma::Kv& kv, LayerGroup group, int split) {
    const ObjectId id{static_cast<uint32_t>(split * kChunk), kChunk, group};
    const std::shared_ptr<std::byte[]> shared = kv.Share(id);
    if (shared == nullptr) return {};
    const size_t bytes = kv.layout().ObjectBytes(kChunk, group);
    return {shared.get(), shared.get() + bytes};
  }

  std::unique_ptr<InvariantGemma> gemma_;
  std::vector<int32_t> text_;
};

TEST_P(RewoundRowsTest, RejectedTokensKeepLaterLogitBits) {
  InvariantGemma::Kv single = Prefilled();
  const std::vector<float> want = Single(&single);
  for (const uint64_t seed : {1, 2, 3, 4, 5}) {
    InvariantGemma::Kv kv = Prefilled();
    EXPECT_TRUE(Guessing(seed, &kv) == want) << seed;
    EXPECT_EQ(kv.held_bytes(0), single.held_bytes(0));
    int whole = 0;
    for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
      for (int split = 0; split * kChunk < kTokens; ++split) {
        const std::vector<std::byte> bytes = BytesOf(kv, group, split);
        EXPECT_TRUE(bytes == BytesOf(single, group, split)) << split;
        if (!bytes.empty()) ++whole;
      }
    }
    EXPECT_GE(whole, 10);
  }
}

TEST_P(RewoundRowsTest, RejectedTokensReleaseTheirMemory) {
  uint64_t used = 0;
  {
    InvariantGemma::Kv single = Prefilled();
    Single(&single);
    used = gemma_->kv_blocks().used_bytes();
  }
  for (const uint64_t seed : {6, 7, 8, 9}) {
    InvariantGemma::Kv kv = Prefilled();
    Guessing(seed, &kv);
    EXPECT_EQ(gemma_->kv_blocks().used_bytes(), used);
  }
}

// A chunk that wrong guesses complete is not shared after the rewind.
TEST_P(RewoundRowsTest, RejectedChunkIsNotShared) {
  InvariantGemma::Kv kv = Prefilled();
  std::vector<float> logits;
  const std::vector<int32_t> wrong(kChunk, 5);
  ASSERT_TRUE(gemma_->Step(&kv, wrong, 1, &logits).ok());
  EXPECT_FALSE(BytesOf(kv, LayerGroup::kGlobal, 1).empty());
  Forget(kPrompt + 1, &kv);
  for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
    EXPECT_FALSE(BytesOf(kv, group, 0).empty());
    EXPECT_TRUE(BytesOf(kv, group, 1).empty());
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, RewoundRowsTest,
                         testing::Values("dynamic", "static", "quantized"),
                         [](const auto& param_info) { return std::string(param_info.param); });

}  // namespace
}  // namespace hearth
