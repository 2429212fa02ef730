// Steps with several sequences: the bits of each sequence must equal those of the sequence alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/tiny_checkpoint.h"
#include "tests/worker/kernels/kernel_kit.h"
#include "worker/model/invariant/invariant_gemma.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Part = InvariantGemma::Part;

constexpr int kStepChunk = 16;

std::unique_ptr<InvariantGemma> LoadForSteps(const std::string& dir, int threads,
                                             uint64_t kv_bytes = uint64_t{1} << 30) {
  auto gemma = InvariantGemma::Load(dir, {threads, kStepChunk, kv_bytes});
  EXPECT_TRUE(gemma.ok()) << gemma.status();
  if (!gemma.ok()) std::abort();
  return *std::move(gemma);
}

// Returns the text of sequence `number`.
std::vector<int32_t> TextOf(size_t number, int length, int vocabulary) {
  Numbers numbers(number + 100);
  std::vector<int32_t> text;
  for (int i = 0; i < length; ++i) {
    text.push_back(static_cast<int32_t>(numbers.Next() % static_cast<uint64_t>(vocabulary)));
  }
  return text;
}

// Several sequences that one model computes together, and the expected logits of each sequence
// alone.
class Together {
 public:
  Together(const InvariantGemma& gemma, const std::vector<int>& lengths)
      : gemma_(gemma), vocabulary_(gemma.config().vocab_size) {
    for (size_t i = 0; i < lengths.size(); ++i) {
      texts_.push_back(TextOf(i, lengths[i], vocabulary_));
      alone_.emplace_back();
      kvs_.push_back(gemma.NewKv());
      InvariantGemma::Kv kv = gemma.NewKv();
      EXPECT_TRUE(gemma.Step(&kv, texts_[i], lengths[i], &alone_[i]).ok());
    }
  }

  // Computes one step with up to `most` tokens of some unfinished sequences, with some of the
  // logits, and compares them. Returns false if all sequences are finished or the step failed.
  bool StepSome(Numbers* numbers, int most) {
    std::vector<Part> parts;
    std::vector<StepLogits> logits(texts_.size());
    bool left = false;
    for (size_t i = 0; i < texts_.size(); ++i) {
      const int begin = kvs_[i].length(), rest = static_cast<int>(texts_[i].size()) - begin;
      left = left || rest > 0;
      if (rest == 0 || numbers->Next() % 4 == 0) continue;
      // Half of the sequences decode one token; the others prefill.
      const int tokens =
          numbers->Next() % 2 == 0
              ? 1
              : std::min<int>(rest,
                              1 + static_cast<int>(numbers->Next() % static_cast<uint64_t>(most)));
      const int want = static_cast<int>(numbers->Next() % static_cast<uint64_t>(tokens + 1));
      parts.push_back({&kvs_[i],
                       absl::MakeConstSpan(texts_[i]).subspan(static_cast<size_t>(begin),
                                                              static_cast<size_t>(tokens)),
                       want, want == 0 ? nullptr : &logits[i]});
    }
    if (parts.empty()) return left;
    const absl::Status status = gemma_.Step(parts);
    EXPECT_TRUE(status.ok()) << status;
    for (const Part& part : parts) Compare(part, parts.size());
    return status.ok();
  }

 private:
  void Compare(const Part& part, size_t parts) const {
    if (part.want == 0) return;
    const auto i = static_cast<size_t>(part.kv - kvs_.data());
    ASSERT_EQ(part.logits->values().size(), static_cast<size_t>(part.want * vocabulary_));
    for (int row = 0; row < part.want; ++row) {
      const int position = part.kv->length() - part.want + row;
      ASSERT_EQ(FirstDifference(part.logits->values().data() + row * vocabulary_,
                                alone_[i].data() + position * vocabulary_, vocabulary_),
                "")
          << "sequence " << i << ", position " << position << ", " << parts << " parts";
    }
  }

  const InvariantGemma& gemma_;
  const int vocabulary_;
  std::vector<std::vector<int32_t>> texts_;
  std::vector<std::vector<float>> alone_;
  std::vector<InvariantGemma::Kv> kvs_;
};

TinyGeometry Geometry(const std::string& layers, int window, int heads, int kv_heads) {
  TinyGeometry geometry;
  geometry.layer_types = layers;
  geometry.window = window;
  geometry.heads = heads;
  geometry.kv_heads = kv_heads;
  return geometry;
}

// Some sequences decode and others prefill in the same step, at different lengths, shorter and
// longer than the window. The last layer is local or global.
TEST(InvariantSteps, BatchedSequenceMatchesSequenceAlone) {
  for (const TinyGeometry& geometry :
       {Geometry("llgl", 24, 4, 2), Geometry("lg", 100, 8, 8), Geometry("lg", 512, 4, 1)}) {
    const std::string dir = NewTinyCheckpoint(geometry, "steps");
    for (const int threads : {1, 3}) {
      const auto gemma = LoadForSteps(dir, threads);
      Together together(*gemma, {1, 7, 30, 60, 61, 90, 128, 140});
      Numbers numbers(static_cast<uint64_t>(geometry.window + threads));
      while (together.StepSome(&numbers, 70) && !testing::Test::HasFatalFailure()) {
      }
      if (testing::Test::HasFailure()) return;
    }
  }
}

