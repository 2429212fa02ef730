// Compares every tile shape of ProductProgram, Bf16ProductProgram and WarpgroupProductProgram on
// the emulated device with the reference, bit for bit.
#include "worker/device/product_program.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/seeded_device_model.h"
#include "tests/worker/kernels/kernel_kit.h"
#include "tests/worker/model/weights_kit.h"
#include "worker/device/device_model.h"
#include "worker/device/emulated_device.h"
#include "worker/device/product_choice.h"
#include "worker/device/program_list.h"
#include "worker/device/warpgroup_check.h"
#include "worker/kernels/fused_dot.h"

namespace hearth {
namespace {

// A bfloat16 matrix (or pair of matrices), packed for the CPU and for the device.
class Matrix {
 public:
  Matrix(int inputs, int outputs, bool is_pair, Arithmetic arithmetic = Arithmetic::kFloat32)
      : inputs_(inputs), outputs_(outputs) {
    Numbers numbers(static_cast<uint64_t>(inputs + outputs));
    for (int i = 0; i < (is_pair ? 2 : 1); ++i) {
      stored_.push_back(StoredWeights({outputs, inputs}, ElementType::kBFloat16, &numbers));
      packed_.push_back(
          PackedWeights::Pack({{stored_.back().data(), outputs, ElementType::kBFloat16}},
                              ElementType::kBFloat16, inputs, InThisThread, nullptr, arithmetic));
    }
    columns_ = PackColumns(inputs, outputs, is_pair, [&](int output, bool second, uint16_t* row) {
      const size_t bytes = static_cast<size_t>(inputs) * 2;
      std::memcpy(row, stored_[second].data() + static_cast<size_t>(output) * bytes, bytes);
    });
    on_device = {columns_.data(), inputs, PaddedColumns(is_pair ? 2 * outputs : outputs), outputs};
  }

  std::vector<float> Reference(const std::vector<float>& x, int row) const {
    std::vector<float> y(static_cast<size_t>(outputs_)), up(y);
    const float* of_row = x.data() + static_cast<size_t>(row) * static_cast<size_t>(inputs_);
    reference::ProductRow(of_row, packed_[0], 0, outputs_, y.data());
    if (packed_.size() < 2) return y;
    reference::ProductRow(of_row, packed_[1], 0, outputs_, up.data());
    for (size_t i = 0; i < y.size(); ++i) y[i] = reference::Gelu(y[i]) * up[i];
    return y;
  }

  DeviceMatrix on_device;

