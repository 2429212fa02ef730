#include "worker/kernels/fused_products.h"

#include <gtest/gtest.h>

#include "tests/worker/kernels/kernel_kit.h"
#include "tests/worker/model/weights_kit.h"
#include "worker/kernels/reference.h"

namespace hearth {
namespace {

constexpr int64_t kMaxRows = 257;

// Returns gelu(x * gate) * (x * up) for each row, computed by the reference kernels:
// [rows][outputs].
std::vector<float> GeluReference(const FencedRows& x, int64_t rows, const PackedWeights& gate,
                                 const PackedWeights& up) {
  const std::vector<float> gates = ReferenceRows(x, rows, gate), ups = ReferenceRows(x, rows, up);
  std::vector<float> y;
  for (size_t i = 0; i < gates.size(); ++i) y.push_back(reference::Gelu(gates[i]) * ups[i]);
  return y;
}

void ExpectGeluProduct(const FencedRows& x, int64_t rows, const PackedWeights& gate,
                       const PackedWeights& up, const std::vector<float>& want,
                       ParallelFor parallel, const std::string& what) {
  FencedRows y(rows, gate.outputs(), 3);
  Workspace workspace;
  AddAndRun(parallel, [&](KernelPhases* phases) {
    AddGeluProduct({x.Row(0), rows, x.stride()}, gate, up, {y.Row(0), rows, y.stride()}, &workspace,
                   phases);
  });
  for (int64_t row = 0; row < rows; ++row) {
    const float* wanted = want.data() + row * gate.outputs();
    ASSERT_EQ(FirstDifference(y.Row(row), wanted, gate.outputs()), "")
        << what << ", row " << row << " of " << rows;
  }
  ASSERT_TRUE(y.FenceIntact(rows)) << what << ", " << rows << " rows";
}

TEST(GeluProduct, EveryRowCountMatchesReference) {
  for (const ElementType type :
       {ElementType::kFloat32, ElementType::kBFloat16, ElementType::kFloat16, ElementType::kQ8_0}) {
    const ProductShape shape{type == ElementType::kBFloat16 ? 111 : 49,
                             IsOfBlocks(type) ? 2 * FormOf(type).values : 35};
    Numbers numbers(9);
    const PackedWeights gate = MakeWeights(shape, type, &numbers);
    const PackedWeights up = MakeWeights(shape, type, &numbers);
    FencedRows x(kMaxRows, shape.inputs);
    x.Fill(&numbers, 3);
    const std::vector<float> want = GeluReference(x, kMaxRows, gate, up);
    ForEachTarget([&](const std::string& target) {
      for (const int64_t rows : RowCounts()) {
        ExpectGeluProduct(x, rows, gate, up, want, InThisThread, target);
        if (testing::Test::HasFatalFailure()) return;
      }
    });
  }
}

// Input sizes of the products in each Gemma 3 model, with few outputs; 1,025 is one more than a
// piece.
TEST(GeluProduct, ProductsOfGemmaSizesMatchReference) {
  for (const int64_t inputs : {640, 1025, 1152, 2560, 3840, 5376}) {  // 270M, 1B, 4B, 12B, 27B
    Numbers numbers(static_cast<uint64_t>(inputs));
    const PackedWeights gate = MakeWeights({17, inputs}, ElementType::kBFloat16, &numbers);
    const PackedWeights up = MakeWeights({17, inputs}, ElementType::kBFloat16, &numbers);
    FencedRows x(33, inputs);
    x.Fill(&numbers);
    const std::vector<float> want = GeluReference(x, 33, gate, up);
    ForEachTarget([&](const std::string& target) {
      for (const int64_t rows : {1, 2, 8, 9, 33}) {
        ExpectGeluProduct(x, rows, gate, up, want, InThisThread,
                          target + ", inputs " + std::to_string(inputs));
      }
    });
  }
}

TEST(GeluProduct, AllThreadCountsGiveSameBits) {
  Numbers numbers(10);
  const PackedWeights gate = MakeWeights({450, 40}, ElementType::kBFloat16, &numbers);
  const PackedWeights up = MakeWeights({450, 40}, ElementType::kBFloat16, &numbers);
  FencedRows x(kMaxRows, 40);
  x.Fill(&numbers);
  const std::vector<float> want = GeluReference(x, kMaxRows, gate, up);
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool(threads);
    const auto parallel = [&](int64_t parts, KernelPart body) {
      pool.Run(parts, [&](int64_t part, int) { body(part); });
    };
    ForEachTarget([&](const std::string& target) {
      for (const int64_t rows : {1, 9, 257}) {
        ExpectGeluProduct(x, rows, gate, up, want, parallel, target);
      }
    });
  }
}

}  // namespace
}  // namespace hearth