class InvariantStepErrors : public testing::Test {
 protected:
  InvariantStepErrors() : dir_(NewTinyCheckpoint(Geometry("lg", 24, 4, 2), "errors")) {}
  // Returns the error of a step with these parts. Checks that the step changed nothing.
  std::string Error(const InvariantGemma& gemma, const std::vector<Part>& parts,
                    absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    std::vector<int> lengths;
    for (const Part& part : parts) lengths.push_back(part.kv == nullptr ? 0 : part.kv->length());
    const uint64_t used = gemma.kv_blocks().used_bytes();
    const absl::Status status = gemma.Step(parts);
    EXPECT_EQ(status.code(), code) << status;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].kv != nullptr) {
        EXPECT_EQ(parts[i].kv->length(), lengths[i]);
      }
      if (parts[i].logits != nullptr) {
        EXPECT_TRUE(parts[i].logits->empty());
      }
    }
    EXPECT_EQ(gemma.kv_blocks().used_bytes(), used);
    return std::string(status.message());
  }
  const std::string dir_;
  const std::vector<int32_t> tokens_ = {2, 9, 30};
};

TEST_F(InvariantStepErrors, ErrorNamesPartAndChangesNothing) {
  const auto gemma = LoadForSteps(dir_, 1), other = LoadForSteps(dir_, 1);
  InvariantGemma::Kv a = gemma->NewKv(), b = gemma->NewKv(), theirs = other->NewKv();
  StepLogits first, second;
  const Part good{&a, tokens_, 1, &first};
  const std::vector<int32_t> unknown = {5, 160}, many(600, 5);
  EXPECT_THAT(Error(*gemma, {}), HasSubstr("at least one part"));
  EXPECT_THAT(Error(*gemma, {good, {&b, unknown, 0, nullptr}}),
              AllOf(HasSubstr("part 1 of 2"), HasSubstr("token id 160")));
  EXPECT_THAT(Error(*gemma, {{&b, many, 0, nullptr}, good}),
              AllOf(HasSubstr("part 0 of 2"), HasSubstr("600 tokens after 0")));
  EXPECT_THAT(Error(*gemma, {good, {&b, tokens_, 4, &second}}), HasSubstr("want = 4"));
  EXPECT_THAT(Error(*gemma, {good, {&b, tokens_, 1, nullptr}}), HasSubstr("must not be null"));
  EXPECT_THAT(Error(*gemma, {good, {&theirs, tokens_, 0, nullptr}}), HasSubstr("another model"));
  EXPECT_THAT(Error(*gemma, {good, {nullptr, tokens_, 0, nullptr}}),
              HasSubstr("NewKv did not create it"));
  EXPECT_THAT(Error(*gemma, {good, {&b, {}, 0, nullptr}}), HasSubstr("0 tokens"));
  EXPECT_THAT(Error(*gemma, {good, {&b, tokens_, 0, nullptr}, {&a, tokens_, 0, nullptr}}),
              AllOf(HasSubstr("part 2 of 3"), HasSubstr("used once")));
  EXPECT_THAT(Error(*gemma, {good, {&b, tokens_, 1, &first}}),
              AllOf(HasSubstr("part 1 of 2"), HasSubstr("used once")));
}

// The limit of 2^28 logits applies to the whole step.
TEST_F(InvariantStepErrors, LogitLimitCountsAllParts) {
  TinyGeometry geometry = Geometry("g", 24, 4, 2);
  geometry.vocab_size = 1 << 18;
  geometry.hidden_size = 4;
  geometry.context_tokens = 2000;
  const auto gemma = LoadForSteps(NewTinyCheckpoint(geometry, "many_logits"), 1);
  InvariantGemma::Kv a = gemma->NewKv(), b = gemma->NewKv();
  const std::vector<int32_t> tokens(600, 5);
  StepLogits first, second;
  EXPECT_THAT(Error(*gemma, {{&a, tokens, 513, &first}, {&b, tokens, 512, &second}}),
              AllOf(HasSubstr("at most 1024 tokens"), HasSubstr("got 1025 tokens")));
}

TEST_F(InvariantStepErrors, StepAllocatesAllPartsOrNone) {
  const auto roomy = LoadForSteps(dir_, 1);
  const KvLayout layout = roomy->NewKv().layout();
  const uint64_t chunk = layout.ObjectBytes(kStepChunk, LayerGroup::kGlobal) +
                         layout.ObjectBytes(kStepChunk, LayerGroup::kLocal);
  const auto gemma = LoadForSteps(dir_, 1, 4 * chunk);
  InvariantGemma::Kv a = gemma->NewKv(), b = gemma->NewKv(), c = gemma->NewKv();
  const std::vector<int32_t> text = TextOf(1, 15, 160), ten(10, 5), twenty(20, 7);
  ASSERT_TRUE(gemma->Step(&a, ten, 0, nullptr).ok());
  StepLogits logits;
  std::vector<float> want;
  // `a` needs one more block and `b` two; then no block is left for `c`.
  EXPECT_THAT(
      Error(*gemma, {{&a, text, 1, &logits}, {&b, twenty, 0, nullptr}, {&c, ten, 0, nullptr}},
            absl::StatusCode::kResourceExhausted),
      AllOf(HasSubstr("part 2 of 3"), HasSubstr("kv-bytes")));
  // The released blocks can be allocated by other sequences, and `a` continues unchanged.
  ASSERT_TRUE(gemma->Step({{&a, twenty, 1, &logits}, {&b, twenty, 0, nullptr}}).ok());
  InvariantGemma::Kv alone = roomy->NewKv();
  ASSERT_TRUE(roomy->Step(&alone, ten, 0, nullptr).ok());
  ASSERT_TRUE(roomy->Step(&alone, twenty, 1, &want).ok());
  EXPECT_EQ(FirstDifference(logits.values().data(), want.data(), 160), "");
}

}  // namespace
}  // namespace hearth
