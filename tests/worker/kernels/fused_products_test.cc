#include "worker/kernels/fused_products.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/worker/kernels/kernel_kit.h"
#include "tests/worker/model/weights_kit.h"
#include "worker/kernels/product.h"
#include "worker/kernels/reference.h"
#include "worker/kernels/row_kernels.h"

namespace hearth {
namespace {

constexpr int64_t kMaxRows = 257;

// gelu(x * gate) * (x * up) of each row, by the references.
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
  GeluProduct({x.Row(0), rows, x.stride()}, gate, up, {y.Row(0), rows, y.stride()}, &workspace,
              parallel);
  for (int64_t row = 0; row < rows; ++row) {
    const float* wanted = want.data() + row * gate.outputs();
    ASSERT_EQ(FirstDifference(y.Row(row), wanted, gate.outputs()), "")
        << what << ", row " << row << " of " << rows;
  }
  ASSERT_TRUE(y.FenceStands(rows)) << what << ", " << rows << " rows";
}

TEST(GeluProduct, EqualsTheReferencesAtEachNumberOfRows) {
  for (const ElementType type :
       {ElementType::kFloat32, ElementType::kBFloat16, ElementType::kFloat16, ElementType::kInt8}) {
    const ProductShape shape{type == ElementType::kBFloat16 ? 111 : 49, 35};
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

// As Product's test has them, with a slice of outputs: a block of inputs, and one more, too.
TEST(GeluProduct, EqualsTheReferencesAtTheInputsOfEachGemma) {
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

TEST(GeluProduct, IsTheSameOnAnyNumberOfThreads) {
  Numbers numbers(10);
  const PackedWeights gate = MakeWeights({150, 40}, ElementType::kBFloat16, &numbers);
  const PackedWeights up = MakeWeights({150, 40}, ElementType::kBFloat16, &numbers);
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

// Product, Softcap and a sort by ComesBefore.
std::vector<TopOutput> TopReference(const FencedRows& x, int64_t rows, const PackedWeights& weights,
                                    float softcap, int64_t count) {
  const std::vector<float> values = ReferenceRows(x, rows, weights);
  std::vector<TopOutput> top;
  for (int64_t row = 0; row < rows; ++row) {
    std::vector<TopOutput> all;
    for (int64_t output = 0; output < weights.outputs(); ++output) {
      float value = values[static_cast<size_t>(row * weights.outputs() + output)];
      if (softcap > 0) value = reference::Tanh(value / softcap) * softcap;
      all.push_back({value, output});
    }
    std::sort(all.begin(), all.end(), ComesBefore);
    top.insert(top.end(), all.begin(), all.begin() + count);
  }
  return top;
}

// On each target and with one thread and three.
void ExpectTop(const FencedRows& x, int64_t rows, const PackedWeights& weights, float softcap,
               int64_t count) {
  const std::vector<TopOutput> want = TopReference(x, rows, weights, softcap, count);
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    const auto parallel = [&](int64_t parts, KernelPart body) {
      pool.Run(parts, [&](int64_t part, int) { body(part); });
    };
    ForEachTarget([&](const std::string& target) {
      std::vector<TopOutput> top(want.size());
      Workspace workspace;
      TopOfProduct({x.Row(0), rows, x.stride()}, weights, softcap, count, absl::MakeSpan(top),
                   &workspace, parallel);
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_EQ(top[i].output, want[i].output) << target << ", entry " << i << " of " << rows;
        ASSERT_EQ(FirstDifference(&top[i].value, &want[i].value, 1), "") << target;
      }
    });
  }
}

// More outputs than a part has, the last panel not whole.
TEST(TopOfProduct, IsTheFirstOfTheSortedProduct) {
  Numbers numbers(11);
  const PackedWeights weights = MakeWeights({1700, 9}, ElementType::kBFloat16, &numbers);
  FencedRows x(65, 9);
  x.Fill(&numbers);
  ExpectTop(x, 65, weights, 0, 1);
  ExpectTop(x, 8, weights, 2.0f, 5);
  ExpectTop(x, 1, weights, 0, 900);
}

// Outputs that are equal, -infinity and NaN: there are few different ones.
TEST(TopOfProduct, OrdersWhatIsEqualByOutput) {
  const float infinity = std::numeric_limits<float>::infinity();
  std::vector<float> stored;
  for (int64_t output = 0; output < 800; ++output) {
    stored.push_back(output % 7 == 3    ? -infinity
                     : output % 11 == 5 ? std::numeric_limits<float>::quiet_NaN()
                                        : static_cast<float>(output % 3) - 1);
  }
  const PackedWeights weights =
      PackedWeights::Pack({{stored.data(), 800}}, ElementType::kFloat32, 1, InThisThread);
  FencedRows x(3, 1);
  x.Row(0)[0] = 1;
  x.Row(1)[0] = -0.0f;  // zeros of both signs, and NaN
  x.Row(2)[0] = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t count : {1, 300, 800}) ExpectTop(x, 3, weights, 0, count);
}

}  // namespace
}  // namespace hearth
