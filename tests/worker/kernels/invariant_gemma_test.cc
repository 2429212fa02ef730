#include "worker/invariant_gemma.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/tiny_checkpoint.h"
#include "tests/worker/kernels/kernel_kit.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<InvariantGemma> LoadOrDie(const std::string& dir) {
  auto gemma = InvariantGemma::Load(dir, /*threads=*/1, /*chunk=*/16);
  EXPECT_TRUE(gemma.ok()) << gemma.status();
  if (!gemma.ok()) std::abort();
  return *std::move(gemma);
}

TinyGeometry OneLayer() {
  TinyGeometry geometry;
  geometry.layer_types = "g";
  geometry.context_tokens = 20;
  return geometry;
}

std::string StepError(const InvariantGemma& gemma, InvariantGemma::Kv* kv, size_t tokens,
                      int want = 0, int32_t token = 5) {
  std::vector<float> logits;
  const int length = kv->length();
  const absl::Status status = gemma.Step(kv, std::vector<int32_t>(tokens, token), want, &logits);
  EXPECT_EQ(kv->length(), status.ok() ? length + static_cast<int>(tokens) : length);
  if (!status.ok()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  }
  return std::string(status.message());
}

TEST(InvariantGemma, TakesAsManyTokensAsTheModelHasPositions) {
  const auto gemma = LoadOrDie(NewTinyCheckpoint(OneLayer(), "positions"));
  InvariantGemma::Kv kv = gemma->NewKv();
  EXPECT_THAT(StepError(*gemma, &kv, 21), HasSubstr("21 tokens behind 0"));
  EXPECT_EQ(StepError(*gemma, &kv, 19), "");
  EXPECT_THAT(StepError(*gemma, &kv, 2), HasSubstr("20 positions (max_position_embeddings)"));
  EXPECT_EQ(StepError(*gemma, &kv, 1, 1), "");
  EXPECT_THAT(StepError(*gemma, &kv, 1), HasSubstr("1 tokens behind 20"));
}

TEST(InvariantGemma, RefusesTokensAndWishesThatItDoesNotHave) {
  const auto gemma = LoadOrDie(NewTinyCheckpoint(OneLayer(), "wishes"));
  InvariantGemma::Kv kv = gemma->NewKv();
  EXPECT_THAT(StepError(*gemma, &kv, 0), HasSubstr("0 tokens"));
  EXPECT_THAT(StepError(*gemma, &kv, 2, 3), HasSubstr("logits of 3"));
  EXPECT_THAT(StepError(*gemma, &kv, 2, -1), HasSubstr("logits of -1"));
  EXPECT_THAT(StepError(*gemma, &kv, 2, 0, 160), HasSubstr("token id 160 is not in [0, 160)"));
  EXPECT_THAT(StepError(*gemma, &kv, 2, 0, -1), HasSubstr("token id -1"));
  EXPECT_EQ(gemma->Step(&kv, {1, 2}, 1, nullptr).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(gemma->Step(&kv, {1, 2}, 0, nullptr).ok());
}

TEST(InvariantGemma, GivesNoMoreLogitsThanMemoryIsForThem) {
  TinyGeometry geometry = OneLayer();
  geometry.vocab_size = 1 << 18;
  geometry.hidden_size = 4;
  geometry.context_tokens = 2000;
  const auto gemma = LoadOrDie(NewTinyCheckpoint(geometry, "logits"));
  InvariantGemma::Kv kv = gemma->NewKv();
  EXPECT_THAT(StepError(*gemma, &kv, 2000, 1025), HasSubstr("so of 1024 tokens"));
}

TEST(InvariantGemma, RefusesKeysAndValuesThatAreNotItsOwn) {
  const std::string dir = NewTinyCheckpoint(OneLayer(), "own");
  const auto gemma = LoadOrDie(dir), other = LoadOrDie(dir);
  InvariantGemma::Kv kv = gemma->NewKv(), nobodys;
  EXPECT_THAT(StepError(*other, &kv, 1), HasSubstr("of another model"));
  EXPECT_THAT(StepError(*gemma, &nobodys, 1), HasSubstr("not from NewKv"));
  EXPECT_EQ(StepError(*gemma, &kv, 3), "");
  InvariantGemma::Kv moved = std::move(kv);
  EXPECT_THAT(StepError(*gemma, &kv, 1), HasSubstr("moved from"));
  EXPECT_EQ(moved.length(), 3);
  EXPECT_EQ(StepError(*gemma, &moved, 1), "");
}

TEST(InvariantGemma, RefusesHeadsThatTheKernelsDoNotHave) {
  for (const auto& [head_dim, heads] : {std::pair<int, int>{24, 4}, {528, 4}, {16, 34}}) {
    TinyGeometry geometry = OneLayer();
    geometry.head_dim = head_dim;
    geometry.heads = heads;
    const auto gemma = InvariantGemma::Load(NewTinyCheckpoint(geometry, "heads"), 1, 16);
    EXPECT_EQ(gemma.status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(gemma.status().message()),
                HasSubstr("head_dim " + std::to_string(head_dim)));
  }
}

}  // namespace
}  // namespace hearth
