#include "worker/kernels/product.h"

#include <gtest/gtest.h>
#include <xmmintrin.h>

#include "tests/worker/kernels/kernel_kit.h"
#include "tests/worker/model/weights_kit.h"
#include "worker/kernels/float_mode.h"
#include "worker/kernels/reference.h"

namespace hearth {
namespace {

constexpr int64_t kMaxRows = 257;

// Checks that the product of the first `rows` rows of x equals the reference, and that nothing
// outside y is written.
void ExpectProduct(const FencedRows& x, int64_t rows, const PackedWeights& weights,
                   const std::vector<float>& want, ParallelFor parallel, const std::string& what) {
  FencedRows y(rows, weights.outputs(), 3);
  Workspace workspace;
  Product({x.Row(0), rows, x.stride()}, weights, {y.Row(0), rows, y.stride()}, &workspace,
          parallel);
  for (int64_t row = 0; row < rows; ++row) {
    const std::string difference =
        FirstDifference(y.Row(row), want.data() + row * weights.outputs(), weights.outputs());
    ASSERT_EQ(difference, "") << what << ", row " << row << " of " << rows;
  }
  ASSERT_TRUE(y.FenceIntact(rows)) << what << ", " << rows << " rows";
}

void ExpectProductsOfAllRowCounts(const ProductShape& shape, ElementType type) {
  Numbers numbers(static_cast<uint64_t>(shape.outputs * 31 + shape.inputs));
  const PackedWeights weights = MakeWeights(shape, type, &numbers);
  FencedRows x(kMaxRows, shape.inputs);
  x.Fill(&numbers);
  const std::vector<float> want = ReferenceRows(x, kMaxRows, weights);
  ForEachTarget([&](const std::string& target) {
    for (const int64_t rows : RowCounts()) {
      ExpectProduct(x, rows, weights, want, InThisThread, target);
      if (testing::Test::HasFatalFailure()) return;
    }
  });
}

class ProductOfType : public testing::TestWithParam<ElementType> {};

// The shapes have full and partial panels of every width, and even and odd numbers of inputs.
TEST_P(ProductOfType, MatchesReferenceAtEveryRowCount) {
  const int64_t block = FormOf(GetParam()).values;
  for (const ProductShape& shape :
       {ProductShape{48, 128}, {16, 1}, {1, 7}, {47, 129}, {49, 300}, {80, 256}, {111, 127}}) {
    const int64_t inputs = (shape.inputs + block - 1) / block * block;
    SCOPED_TRACE(testing::Message() << shape.outputs << " x " << inputs);
    ExpectProductsOfAllRowCounts({shape.outputs, inputs}, GetParam());
  }
}
INSTANTIATE_TEST_SUITE_P(Types, ProductOfType,
                         testing::Values(ElementType::kFloat32, ElementType::kBFloat16,
                                         ElementType::kFloat16, ElementType::kQ8_0,
                                         ElementType::kQ4_0, ElementType::kQ4_1, ElementType::kQ5_0,
                                         ElementType::kQ5_1, ElementType::kQ4_K, ElementType::kQ5_K,
                                         ElementType::kQ6_K));

// The expected result is computed differently: each stored row is widened and then multiplied.
TEST_P(ProductOfType, MatchesProductOfWidenedRows) {
  const ElementType type = GetParam();
  Numbers numbers(12);
  const ProductShape shape{53, 3 * FormOf(type).values};
  const std::vector<std::byte> stored = StoredWeights(shape, type, &numbers);
  const PackedWeights weights =
      PackedWeights::Pack({{stored.data(), shape.outputs, type}}, type, shape.inputs, InThisThread);
  FencedRows x(9, shape.inputs);
  x.Fill(&numbers);
  std::vector<float> want, wide(static_cast<size_t>(shape.inputs));
  for (int64_t row = 0; row < 9; ++row) {
    for (int64_t output = 0; output < shape.outputs; ++output) {
      WidenRow(type, stored.data() + output * RowBytes(type, shape.inputs), shape.inputs,
               wide.data());
      float sum = 0;
      for (int64_t k = 0; k < shape.inputs; ++k) sum = std::fma(x.Row(row)[k], wide[k], sum);
      want.push_back(sum);
    }
  }
  ForEachTarget(
      [&](const std::string& target) { ExpectProduct(x, 9, weights, want, InThisThread, target); });
}

// Input sizes of the products in each Gemma 3 model (hidden size, heads * head_dim, feed-forward
// size), with few outputs.
TEST(Product, MatchesReferenceAtGemmaInputSizes) {
  for (const int64_t inputs : {1025,                  // one more than a piece of inputs, and odd
                               640, 1024, 2048,       // 270M
                               1152, 6912,            // 1B
                               2560, 10240,           // 4B
                               3840, 4096, 15360}) {  // 12B
    const ProductShape shape{inputs == 640 ? 100 : 17, inputs};
    Numbers numbers(static_cast<uint64_t>(inputs));
    const PackedWeights weights = MakeWeights(shape, ElementType::kBFloat16, &numbers);
    FencedRows x(33, inputs);
    x.Fill(&numbers);
    const std::vector<float> want = ReferenceRows(x, 33, weights);
    ForEachTarget([&](const std::string& target) {
      for (const int64_t rows : {1, 2, 5, 8, 9, 33}) {
        ExpectProduct(x, rows, weights, want, InThisThread,
                      target + ", inputs " + std::to_string(inputs));
      }
    });
  }
}

// Like an output matrix: parts have several panels, and the last part has fewer panels.
TEST(Product, ManyPanelsMatchReference) {
  Numbers numbers(11);
  const PackedWeights weights = MakeWeights({48 * 2061 + 5, 3}, ElementType::kBFloat16, &numbers);
  FencedRows x(9, 3);
  x.Fill(&numbers);
  const std::vector<float> want = ReferenceRows(x, 9, weights);
  ThreadPool pool(3);
  const auto parallel = [&](int64_t parts, KernelPart body) {
    pool.Run(parts, [&](int64_t part, int) { body(part); });
  };
  ForEachTarget([&](const std::string& target) {
    for (const int64_t rows : {1, 9}) ExpectProduct(x, rows, weights, want, parallel, target);
  });
}

// Writes each row to every second row of y, in reverse order.
TEST(Product, WritesRowsToGivenAddresses) {
  Numbers numbers(9);
  const PackedWeights weights = MakeWeights({100, 30}, ElementType::kBFloat16, &numbers);
  FencedRows x(9, 30);
  x.Fill(&numbers);
  const std::vector<float> want = ReferenceRows(x, 9, weights);
  ForEachTarget([&](const std::string& target) {
    for (const int64_t rows : {1, 9}) {
      FencedRows y(2 * rows, 100);
      std::vector<float*> places;
      for (int64_t row = 0; row < rows; ++row) places.push_back(y.Row(2 * (rows - 1 - row)));
      Workspace workspace;
      KernelPhases phases;
      AddProductTo({x.Row(0), rows, x.stride()}, weights, places, &workspace, &phases);
      phases.Run(InThisThread);
      for (int64_t row = 0; row < rows; ++row) {
        EXPECT_EQ(FirstDifference(places[static_cast<size_t>(row)], want.data() + row * 100, 100),
                  "")
            << target << ", row " << row << " of " << rows;
        EXPECT_TRUE(std::isnan(*y.Row(2 * row + 1))) << target;
      }
    }
  });
}

TEST(Product, AllThreadCountsGiveSameBits) {
  Numbers numbers(5);
  const PackedWeights weights = MakeWeights({300, 200}, ElementType::kBFloat16, &numbers);
  FencedRows x(kMaxRows, 200);
  x.Fill(&numbers);
  const std::vector<float> want = ReferenceRows(x, kMaxRows, weights);
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    const auto parallel = [&](int64_t parts, KernelPart body) {
      pool.Run(parts, [&](int64_t part, int) { body(part); });
    };
    ForEachTarget([&](const std::string& target) {
      for (const int64_t rows : {1, 7, 64, 257}) {
        ExpectProduct(x, rows, weights, want, parallel, target + ", " + std::to_string(threads));
      }
    });
  }
}

TEST(Product, RunsWithoutVectorInstructions) {
  Numbers numbers(6);
  const PackedWeights weights = MakeWeights({50, 20}, ElementType::kFloat16, &numbers);
  FencedRows x(9, 20);
  x.Fill(&numbers);
  ForceTarget(KernelTarget::kPlain);
  ExpectProduct(x, 9, weights, ReferenceRows(x, 9, weights), InThisThread, "plain");
  ForceTarget(UsableTargets().back());
}

// The expected result is computed differently: from the separate matrices, without panels.
TEST(Product, StackedMatricesEqualSeparateProducts) {
  Numbers numbers(7);
  const int64_t inputs = 37;
  const std::vector<std::byte> first = StoredWeights({20, inputs}, ElementType::kFloat32, &numbers);
  const std::vector<std::byte> second =
      StoredWeights({45, inputs}, ElementType::kFloat32, &numbers);
  const PackedWeights weights = PackedWeights::Pack({{first.data(), 20}, {second.data(), 45}},
                                                    ElementType::kFloat32, inputs, InThisThread);
  FencedRows x(3, inputs);
  x.Fill(&numbers);
  std::vector<float> want;
  for (int64_t row = 0; row < 3; ++row) {
    for (int64_t output = 0; output < 65; ++output) {
      const std::vector<std::byte>& matrix = output < 20 ? first : second;
      float sum = 0;
      for (int64_t k = 0; k < inputs; ++k) {
        float weight;
        std::memcpy(&weight,
                    matrix.data() + ((output < 20 ? output : output - 20) * inputs + k) * 4, 4);
        sum = std::fma(x.Row(row)[k], weight, sum);
      }
      want.push_back(sum);
    }
  }
  ForEachTarget(
      [&](const std::string& target) { ExpectProduct(x, 3, weights, want, InThisThread, target); });
}

// Product keeps subnormal numbers in any floating-point mode of the thread, and then restores the
// mode.
TEST(Product, SubnormalsSurviveFlushToZeroMode) {
  const float tiny = std::numeric_limits<float>::min();
  const std::vector<float> stored(16, 0.5f);
  const PackedWeights weights =
      PackedWeights::Pack({{stored.data(), 16}}, ElementType::kFloat32, 1, InThisThread);
  std::vector<float> y(16);
  Workspace workspace;
  constexpr unsigned kFlushes = 0x9fc0;  // flushes subnormal results and operands to 0
  const unsigned before = _mm_getcsr();
  ForEachTarget([&](const std::string& target) {
    _mm_setcsr(kFlushes);
    Product({&tiny, 1, 1}, weights, {y.data(), 1, 16}, &workspace, InThisThread);
    EXPECT_EQ(_mm_getcsr() & 0x8040, kFlushes & 0x8040) << target;
    _mm_setcsr(before);
    EXPECT_GT(y[0], 0) << target;
  });
}

TEST(Elements, Float16IsWidenedExactly) {
  EXPECT_EQ(WidenOne(Float16{0x3c00}), 1.0f);
  EXPECT_EQ(WidenOne(Float16{0xc000}), -2.0f);
  EXPECT_EQ(WidenOne(Float16{0x0001}), std::ldexp(1.0f, -24));
  EXPECT_EQ(WidenOne(Float16{0x03ff}), std::ldexp(1023.0f, -24));
  EXPECT_EQ(WidenOne(Float16{0x7bff}), 65504.0f);
  EXPECT_TRUE(std::isinf(WidenOne(Float16{0x7c00})));
  EXPECT_TRUE(std::isnan(WidenOne(Float16{0x7e00})));
  EXPECT_TRUE(std::signbit(WidenOne(Float16{0x8000})));
}

}  // namespace
}  // namespace hearth
