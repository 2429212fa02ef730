// A sequence restored from slices continues with the same bits as the computed sequence, at any
// boundary, with slices of any length, and in a cache of any capacity. Also tests invalid steps.
#include "worker/model/torch/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/tiny_checkpoint.h"
#include "worker/model/torch/gemma.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<int32_t> Tokens(int n) {
  std::vector<int32_t> tokens;
  for (int i = 0; i < n; ++i) tokens.push_back(2 + (i * 37 + i * i) % 150);
  return tokens;
}

struct Case {
  const char* name;
  TinyGeometry geometry;
  const char* dtype;
};

TinyGeometry Geometry(const char* layers, int window, int heads, int kv_heads, int head_dim) {
  TinyGeometry g;
  g.layer_types = layers;
  g.window = window;
  g.heads = heads;
  g.kv_heads = kv_heads;
  g.head_dim = head_dim;
  return g;
}

const Case kCases[] = {
    {"mixed", Geometry("llgl", 24, 4, 2, 16), "float32"},
    {"window_of_one", Geometry("lgl", 1, 2, 1, 16), "float32"},
    {"window_beyond_all", Geometry("lg", 600, 4, 4, 16), "float32"},
    {"odd_head", Geometry("llg", 9, 3, 1, 6), "float32"},  // rows are not aligned to 64 bytes
    {"bfloat16", Geometry("lgl", 17, 4, 2, 16), "bfloat16"},
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

class KvCacheTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    dir_ = NewTinyCheckpoint(GetParam().geometry, "kv_cache");
    GemmaOptions options;
    options.dtype = GetParam().dtype;
    // One thread, because two test programs run at a time and compute threads spin.
    options.threads = 1;
    auto gemma = Gemma::Load(dir_, options);
    ASSERT_TRUE(gemma.ok()) << gemma.status();
    gemma_ = *std::move(gemma);
  }
  KvCache NewCache(int capacity) {
    auto kv = gemma_->NewKvCache(capacity);
    EXPECT_TRUE(kv.ok()) << kv.status();
    return *std::move(kv);
  }
  // Computes positions [kv->length(), end) in steps that end at multiples of `chunk`. Returns the
  // logits of the last position.
  std::vector<float> Run(KvCache* kv, const std::vector<int32_t>& tokens, int end, int chunk) {
    std::vector<float> logits;
    while (kv->length() < end) {
      const int begin = kv->length(), next = std::min(end, (begin / chunk + 1) * chunk);
      const auto step = absl::MakeConstSpan(tokens).subspan(begin, next - begin);
      EXPECT_TRUE(gemma_->Step(kv, step, &logits).ok());
    }
    return logits;
  }
  // Restores the cache `to` to the state of `from`, through slices of `slice_tokens` tokens.
  void Move(const KvCache& from, int slice_tokens, KvCache* to) {
    const int length = from.length();
    to->BeginRestore(length);
    // the order of the layers does not matter
    for (int layer = from.num_layers() - 1; layer >= 0; --layer) {
      for (int at = 0; at < length; at += slice_tokens) {
        const int begin = std::max(at, to->first_held(layer));
        const int end = std::min(length, at + slice_tokens);
        if (begin >= end) continue;
        std::vector<std::byte> slice(slice_tokens * from.token_bytes(), std::byte{0xAB});
        from.CopyOut(layer, begin, end, at, slice_tokens, slice.data());
        to->CopyIn(layer, begin, end, at, slice_tokens, slice.data());
      }
    }
    to->FinishRestore(length);
  }

  std::string dir_;
  std::unique_ptr<Gemma> gemma_;
};

TEST_P(KvCacheTest, RestoredCacheContinuesWithSameBits) {
  constexpr int kPrompt = 70, kDecoded = 40, kChunk = 16;
  const std::vector<int32_t> tokens = Tokens(kPrompt + kDecoded);
  KvCache cold = NewCache(kPrompt + kDecoded);
  const std::vector<float> prompt_logits = Run(&cold, tokens, kPrompt, kChunk);
  const std::vector<float> last_logits = Run(&cold, tokens, kPrompt + kDecoded, 1);
  for (const int boundary : {16, 32, 48, 64}) {
    for (const int slice_tokens : {16, 5, 70}) {
      KvCache source = NewCache(kPrompt);
      Run(&source, tokens, boundary, kChunk);
      KvCache target = NewCache(kPrompt + kDecoded + 333);
      // fills the cache with another sequence, which the restore overwrites
      Run(&target, Tokens(90), 90, 7);
      Move(source, slice_tokens, &target);
      ASSERT_EQ(target.length(), boundary);
      EXPECT_EQ(Run(&target, tokens, kPrompt, kChunk), prompt_logits) << boundary;
      EXPECT_EQ(Run(&target, tokens, kPrompt + kDecoded, 1), last_logits) << boundary;
    }
  }
}

TEST_P(KvCacheTest, LocalLayerHoldsOnlyWindow) {
  const std::vector<int32_t> tokens = Tokens(96);
  KvCache kv = NewCache(96), restored = NewCache(96);
  Run(&kv, tokens, 96, 16);
  Move(kv, 16, &restored);
  const TinyGeometry& geometry = GetParam().geometry;
  for (int layer = 0; layer < kv.num_layers(); ++layer) {
    const int needed = std::max(0, 96 - (geometry.window - 1));
    const bool local = geometry.layer_types[layer] == 'l';
    EXPECT_EQ(restored.first_held(layer), local ? needed : 0) << layer;
    // During computation the layer has the rows of the latest step and the W - 1 rows before it.
    EXPECT_LE(kv.first_held(layer), local ? needed : 0) << layer;
    EXPECT_GE(kv.first_held(layer), local ? std::max(0, needed - 16) : 0) << layer;
  }
}

TEST_P(KvCacheTest, ResetCacheGivesSameLogits) {
  const std::vector<int32_t> tokens = Tokens(50);
  KvCache kv = NewCache(64);
  const std::vector<float> first = Run(&kv, tokens, 50, 16);
  kv.Reset();
  EXPECT_EQ(kv.length(), 0);
  EXPECT_EQ(Run(&kv, tokens, 50, 16), first);
}

TEST_P(KvCacheTest, InvalidStepsAreRefused) {
  KvCache kv = NewCache(8);
  const std::vector<int32_t> tokens = Tokens(9);
  const auto error = [&](std::vector<int32_t> step) {
    return std::string(gemma_->Step(&kv, step, nullptr).message());
  };
  EXPECT_THAT(error({}), HasSubstr("got 0"));
  EXPECT_THAT(error(tokens), AllOf(HasSubstr("got 9"), HasSubstr("at most 8")));
  EXPECT_THAT(error({3, -1}), HasSubstr("token id -1 is not in [0, 160)"));
  EXPECT_THAT(error({3, 160}), HasSubstr("token id 160"));
  EXPECT_EQ(kv.length(), 0);
  EXPECT_EQ(gemma_->NewKvCache(0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(gemma_->NewKvCache(INT32_MAX).status().code(), absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Geometries, KvCacheTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace hearth
