// Tests the self-test of the exactness class invariant: it must detect results that depend on the
// step, and name the operation.
#include "worker/model/invariant/invariant_self_test.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/test_folder.h"
#include "tests/support/tiny_checkpoint.h"
#include "worker/kernels/integer_product.h"
#include "worker/kernels/product.h"
#include "worker/kernels/targets.h"
#include "worker/model/invariant/invariant_gemma.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A model with local and global layers; its window is longer than most steps M of the test.
const std::string& SelfTestDir() {
  static const auto* const dir = [] {
    TinyGeometry geometry;
    geometry.layer_types = "gl";
    geometry.kv_heads = 1;  // so that every product has a different number of outputs
    geometry.window = 500;
    geometry.context_tokens = 1000;
    return new std::string(NewTinyCheckpoint(geometry, "self_test"));
  }();
  return *dir;
}

std::unique_ptr<InvariantGemma> LoadForSelfTest(int chunk = 16) {
  auto gemma = InvariantGemma::Load(SelfTestDir(), {/*threads=*/2, chunk});
  EXPECT_TRUE(gemma.ok()) << gemma.status();
  return *std::move(gemma);
}

// Runs the self-test with a product that is wrong in one case: in steps of `rows` rows, if the
// product has `outputs` outputs, it changes one bit of row `row`.
absl::Status SelfTestWith(int64_t rows, int64_t row, int64_t outputs, const StepLimits& limits = {},
                          int chunk = 16) {
  InvariantGemma::ReplaceProduct([=](const ConstRows& x, const PackedWeights& weights,
                                     const Rows& y, Workspace* workspace, ParallelFor parallel) {
    Product(x, weights, y, workspace, parallel);
    if (x.rows != rows || weights.outputs() != outputs) return;
    float* last = y.Row(row) + outputs - 1;
    *last = std::nextafter(*last, 1e9F);
  });
  const auto gemma = LoadForSelfTest(chunk);
  InvariantGemma::ReplaceProduct(nullptr);
  return gemma->SelfTest("", limits);
}

TEST(InvariantSelfTest, PassedTestLeavesModelUnchanged) {
  const auto gemma = LoadForSelfTest(), untested = LoadForSelfTest();
  EXPECT_TRUE(gemma->SelfTest("").ok());
  EXPECT_THAT(gemma->notes().back(), HasSubstr("passed in 34 steps"));
  EXPECT_EQ(gemma->kv_blocks().used_bytes(), 0u);
  std::vector<float> logits, same;
  InvariantGemma::Kv kv = gemma->NewKv(), other = untested->NewKv();
  ASSERT_TRUE(gemma->Step(&kv, {2, 9, 30}, 1, &logits).ok());
  ASSERT_TRUE(untested->Step(&other, {2, 9, 30}, 1, &same).ok());
  EXPECT_EQ(logits, same);
}

TEST(InvariantSelfTest, FailureNamesOperationLayerAndStep) {
  // The products q, k, v and gate, up have different numbers of outputs; `down` and `out` both have
  // hidden_size outputs.
  const auto gemma = LoadForSelfTest();
  const ModelConfig& config = gemma->config();
  const int64_t qkv =
      (config.attention.num_heads + 2 * config.attention.num_kv_heads) * config.attention.head_dim;
  const std::pair<int64_t, int64_t> first_middle_last[] = {{1, 0},   {17, 8},    {33, 32},
                                                           {128, 0}, {257, 128}, {512, 511}};
  for (const auto& [rows, row] : first_middle_last) {
    const absl::Status status = SelfTestWith(rows, row, qkv);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << rows;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("the product q, k, v of a local layer"),
                      HasSubstr("M = " + std::to_string(rows) + " rows")));
  }
  EXPECT_THAT(std::string(SelfTestWith(64, 0, config.intermediate_size).message()),
              HasSubstr("product gate, up"));
  EXPECT_THAT(std::string(SelfTestWith(3, 2, config.hidden_size).message()),
              HasSubstr("product out"));
  EXPECT_THAT(std::string(SelfTestWith(1, 0, config.vocab_size).message()),
              HasSubstr("the output matrix"));
}

TEST(InvariantSelfTest, TestsLargestConfiguredSteps) {
  const int64_t hidden = LoadForSelfTest()->config().hidden_size;
  const auto message = [&](int64_t rows, int64_t row, const StepLimits& limits) {
    return std::string(SelfTestWith(rows, row, hidden, limits).message());
  };
  // The sequences have 1, 17, 16 (a chunk), 1 and 3 rows, and the remaining rows.
  for (const int64_t row : {0, 17, 25, 33, 34, 37, 38, 169, 299}) {
    EXPECT_THAT(message(300, row, {512, 300, 16}),
                HasSubstr("M = 300 rows of 6 sequences than among 517"))
        << row;
  }
  // A sequence has at most 512 rows (kPieceRows).
  for (const int64_t row : {549, 550, 999}) {
    EXPECT_THAT(message(1000, row, {512, 1000, 16}), HasSubstr("M = 1000 rows of 7 sequences"))
        << row;
  }
  for (const int64_t row : {0, 39}) {
    EXPECT_THAT(message(40, row, {512, 512, 40}), HasSubstr("M = 40 rows of 40 sequences")) << row;
  }
  EXPECT_THAT(message(300, 299, {300, 512, 16}), HasSubstr("M = 300 rows than among 517"));
  // A step of one chunk is tested even if no limit requires it.
  EXPECT_THAT(std::string(SelfTestWith(512, 511, hidden, {300, 300, 16}, 512).message()),
              HasSubstr("M = 512 rows than among 1000"));
}

