// Compares the products in bfloat16 of every target with chains of FusedDot, bit for bit.
#include "worker/kernels/bf16_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "bench/gpu/fused_dot_check.h"
#include "bench/gpu/tensor_core_cases.h"
#include "tests/worker/kernels/kernel_kit.h"
#include "tests/worker/model/weights_kit.h"
#include "worker/kernels/fused_products.h"
#include "worker/kernels/fused_tile.h"
#include "worker/kernels/product.h"

namespace hearth {
namespace {

// fused_dot_check.h compares FusedDot with two other implementations of its rule.
TEST(FusedDot, MatchesIndependentImplementations) {
  if (kIsSanitized) GTEST_SKIP() << "takes minutes, and FusedDot allocates nothing";
  EXPECT_EQ(CheckFusedDot(), 0);
}

// The classes of values contain subnormals, infinities, NaNs and overflows.
TEST(FusedTile, EveryClassOfValuesMatchesFusedDot) {
  for (size_t step_class = 0; step_class < StepClasses().size(); ++step_class) {
    const Operands of = StepOperands(step_class, 1);
    const auto* rows = reinterpret_cast<const FusedTile::Weights*>(of.a.data());
    int differing = 0;
    for (int tile = 0; tile < kTileRows / FusedTile::kOutputs; ++tile) {
      const FusedTile fused(rows[tile]);
      for (int column = 0; column < kTileColumns; ++column) {
        float sums[FusedTile::kOutputs], want[FusedTile::kOutputs];
        for (int i = 0; i < FusedTile::kOutputs; ++i) {
          const int output = (tile * FusedTile::kOutputs + i) * kTileColumns + column;
          const auto at = static_cast<size_t>(output);
          sums[i] = of.c[at];
          want[i] = FusedDot(of.RowOfA(at), of.RowOfB(at), of.c[at]);
        }
        fused.AddTo(of.b.data() + column * kStepInputs, sums);
        differing += std::memcmp(sums, want, sizeof sums) == 0 ? 0 : 1;
      }
    }
    EXPECT_EQ(differing, 0) << of.name;
  }
}

// The digest of each class covers 2^20 steps that a GPU computed.
TEST(FusedTile, DigestsEqualThoseOfGpu) {
  if (kIsSanitized) GTEST_SKIP() << "takes minutes, and the other test reads the same memory";
  int compared = 0;
  for (size_t step_class = 0; step_class < StepClasses().size(); ++step_class) {
    const Operands of = StepOperands(step_class, kMeasuredTiles);
    std::vector<float> results = of.c;
    InThreads(kMeasuredTiles * kTileRows / FusedTile::kOutputs, [&](int block) {
      const int row = block * FusedTile::kOutputs, tile = row / kTileRows;
      const FusedTile fused(*reinterpret_cast<const FusedTile::Weights*>(
          &of.a[static_cast<size_t>(row * kStepInputs)]));
      for (int column = 0; column < kTileColumns; ++column) {
        float sums[FusedTile::kOutputs];
        const auto at = [&](int i) {
          return static_cast<size_t>((row + i) * kTileColumns + column);
        };
        for (int i = 0; i < FusedTile::kOutputs; ++i) sums[i] = of.c[at(i)];
        fused.AddTo(&of.b[static_cast<size_t>((tile * kTileColumns + column) * kStepInputs)], sums);
        for (int i = 0; i < FusedTile::kOutputs; ++i) results[at(i)] = sums[i];
      }
    });
    const std::string measured = MeasuredDigest(of.name);
    if (measured.empty()) continue;
    EXPECT_EQ(Digest(results), measured) << of.name;
    ++compared;
  }
  EXPECT_EQ(compared, kMeasuredDigests - 4);  // four are digests of chains
}

// Returns the chain of each output, computed from the stored weights.
std::vector<float> Chains(const float* x, const std::vector<std::byte>& stored, int64_t outputs,
                          int64_t inputs) {
  const auto padded = static_cast<size_t>((inputs + 15) / 16 * 16);
  std::vector<uint16_t> row(padded), weights(padded);
  for (int64_t k = 0; k < inputs; ++k) row[static_cast<size_t>(k)] = RoundToBf16(x[k]);
  std::vector<float> y;
  for (int64_t output = 0; output < outputs; ++output) {
    const size_t bytes = static_cast<size_t>(inputs) * 2;
    std::memcpy(weights.data(), stored.data() + static_cast<size_t>(output) * bytes, bytes);
    float sum = 0;
    for (size_t k = 0; k < padded; k += 16) sum = FusedDot(&row[k], &weights[k], sum);
    y.push_back(sum);
  }
  return y;
}

PackedWeights Packed(const std::vector<std::byte>& stored, const ProductShape& shape) {
  return PackedWeights::Pack({{stored.data(), shape.outputs, ElementType::kBFloat16}},
                             ElementType::kBFloat16, shape.inputs, InThisThread, nullptr,
                             Arithmetic::kBFloat16);
}

void ExpectChains(const FencedRows& x, const std::vector<int64_t>& row_counts,
                  const std::vector<std::byte>& stored, const ProductShape& shape) {
  const PackedWeights weights = Packed(stored, shape);
  std::vector<std::vector<float>> want;
  for (int64_t row = 0; row < row_counts.back(); ++row) {
    want.push_back(Chains(x.Row(row), stored, shape.outputs, shape.inputs));
  }
  ForEachTarget([&](const std::string& target) {
    for (const int64_t rows : row_counts) {
      FencedRows y(rows, shape.outputs, 3);
      Workspace workspace;
      Product({x.Row(0), rows, x.stride()}, weights, {y.Row(0), rows, y.stride()}, &workspace,
              InThisThread);
      for (int64_t row = 0; row < rows; ++row) {
        const float* of_row = want[static_cast<size_t>(row)].data();
        ASSERT_EQ(FirstDifference(y.Row(row), of_row, shape.outputs), "")
            << target << ", row " << row << " of " << rows << ", " << shape.inputs << " inputs";
      }
      ASSERT_TRUE(y.FenceIntact(rows)) << target << ", " << rows << " rows";
    }
  });
}

TEST(Bf16Product, EveryRowCountMatchesChains) {
  std::vector<int64_t> row_counts = {1, 2, 3, 5, 8, 13, 17, 31, 33, 129};
  if (kIsSanitized) row_counts = {1, 3, 33};
  for (const ProductShape& shape :
       {ProductShape{48, 64}, {16, 1}, {1, 7}, {49, 24}, {111, 127}, {17, 640}}) {
    Numbers numbers(static_cast<uint64_t>(shape.outputs));
    const auto stored = StoredWeights(shape, ElementType::kBFloat16, &numbers);
    FencedRows x(row_counts.back(), shape.inputs);
    x.Fill(&numbers);
    ExpectChains(x, row_counts, stored, shape);
  }
}

TEST(Bf16Product, SpecialFloatsMatchChains) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const float largest = std::numeric_limits<float>::max();
  const std::vector<float> edges = {0.0f,     -0.0f,     nan,     infinity, -infinity,
                                    0x1p-70f, 0x1p-149f, largest, -largest, 0x1.01p0f};
  const ProductShape shape{20, 40};
  Numbers numbers(7);
  const auto stored = StoredWeights(shape, ElementType::kBFloat16, &numbers);
  const auto rows = static_cast<int64_t>(edges.size());
  FencedRows x(rows, shape.inputs);
  x.Fill(&numbers);
  for (int64_t row = 0; row < rows; ++row) {
    x.Row(row)[3 + 2 * row] = edges[static_cast<size_t>(row)];
  }
  ExpectChains(x, {1, rows}, stored, shape);
}

TEST(Bf16Product, GeluProductMatchesSeparateProducts) {
  const ProductShape shape{50, 72};
  Numbers numbers(8);
  const PackedWeights gate = Packed(StoredWeights(shape, ElementType::kBFloat16, &numbers), shape);
  const PackedWeights up = Packed(StoredWeights(shape, ElementType::kBFloat16, &numbers), shape);
  FencedRows x(9, shape.inputs);
  x.Fill(&numbers);
  const std::vector<float> gates = ReferenceRows(x, 9, gate), ups = ReferenceRows(x, 9, up);
  ForEachTarget([&](const std::string& target) {
    FencedRows y(9, shape.outputs);
    Workspace workspace;
    AddAndRun(InThisThread, [&](KernelPhases* phases) {
      AddGeluProduct({x.Row(0), 9, x.stride()}, gate, up, {y.Row(0), 9, y.stride()}, &workspace,
                     phases);
    });
    for (int64_t i = 0; i < 9 * shape.outputs; ++i) {
      const auto at = static_cast<size_t>(i);
      ASSERT_EQ(y.Row(i / shape.outputs)[i % shape.outputs], reference::Gelu(gates[at]) * ups[at])
          << target << ", " << i;
    }
  });
}

}  // namespace
}  // namespace hearth