 private:
  const int inputs_, outputs_;
  std::vector<std::vector<std::byte>> stored_;
  std::vector<PackedWeights> packed_;
  std::vector<uint16_t> columns_;
};

// A program that multiplies, and the size of its thread blocks.
struct Product {
  int program;
  ShapeFacts facts;
};
std::vector<Product> OfShapes(const std::vector<int>& shapes, bool is_pair) {
  std::vector<Product> products;
  for (const int shape : shapes) {
    products.push_back({ProductNumber(shape, is_pair), FactsOf(shape)});
  }
  return products;
}

// Compares the given programs with the reference. If `rows` is even, the product reads its rows
// by number, in reverse order. The row after the last output row must not change.
// `late`: asynchronous copies are performed only when the program waits for them.
void Compare(const Matrix& matrix, int rows, const std::vector<Product>& products,
             bool late = false) {
  const DeviceMatrix& of = matrix.on_device;
  Numbers numbers(static_cast<uint64_t>(rows));
  std::vector<float> x(static_cast<size_t>(rows * of.inputs));
  for (float& value : x) value = numbers.Value();
  std::vector<int32_t> row_numbers;
  for (int row = rows - 1; row >= 0; --row) row_numbers.push_back(row);
  std::vector<std::vector<float>> want;
  for (int row = 0; row < rows; ++row) want.push_back(matrix.Reference(x, row));
  const int stride = of.outputs + 3;
  EmulatedDevice device(late);
  for (const auto& [program, facts] : products) {
    std::vector<float> y(static_cast<size_t>((rows + 1) * stride), -7);
    ProductArguments product = {};
    product.matrix = of;
    product.x = x.data();
    product.row_numbers = rows % 2 == 0 ? row_numbers.data() : nullptr;
    product.y = y.data();
    product.rows = rows;
    product.x_stride = of.inputs;
    product.y_stride = stride;
    device.Launch(program, &product, BlocksOf(facts, rows, of.columns));
    for (int row = 0; row < rows; ++row) {
      const int from = rows % 2 == 0 ? rows - 1 - row : row;
      const float* got = y.data() + static_cast<size_t>(row * stride);
      ASSERT_EQ(FirstDifference(got, want[static_cast<size_t>(from)].data(), of.outputs), "")
          << "program " << program << ", row " << row << " of " << rows;
      for (int i = of.outputs; i < stride; ++i) ASSERT_EQ(got[i], -7);
    }
    ASSERT_EQ(y[static_cast<size_t>(rows * stride)], -7);
  }
}

std::vector<Product> Shapes(bool is_pair) {
  std::vector<int> shapes;
  for (int shape = 0; shape < ShapeCount(); ++shape) {
    if (!is_pair || FactsOf(shape).takes_pairs) shapes.push_back(shape);
  }
  return OfShapes(shapes, is_pair);
}

TEST(ProductProgram, EveryShapeMatchesReferenceBits) {
  for (const bool is_pair : {false, true}) {
    const Matrix small(264, 40, is_pair), less(40, is_pair ? 72 : 70, is_pair);
    for (const int rows : {1, 5, 33}) Compare(small, rows, Shapes(is_pair));
    for (const int rows : {2, 32}) Compare(less, rows, Shapes(is_pair));
  }
}

// The inputs need more stages than the ring buffer has, the last stage is partial, and copies are
// performed only when the program waits for them.
TEST(ProductProgram, WrappedRingBufferGivesSameBits) {
  for (const bool is_pair : {false, true}) {
    const Matrix matrix(6 * 256 + 40, 40, is_pair);
    for (const int rows : {1, 9}) Compare(matrix, rows, Shapes(is_pair), /*late=*/true);
  }
}

constexpr size_t kShared = size_t{227} << 10;  // shared memory of an H100

TEST(ProductProgram, EveryRowCountMatchesReferenceBits) {
  for (const bool is_pair : {false, true}) {
    const Matrix matrix(72, 24, is_pair);
    const auto compare = [&](int rows) {
      const int shape = ChooseProduct(rows, matrix.on_device, is_pair, 3, kShared);
      Compare(matrix, rows, OfShapes({shape}, is_pair));
    };
    for (int rows = 1; rows <= 33; ++rows) compare(rows);
    compare(129);
  }
}

std::vector<Product> Bf16Products(const std::vector<int>& tilings, bool is_pair) {
  std::vector<Product> products;
  for (const int tiling : tilings) {
    products.push_back({Bf16ProductNumber(tiling, is_pair), Bf16FactsOf(tiling)});
  }
  return products;
}

TEST(Bf16ProductProgram, EveryRowCountMatchesChainsOfFusedDots) {
  for (const bool is_pair : {false, true}) {
    const Matrix matrix(72, 24, is_pair, Arithmetic::kBFloat16);
    for (int rows = 1; rows <= 33; ++rows) {
      Compare(matrix, rows, Bf16Products({ChooseBf16Product(rows)}, is_pair));
    }
    Compare(matrix, 129, Bf16Products({ChooseBf16Product(129)}, is_pair));
  }
}

// Most numbers of inputs end within a stage and within a k16 step; the largest number needs more
// stages than the ring buffer has. Copies are performed only when the program waits for them.
TEST(Bf16ProductProgram, EveryTilingMatchesReferenceBits) {
  for (const bool is_pair : {false, true}) {
    for (const int inputs : {8, 64, 264, 9 * 64 + 40}) {
      const Matrix matrix(inputs, is_pair ? 72 : 70, is_pair, Arithmetic::kBFloat16);
      for (const int rows : {1, 9, 34}) {
        Compare(matrix, rows, Bf16Products({0, 1, 2, 3}, is_pair), /*late=*/true);
      }
    }
  }
}

// A row with infinities and NaNs does not change the other rows.
TEST(Bf16ProductProgram, RowAloneEqualsRowAmongOthers) {
  const Matrix matrix(200, 40, false, Arithmetic::kBFloat16);
  const DeviceMatrix& of = matrix.on_device;
  Numbers numbers(4);
  std::vector<float> x(static_cast<size_t>(31 * of.inputs));
  for (float& value : x) value = numbers.Value();
  for (int i = 0; i < of.inputs; ++i) {
    x[static_cast<size_t>(7 * of.inputs + i)] = i % 2 == 0 ? kInfinity : -kInfinity;
  }
  EmulatedDevice device;
  const auto product = [&](int first, int rows) {
    std::vector<float> y(static_cast<size_t>(rows * of.outputs));
    const ProductArguments arguments = {of,         &x[static_cast<size_t>(first * of.inputs)],
                                        nullptr,    y.data(),
                                        rows,       of.inputs,
                                        of.outputs, 0};
    const int tiling = ChooseBf16Product(rows);
    device.Launch(Bf16ProductNumber(tiling, false), &arguments,
                  BlocksOf(Bf16FactsOf(tiling), rows, of.columns));
    return y;
  };
  const std::vector<float> all = product(0, 31);
  EXPECT_TRUE(std::isnan(all[static_cast<size_t>(7 * of.outputs)]));
  for (int row = 0; row < 31; ++row) {
    const std::vector<float> alone = product(row, 1);
    EXPECT_EQ(
        FirstDifference(alone.data(), &all[static_cast<size_t>(row * of.outputs)], of.outputs), "")
        << row;
  }
}

// A matrix in bfloat16 rounds its rows, so a product in float32 has other bits.
TEST(Bf16ProductProgram, BitsDifferFromFloat32) {
  const Matrix narrow(200, 40, false, Arithmetic::kBFloat16), wide(200, 40, false);
  Numbers numbers(4);
  std::vector<float> x(200);
  for (float& value : x) value = numbers.Value();
  EXPECT_NE(narrow.Reference(x, 0), wide.Reference(x, 0));
}

// Compares all tilings of WarpgroupProductProgram with the reference. The outputs of a pair are
// rounded to bfloat16 and packed.
void CompareWarpgroups(const Matrix& matrix, int rows, bool is_pair, bool late) {
  const DeviceMatrix& of = matrix.on_device;
  Numbers numbers(static_cast<uint64_t>(rows));
  std::vector<float> x(static_cast<size_t>(rows * of.inputs));
  for (float& value : x) value = numbers.Value();
  EmulatedDevice device(late);
  DeviceArena arena(&device);
  constexpr int kPitch = 2 * Bf16Rows::kGrain;
  const Bf16Rows packed = {arena.Take<uint16_t>(static_cast<size_t>(kPitch * of.inputs)), kPitch},
                 gated = {arena.Take<uint16_t>(static_cast<size_t>(kPitch * of.outputs)), kPitch};
  const PackRowsProgram pack = {x.data(), packed, rows, of.inputs, of.inputs};
  Launch(&device, pack, PackRowsProgram::Blocks(rows, of.inputs));
  std::vector<std::vector<float>> want;
  for (int row = 0; row < rows; ++row) want.push_back(matrix.Reference(x, row));
  const int stride = of.outputs + 2;
  constexpr ProductKind kKind = ProductKind::kWarpgroup;
  for (int tiling = 0; tiling < TilingCount(kKind); ++tiling) {
    std::vector<float> y(static_cast<size_t>((rows + 1) * stride), -7);
    const WarpgroupArguments product = {of, packed, gated, y.data(), rows, stride};
    device.Launch(ProductNumber(kKind, tiling, is_pair), &product,
                  BlocksOf(FactsOf(kKind, tiling), rows, of.columns));
    for (int row = 0; row < rows; ++row) {
      float* const got = y.data() + row * stride;
      std::vector<float>& wanted = want[static_cast<size_t>(row)];
      for (int i = 0; i < of.outputs && is_pair; ++i) {
        got[i] = FloatOfBf16(gated.data[(i / 8 * kPitch + row) * 8 + i % 8]);
        wanted[static_cast<size_t>(i)] =
            FloatOfBf16(NarrowOne(wanted[static_cast<size_t>(i)]).bits);
      }
      ASSERT_EQ(FirstDifference(got, wanted.data(), of.outputs), "")
          << "tiling " << tiling << ", row " << row << " of " << rows;
      for (int i = of.outputs; i < stride; ++i) ASSERT_EQ(got[i], -7);
    }
    ASSERT_EQ(y[static_cast<size_t>(rows * stride)], -7);
  }
  LateCopies::SetLate(false);
}

// The largest number of inputs needs more stages than a ring buffer has; outputs end within a tile.
// Asynchronous steps are performed when the program waits for them, or copies are.
TEST(WarpgroupProductProgram, EveryTilingMatchesReferenceBits) {
  for (const bool is_pair : {false, true}) {
    for (const auto& [inputs, rows] : {std::pair(64, 33), std::pair(128, 1), std::pair(448, 150)}) {
      const Matrix matrix(inputs, is_pair ? 136 : 264, is_pair, Arithmetic::kBFloat16);
      for (const bool late : {false, true}) {
        if (!late || rows == 150) CompareWarpgroups(matrix, rows, is_pair, late);
      }
    }
  }
}

TEST(WarpgroupProductProgram, CheckFindsOtherBits) {
  class FaultyDevice : public EmulatedDevice {
   public:
    void Launch(int program, const void* arguments, int blocks) override {
      if (program != skipped) EmulatedDevice::Launch(program, arguments, blocks);
    }
    int skipped = -1;
  };
  FaultyDevice device;
  EXPECT_EQ(DifferingWarpgroupOutputs(&device), 0);
  device.skipped = ProductNumber(ProductKind::kWarpgroup, 2, true);
  EXPECT_EQ(DifferingWarpgroupOutputs(&device), 130 * 160);
  EXPECT_EQ(device.error(), "");
}

// The expected tilings were the fastest on an H100, for products of three models with several
// numbers of rows.
TEST(ChooseProduct, GemmaSizesUseFastestMeasuredTiling) {
  const auto rows_and_columns = [](int rows, int inputs, int columns, bool is_pair) {
    const DeviceMatrix matrix = {nullptr, inputs, columns, is_pair ? columns / 2 : columns};
    const ShapeFacts facts = FactsOf(ChooseProduct(rows, matrix, is_pair, 132, kShared));
    return std::pair(facts.rows, facts.columns);
  };
  using Pair = std::pair<int, int>;
  EXPECT_EQ(rows_and_columns(1, 6912, 1152, false), Pair(1, 32));
  EXPECT_EQ(rows_and_columns(1, 2560, 4096, false), Pair(1, 32));
  EXPECT_EQ(rows_and_columns(1, 1152, 13824, true), Pair(1, 64));
  EXPECT_EQ(rows_and_columns(1, 640, 262144, false), Pair(1, 64));
  EXPECT_EQ(rows_and_columns(8, 1152, 13824, true), Pair(4, 64));
  EXPECT_EQ(rows_and_columns(8, 2560, 20480, true), Pair(8, 64));
  EXPECT_EQ(rows_and_columns(16, 2560, 262144, false), Pair(16, 64));
  EXPECT_EQ(rows_and_columns(32, 2048, 640, false), Pair(8, 32));
  EXPECT_EQ(rows_and_columns(32, 2560, 4096, false), Pair(8, 64));
  EXPECT_EQ(rows_and_columns(32, 2560, 20480, true), Pair(16, 64));
  EXPECT_EQ(rows_and_columns(32, 2560, 262144, false), Pair(32, 256));
  EXPECT_EQ(rows_and_columns(128, 2048, 640, false), Pair(32, 8));
  EXPECT_EQ(rows_and_columns(2048, 2048, 640, false), Pair(32, 32));
  EXPECT_EQ(rows_and_columns(2048, 2560, 20480, true), Pair(64, 128));
}

TEST(ChooseProduct, TilingFitsSmallSharedMemory) {
  for (const size_t shared_bytes : {size_t{50} << 10, size_t{99} << 10}) {
    for (const bool is_pair : {false, true}) {
      for (int rows = 1; rows <= 4096; rows *= 2) {
        for (const int columns : {640, 4096, 262144}) {
          const DeviceMatrix matrix = {nullptr, 640, columns, is_pair ? columns / 2 : columns};
          const ShapeFacts facts = FactsOf(ChooseProduct(rows, matrix, is_pair, 132, shared_bytes));
          EXPECT_LE(facts.shared_bytes, shared_bytes) << rows << " rows, " << columns;
        }
      }
    }
  }
}

}  // namespace
}  // namespace hearth