// In a step, two decoding sequences get each other's results.
TEST(InvariantSelfTest, SwappedSequencesAreDetected) {
  for (const int64_t other : {1, 39}) {
    InvariantGemma::ReplaceProduct([other](const ConstRows& x, const PackedWeights& weights,
                                           const Rows& y, Workspace* workspace,
                                           ParallelFor parallel) {
      Product(x, weights, y, workspace, parallel);
      if (x.rows == 40) std::swap_ranges(y.Row(0), y.Row(1), y.Row(other));
    });
    const auto gemma = LoadForSelfTest();
    InvariantGemma::ReplaceProduct(nullptr);
    EXPECT_THAT(std::string(gemma->SelfTest("", {512, 512, 40}).message()),
                HasSubstr("M = 40 rows of 40 sequences"));
  }
}

TEST(InvariantSelfTest, DecodingSequencesAreLimitedByMemory) {
  const uint64_t of_27b = uint64_t{2} << 20;
  EXPECT_EQ(InvariantSelfTest::DecodesTried(16, of_27b), 16);
  EXPECT_EQ(InvariantSelfTest::DecodesTried(512, of_27b), 64);
  EXPECT_EQ(InvariantSelfTest::DecodesTried(512, 8 * of_27b), 8) << "chunks of 1,024 tokens";
}

// The error is the same for any number of rows.
TEST(InvariantSelfTest, ConstantKernelErrorIsDetected) {
  const auto gemma = LoadForSelfTest();
  const ModelConfig& config = gemma->config();
  const int64_t qkv =
      (config.attention.num_heads + 2 * config.attention.num_kv_heads) * config.attention.head_dim;
  const std::pair<int64_t, const char*> products[] = {
      {qkv, "the product q, k, v of a local layer computes row"},
      {config.intermediate_size, "the product gate, up with GELU of a local layer computes row"},
      {config.hidden_size, "the product out of a local layer computes row"},
      {config.vocab_size, "the output matrix computes outputs"}};
  for (const auto& [outputs, words] : products) {
    InvariantGemma::ReplaceProduct([outputs = outputs](const ConstRows& x,
                                                       const PackedWeights& weights, const Rows& y,
                                                       Workspace* workspace, ParallelFor parallel) {
      Product(x, weights, y, workspace, parallel);
      if (ChosenTarget() == KernelTarget::kPlain || weights.outputs() != outputs) return;
      for (int64_t row = 0; row < x.rows; ++row) {
        y.Row(row)[outputs - 1] += 0.5F;
      }
    });
    const auto changed = LoadForSelfTest();
    InvariantGemma::ReplaceProduct(nullptr);
    const absl::Status status = changed->SelfTest("");
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << words;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr(words), HasSubstr("different bits than the reference")));
  }
}

// The fastest integer kernel gives wrong bits for some rows, so the next kernel must be used.
TEST(InvariantSelfTest, FailingIntegerKernelIsReplaced) {
  const std::vector<IntegerKernel> usable = UsableIntegerKernels();
  if (usable.size() < 2) GTEST_SKIP() << "this CPU has no other kernel";
  const IntegerKernel best = usable.back(), next = usable[usable.size() - 2];
  InvariantGemma::ReplaceProduct([=](const ConstRows& x, const PackedWeights& weights,
                                     const Rows& y, Workspace* workspace, ParallelFor parallel) {
    Product(x, weights, y, workspace, parallel);
    if (x.rows == 5 && ChosenIntegerKernel() == best) *y.Row(0) += 1;
  });
  InvariantGemmaOptions options{/*threads=*/2, /*chunk=*/16};
  options.weights = WeightForm::kQ4_0;
  options.arithmetic = Arithmetic::kInt8;
  const auto gemma = InvariantGemma::Load(SelfTestDir(), options);
  InvariantGemma::ReplaceProduct(nullptr);
  ASSERT_TRUE(gemma.ok());
  EXPECT_TRUE((*gemma)->SelfTest("").ok());
  EXPECT_EQ(ChosenIntegerKernel(), next);
  ForceIntegerKernel(best);
  EXPECT_THAT((*gemma)->notes(),
              testing::Contains(
                  AllOf(HasSubstr(absl::StrCat(IntegerKernelName(best), " failed the self-test")),
                        HasSubstr(IntegerKernelName(next)), HasSubstr("M = 5 "))));
}

TEST(InvariantSelfTest, OnlyPassedResultIsRemembered) {
  TestFolder folder;
  const auto gemma = LoadForSelfTest(), again = LoadForSelfTest();
  InvariantGemma::ReplaceProduct([](const ConstRows& x, const PackedWeights& weights, const Rows& y,
                                    Workspace* workspace, ParallelFor parallel) {
    Product(x, weights, y, workspace, parallel);
    if (x.rows == 2) *y.Row(0) += 1;
  });
  const auto broken = LoadForSelfTest();
  InvariantGemma::ReplaceProduct(nullptr);
  EXPECT_FALSE(broken->SelfTest(folder.path()).ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_TRUE(gemma->SelfTest(folder.path()).ok());
  EXPECT_THAT(gemma->notes().back(), HasSubstr("passed in"));
  EXPECT_TRUE(again->SelfTest(folder.path()).ok());
  EXPECT_THAT(again->notes().back(), HasSubstr("on an earlier start"));
  InvariantGemmaOptions options{/*threads=*/2, /*chunk=*/16};
  options.weights = WeightForm::kQ8_0;  // other weights, so the self-test runs again
  const auto narrow = InvariantGemma::Load(SelfTestDir(), options);
  ASSERT_TRUE(narrow.ok() && (*narrow)->SelfTest(folder.path()).ok());
  EXPECT_THAT((*narrow)->notes().back(), HasSubstr("passed in"));
}

}  // namespace
}  // namespace hearth
