#include "worker/kernels/integer_product.h"

#include <gtest/gtest.h>

#include "tests/worker/kernels/kernel_kit.h"
#include "tests/worker/model/weights_kit.h"
#include "worker/kernels/fused_products.h"
#include "worker/kernels/product.h"
#include "worker/kernels/reference.h"

namespace hearth {
namespace {

constexpr int64_t kMaxRows = 129;

std::vector<float> ProductOf(const FencedRows& x, int64_t rows, const PackedWeights& weights) {
  std::vector<float> y(static_cast<size_t>(rows * weights.outputs()));
  Workspace workspace;
  Product({x.Row(0), rows, x.stride()}, weights, {y.data(), rows, weights.outputs()}, &workspace,
          InThisThread);
  return y;
}

void ExpectReference(const FencedRows& x, const std::vector<int64_t>& row_counts,
                     const PackedWeights& weights) {
  const std::vector<float> want = ReferenceRows(x, row_counts.back(), weights);
  ForEachIntegerKernel([&](const std::string& kernel) {
    for (const int64_t rows : row_counts) {
      if (kernel == "plain" && rows > 5) continue;
      const std::vector<float> got = ProductOf(x, rows, weights);
      ASSERT_EQ(FirstDifference(got.data(), want.data(), static_cast<int64_t>(got.size())), "")
          << kernel << ", " << rows << " rows of " << weights.inputs();
    }
  });
}

class IntegerProductOfType : public testing::TestWithParam<ElementType> {};

// The shapes have full and partial panels of every width, and inputs of several pieces.
TEST_P(IntegerProductOfType, MatchesReferenceAtEveryRowCount) {
  const int64_t block = FormOf(GetParam()).values;
  for (const ProductShape& shape : {ProductShape{48, 512}, {16, 32}, {49, 288}, {111, 96}}) {
    const int64_t inputs = (shape.inputs + block - 1) / block * block;
    Numbers numbers(static_cast<uint64_t>(shape.outputs));
    const PackedWeights weights =
        MakeWeights({shape.outputs, inputs}, GetParam(), &numbers, Arithmetic::kInt8);
    FencedRows x(kMaxRows, inputs);
    x.Fill(&numbers);
    ExpectReference(x, {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 31, 64, 128, 129}, weights);
  }
}

TEST_P(IntegerProductOfType, MatchesReferenceAtManyInputs) {
  Numbers numbers(3);
  const PackedWeights weights = MakeWeights({17, 10240}, GetParam(), &numbers, Arithmetic::kInt8);
  FencedRows x(9, 10240);
  x.Fill(&numbers);
  ExpectReference(x, {1, 4, 9}, weights);
}

// With the largest weights and inputs of each sign, a sum in 16 bits must not overflow.
TEST_P(IntegerProductOfType, LargestSumsDoNotOverflow) {
  const ElementType type = GetParam();
  const int64_t inputs = 512;
  for (const int fill : {0x00, 0x7f, 0x80, 0xff}) {
    std::vector<std::byte> stored(RowBytes(type, inputs) * 16, static_cast<std::byte>(fill));
    for (size_t block = 0; block < stored.size(); block += FormOf(type).bytes) {
      const uint16_t one[] = {0x3c00, 0x3c00};
      std::memcpy(stored.data() + block + HalvesOf(type).at, one,
                  static_cast<size_t>(2 * HalvesOf(type).count));
    }
    const PackedWeights weights = PackedWeights::Pack({{stored.data(), 16, type}}, type, inputs,
                                                      InThisThread, nullptr, Arithmetic::kInt8);
    FencedRows x(4, inputs);
    for (int64_t i = 0; i < inputs; ++i) {
      x.Row(0)[i] = 127;
      x.Row(1)[i] = -127;
      x.Row(2)[i] = i % 2 == 0 ? 127 : -127;
      x.Row(3)[i] = i % 32 < 16 ? 127 : -127;
    }
    ExpectReference(x, {1, 4}, weights);
  }
}

// Rows with NaN, infinity, zero, and floats at the limits of the quantizer's range.
TEST_P(IntegerProductOfType, SpecialFloatsMatchReference) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const float largest = std::numeric_limits<float>::max();
  const std::vector<float> edges = {0.0f,      -0.0f,     nan,       -nan,
                                    infinity,  -infinity, 0x1p-100f, 0x1.fffffep-101f,
                                    0x1p-149f, 0x1p-126f, largest,   -largest};
  Numbers numbers(5);
  const int64_t inputs = 512;
  const PackedWeights weights = MakeWeights({50, inputs}, GetParam(), &numbers, Arithmetic::kInt8);
  FencedRows x(static_cast<int64_t>(edges.size()) * 2, inputs);
  x.Fill(&numbers);
  for (size_t edge = 0; edge < edges.size(); ++edge) {
    const int64_t row = static_cast<int64_t>(edge) * 2;
    // a single value among other values
    x.Row(row)[static_cast<size_t>(37 + 11 * edge)] = edges[edge];
    std::fill_n(x.Row(row + 1) + 64, 32, edges[edge]);  // a whole block
  }
  ExpectReference(x, {1, 5, static_cast<int64_t>(edges.size()) * 2}, weights);
}

TEST_P(IntegerProductOfType, PackingKeepsWeightValues) {
  const ElementType type = GetParam();
  Numbers numbers(8), again(8);
  const PackedWeights words = MakeWeights({53, 512}, type, &numbers, Arithmetic::kInt8);
  const PackedWeights bytes = MakeWeights({53, 512}, type, &again);
  std::vector<float> got(512), want(512);
  for (const int64_t output : {0, 47, 48, 52}) {
    words.WidenOutput(output, got.data());
    bytes.WidenOutput(output, want.data());
    EXPECT_EQ(FirstDifference(got.data(), want.data(), 512), "") << output;
  }
}
INSTANTIATE_TEST_SUITE_P(Types, IntegerProductOfType,
                         testing::Values(ElementType::kQ8_0, ElementType::kQ4_0, ElementType::kQ4_1,
                                         ElementType::kQ5_0, ElementType::kQ5_1, ElementType::kQ4_K,
                                         ElementType::kQ5_K, ElementType::kQ6_K));

// The last block of a row is not full; our quantizer can write such rows.
TEST(IntegerProduct, PartialLastBlockIsZeroPadded) {
  Numbers numbers(4);
  const ProductShape shape{20, 70};
  const std::vector<std::byte> stored = StoredWeights(shape, ElementType::kFloat32, &numbers);
  for (const ElementType type : {ElementType::kQ8_0, ElementType::kQ4_0}) {
    const PackedWeights weights =
        PackedWeights::Pack({{stored.data(), 20, ElementType::kFloat32}}, type, 70, InThisThread,
                            nullptr, Arithmetic::kInt8);
    FencedRows x(9, 70);
    x.Fill(&numbers);
    ExpectReference(x, {1, 9}, weights);
  }
}

// The expected sum of two blocks of one output is computed by hand.
TEST(IntegerProduct, MatchesHandComputedSums) {
  std::vector<std::byte> stored(68);
  const uint16_t half = 0x3800;  // 0.5
  for (size_t block = 0; block < 2; ++block) {
    std::memcpy(stored.data() + 34 * block, &half, 2);
    for (size_t i = 0; i < 32; ++i) {
      stored[34 * block + 2 + i] = static_cast<std::byte>(i == 3 ? -128 : block == 0 ? 2 : 0);
    }
  }
  const PackedWeights weights =
      PackedWeights::Pack({{stored.data(), 1, ElementType::kQ8_0}}, ElementType::kQ8_0, 64,
                          InThisThread, nullptr, Arithmetic::kInt8);
  FencedRows x(1, 64);
  std::fill_n(x.Row(0), 64, 0.0f);
  x.Row(0)[0] = 254;  // the block's largest value: d = 2, q = 127
  x.Row(0)[1] = 5;    // 2.5 rounds to 2
  x.Row(0)[2] = -7;   // -3.5 rounds to -4
  x.Row(0)[35] = 3;   // q = 127
  const float first = std::fma(2.0f * (127 + 2 - 4), 2.0f * 0.5f, 0.0f);
  const float want = std::fma(127.0f * -128, (3.0f / 127) * 0.5f, first);
  ForEachIntegerKernel(
      [&](const std::string& kernel) { EXPECT_EQ(ProductOf(x, 1, weights)[0], want) << kernel; });
}

TEST(IntegerProduct, MixedTypesShareQuantizedRows) {
  Numbers numbers(6);
  std::vector<PackedWeights> all;
  all.push_back(MakeWeights({40, 256}, ElementType::kQ4_K, &numbers, Arithmetic::kInt8));
  all.push_back(MakeWeights({16, 256}, ElementType::kQ6_K, &numbers, Arithmetic::kInt8));
  all.push_back(MakeWeights({24, 256}, ElementType::kBFloat16, &numbers));
  all.push_back(MakeWeights({8, 256}, ElementType::kQ8_0, &numbers, Arithmetic::kInt8));
  FencedRows x(9, 256);
  x.Fill(&numbers);
  ForEachIntegerKernel([&](const std::string& kernel) {
    FencedRows y(9, 88);
    Workspace workspace;
    AddAndRun(InThisThread, [&](KernelPhases* phases) {
      AddProducts({x.Row(0), 9, x.stride()}, all, {y.Row(0), 9, y.stride()}, &workspace, phases);
    });
    int64_t at = 0;
    for (const PackedWeights& weights : all) {
      const std::vector<float> want = ReferenceRows(x, 9, weights);
      for (int64_t row = 0; row < 9; ++row) {
        EXPECT_EQ(FirstDifference(y.Row(row) + at, want.data() + row * weights.outputs(),
                                  weights.outputs()),
                  "")
            << kernel << ", output " << at << " of row " << row;
      }
      at += weights.outputs();
    }
    EXPECT_TRUE(y.FenceIntact(9)) << kernel;
  });
}

// If the previous loop writes the rows one by one, it also quantizes them. If that loop has another
// number of rows, or loops over parts, a separate loop quantizes the rows.
TEST(IntegerProduct, LoopThatWritesRowsQuantizesThem) {
  Numbers numbers(9);
  const PackedWeights weights =
      MakeWeights({53, 96}, ElementType::kQ8_0, &numbers, Arithmetic::kInt8);
  for (const int64_t rows : {1, 5, 17, 129}) {
    FencedRows made(rows, 96), x(rows, 96);
    made.Fill(&numbers);
    const std::vector<float> want = ReferenceRows(made, rows, weights);
    const auto copy = [&](int64_t row) { std::copy_n(made.Row(row), 96, x.Row(row)); };
    const auto list = [&](KernelPhases* phases, std::vector<float>* y, Workspace* workspace) {
      AddProduct({x.Row(0), rows, x.stride()}, weights, {y->data(), rows, 53}, workspace, phases);
      const size_t loops = phases->list().size();
      phases->Run(InThisThread);
      EXPECT_EQ(FirstDifference(y->data(), want.data(), rows * 53), "") << rows;
      return loops;
    };
    ForEachIntegerKernel([&](const std::string& kernel) {
      const bool plain = kernel == "plain";
      if (plain && rows > 5) return;
      std::vector<float> y(want.size());
      Workspace workspace;
      KernelPhases by_rows, by_parts, by_more_rows;
      by_rows.AddRows(rows, copy);
      EXPECT_EQ(list(&by_rows, &y, &workspace), 2u) << kernel;
      by_parts.Add(rows, copy);
      EXPECT_EQ(list(&by_parts, &y, &workspace), plain ? 2u : 3u) << kernel;
      by_more_rows.AddRows(rows + 1, [&](int64_t row) {
        if (row < rows) copy(row);
      });
      EXPECT_EQ(list(&by_more_rows, &y, &workspace), plain ? 2u : 3u) << kernel;
    });
  }
}

TEST(IntegerProduct, FusedGeluMatchesReference) {
  Numbers numbers(7);
  const PackedWeights gate =
      MakeWeights({111, 96}, ElementType::kQ4_0, &numbers, Arithmetic::kInt8);
  const PackedWeights up = MakeWeights({111, 96}, ElementType::kQ4_0, &numbers, Arithmetic::kInt8);
  FencedRows x(kMaxRows, 96);
  x.Fill(&numbers);
  const std::vector<float> gates = ReferenceRows(x, kMaxRows, gate);
  std::vector<float> want = ReferenceRows(x, kMaxRows, up);
  for (size_t i = 0; i < want.size(); ++i) want[i] = reference::Gelu(gates[i]) * want[i];
  ForEachIntegerKernel([&](const std::string& kernel) {
    for (const int64_t rows : {1, 4, 129}) {
      std::vector<float> y(static_cast<size_t>(rows * 111));
      Workspace workspace;
      AddAndRun(InThisThread, [&](KernelPhases* phases) {
        AddGeluProduct({x.Row(0), rows, x.stride()}, gate, up, {y.data(), rows, 111}, &workspace,
                       phases);
      });
      EXPECT_EQ(FirstDifference(y.data(), want.data(), rows * 111), "") << kernel << " " << rows;
    }
  });
}

}  // namespace
}  // namespace hearth
