// Compares QuantizeProgram and every tiling of IntegerProductProgram on the emulated device with
// the reference and with the fastest integer kernel of this CPU, bit for bit, for every block type.
#include "worker/device/integer_product_program.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "tests/worker/kernels/kernel_kit.h"
#include "tests/worker/model/weights_kit.h"
#include "worker/device/device_model.h"
#include "worker/device/emulated_device.h"
#include "worker/device/product_choice.h"
#include "worker/device/program_list.h"
#include "worker/kernels/product.h"
#include "worker/model/invariant/device_uploader.h"

namespace hearth {
namespace {

constexpr ElementType kBlockTypes[] = {ElementType::kQ8_0, ElementType::kQ4_0, ElementType::kQ4_1,
                                       ElementType::kQ5_0, ElementType::kQ5_1, ElementType::kQ4_K,
                                       ElementType::kQ5_K, ElementType::kQ6_K};

// A matrix (or pair of matrices) with blocks, packed for the CPU and for the device. If `types` has
// more types than matrices are needed, the matrices are stacked.
class Matrix {
 public:
  Matrix(const std::vector<ElementType>& types, int inputs, int outputs, bool is_pair)
      : is_pair_(is_pair) {
    form_ = FormFor(types[0]);
    for (const ElementType type : types) {
      Numbers numbers(static_cast<uint64_t>(inputs + outputs) + matrices_.size());
      matrices_.push_back(MakeWeights({outputs, inputs}, type, &numbers, Arithmetic::kInt8));
      if (FormFor(type) != form_) form_ = IntegerForm::kInt8Parts;
    }
    const int all = outputs * static_cast<int>(types.size()), columns = PaddedColumns(all);
    packed_.resize(IntegerMatrixBytes(form_, inputs, columns));
    for (size_t i = 0; i < matrices_.size(); ++i) {
      for (int output = 0; output < outputs; ++output) {
        const int column =
            is_pair ? PairColumn(output, i == 1) : static_cast<int>(i) * outputs + output;
        PackIntegers(matrices_[i], output, form_, column, packed_.data());
      }
    }
    on_device = {reinterpret_cast<const uint16_t*>(packed_.data()), inputs, columns,
                 is_pair ? outputs : all, form_};
  }

  // Returns the outputs of `rows` rows: [rows][outputs]. product(matrix, y) computes one matrix.
  template <typename Compute>
  std::vector<float> Outputs(int64_t rows, const Compute& compute) const {
    std::vector<float> y(static_cast<size_t>(rows * on_device.outputs)), one(y.size());
    int64_t first = 0;
    for (const PackedWeights& matrix : matrices_) {
      const int64_t outputs = matrix.outputs();
      compute(matrix, one.data());
      for (int64_t i = 0; i < rows * outputs; ++i) {
        float& to = y[static_cast<size_t>(i / outputs * on_device.outputs + first + i % outputs)];
        const bool is_up = is_pair_ && &matrix == &matrices_[1];
        to =
            is_up ? reference::Gelu(to) * one[static_cast<size_t>(i)] : one[static_cast<size_t>(i)];
      }
      if (!is_pair_) first += outputs;
    }
    return y;
  }

  IntegerForm form() const { return form_; }
  const std::vector<PackedWeights>& matrices() const { return matrices_; }

  DeviceMatrix on_device;

 private:
  const bool is_pair_;
  IntegerForm form_;
  std::vector<PackedWeights> matrices_;
  std::vector<unsigned char> packed_;
};

// Rows of typical values; some blocks have zeros, subnormal numbers or a wide range.
std::vector<float> RandomRows(int rows, int inputs) {
  Numbers numbers(static_cast<uint64_t>(rows));
  std::vector<float> x(static_cast<size_t>(rows * inputs));
  for (size_t i = 0; i < x.size(); ++i) {
    constexpr float kSizes[] = {1, 0x1p+20f, 0, 0x1p-110f, 0x1p-90f};
    x[i] = numbers.Value() * kSizes[numbers.Next() % 97 < 90 ? 0 : i / 32 % 5];
  }
  return x;
}

// Runs both programs. The memory of the quantized rows has no content at first.
std::vector<float> OnDevice(EmulatedDevice* device, const Matrix& matrix, const float* x, int rows,
                            const int32_t* row_numbers, int tiling, bool is_pair) {
  const DeviceMatrix& of = matrix.on_device;
  const int stride = of.outputs + 3;
  std::vector<float> y(static_cast<size_t>((rows + 1) * stride), -7);
  IntegerArguments arguments = {};
  arguments.matrix = of;
  arguments.x = x;
  arguments.row_numbers = row_numbers;
  arguments.y = y.data();
  arguments.rows = rows;
  arguments.x_stride = of.inputs;
  arguments.y_stride = stride;
  arguments.is_pair = is_pair;
  const int padded = IntegerRows::PaddedRows(rows);
  const size_t count = static_cast<size_t>(padded * IntegerBlocks(of.inputs));
  arguments.quantized = {static_cast<unsigned char*>(device->Allocate(count * 32)),
                         static_cast<float*>(device->Allocate(count * sizeof(float))), padded};
  device->Launch(kQuantizeProgram, &arguments, QuantizeProgram::Blocks(rows, of.inputs));
  device->Launch(IntegerProductNumber(matrix.form(), tiling), &arguments,
                 BlocksOf(IntegerFactsOf(tiling), rows, of.columns));
  device->Free(arguments.quantized.ints);
  device->Free(arguments.quantized.scales);
  std::vector<float> outputs;
  for (int row = 0; row < rows; ++row) {
    const auto begin = y.begin() + row * stride;
    outputs.insert(outputs.end(), begin, begin + of.outputs);
    for (int i = of.outputs; i < stride; ++i) EXPECT_EQ(begin[i], -7);
  }
  EXPECT_EQ(y[static_cast<size_t>(rows * stride)], -7);
  return outputs;
}

// Compares the tilings with the CPU. If `rows` is even, the programs read their rows by number, in
// reverse order.
void Compare(const Matrix& matrix, bool is_pair, int rows, const std::vector<int>& tilings,
             bool late = false) {
  const int inputs = matrix.on_device.inputs, outputs = matrix.on_device.outputs;
  const std::vector<float> x = RandomRows(rows, inputs);
  const std::vector<float> want = matrix.Outputs(rows, [&](const PackedWeights& of, float* y) {
    for (int row = 0; row < rows; ++row) {
      reference::ProductRow(x.data() + row * inputs, of, 0, of.outputs(), y + row * of.outputs());
    }
  });
  const std::vector<float> by_kernel = matrix.Outputs(rows, [&](const PackedWeights& of, float* y) {
    Workspace workspace;
    Product({x.data(), rows, inputs}, of, {y, rows, of.outputs()}, &workspace, InThisThread);
  });
  ASSERT_EQ(FirstDifference(by_kernel.data(), want.data(), rows * outputs), "");
  std::vector<int32_t> numbers;
  for (int row = rows - 1; row >= 0; --row) numbers.push_back(row);
  EmulatedDevice device(late);
  for (const int tiling : tilings) {
    const std::vector<float> got = OnDevice(
        &device, matrix, x.data(), rows, rows % 2 == 0 ? numbers.data() : nullptr, tiling, is_pair);
    for (int row = 0; row < rows; ++row) {
      const int from = rows % 2 == 0 ? rows - 1 - row : row;
      ASSERT_EQ(FirstDifference(&got[static_cast<size_t>(row * outputs)],
                                &want[static_cast<size_t>(from * outputs)], outputs),
                "")
          << FormOf(matrix.matrices()[0].type()).name << ", tiling " << tiling << ", row " << row
          << " of " << rows;
    }
  }
}

const std::vector<int>& AllTilings() {
  static const std::vector<int> tilings = {0, 1, 2, 3};
  return tilings;
}

TEST(IntegerProductProgram, EveryRowCountMatchesCpuBits) {
  for (const ElementType type : kBlockTypes) {
    for (const bool is_pair : {false, true}) {
      const Matrix matrix({type, type}, 256, is_pair ? 24 : 11, is_pair);
      for (int rows = 1; rows <= 33; ++rows) {
        Compare(matrix, is_pair, rows, {ChooseIntegerProduct(rows, matrix.on_device.columns, 1)});
      }
      Compare(matrix, is_pair, 129, {2, 3});
    }
  }
}

// The inputs need more stages than the ring buffer has, the last stage is partial, the last thread
// block has fewer columns, and copies are performed only when the program waits for them.
TEST(IntegerProductProgram, EveryTilingMatchesCpuBits) {
  for (const ElementType type : kBlockTypes) {
    const Matrix matrix({type}, 5 * 256, 70, false);
    for (const int rows : {1, 34}) Compare(matrix, false, rows, AllTilings(), /*late=*/true);
  }
  LateCopies::SetLate(false);
}

// The last block of 32 inputs is partial.
TEST(IntegerProductProgram, PartialBlockMatchesCpuBits) {
  for (const ElementType type : {ElementType::kQ8_0, ElementType::kQ4_0, ElementType::kQ5_1}) {
    for (const int inputs : {8, 40, 648}) {
      const Matrix matrix({type, type}, inputs, 40, true);
      for (const int rows : {3, 8}) Compare(matrix, true, rows, AllTilings());
    }
  }
}

TEST(IntegerProductProgram, StackOfDifferentTypesMatchesCpuBits) {
  const Matrix stack({ElementType::kQ4_K, ElementType::kQ4_0, ElementType::kQ6_K}, 512, 23, false);
  EXPECT_EQ(stack.form(), IntegerForm::kInt8Parts);
  const Matrix pair({ElementType::kQ8_0, ElementType::kQ4_1}, 256, 40, true);
  for (const int rows : {1, 9}) {
    Compare(stack, false, rows, AllTilings());
    Compare(pair, true, rows, AllTilings());
  }
}

// Blocks with a NaN or an infinity give a NaN, in their row only.
TEST(IntegerProductProgram, NotFiniteRowChangesNoOtherRow) {
  const Matrix matrix({ElementType::kQ8_0}, 128, 40, false);
  std::vector<float> x = RandomRows(31, 128);
  x[7 * 128 + 5] = -kInfinity;
  x[8 * 128 + 40] = std::nanf("");
  EmulatedDevice device;
  const std::vector<float> all = OnDevice(&device, matrix, x.data(), 31, nullptr, 2, false);
  for (int row = 0; row < 31; ++row) {
    const std::vector<float> alone =
        OnDevice(&device, matrix, x.data() + row * 128, 1, nullptr, 0, false);
    std::vector<float> want(40);
    reference::ProductRow(x.data() + row * 128, matrix.matrices()[0], 0, 40, want.data());
    for (size_t i = 0; i < 40; ++i) {
      EXPECT_EQ(std::isnan(all[static_cast<size_t>(row) * 40 + i]), row == 7 || row == 8);
      EXPECT_EQ(std::isnan(alone[i]), std::isnan(want[i]));
    }
    if (row == 7 || row == 8) continue;
    EXPECT_EQ(FirstDifference(alone.data(), &all[static_cast<size_t>(row) * 40], 40), "") << row;
    EXPECT_EQ(FirstDifference(alone.data(), want.data(), 40), "") << row;
  }
}

// Returns the integers, then the bytes of the scales.
std::vector<unsigned char> BytesOf(const IntegerRows& rows, int inputs) {
  const int count = IntegerBlocks(inputs) * rows.stride;
  std::vector<unsigned char> bytes(rows.ints, rows.ints + count * IntegerTile::kInputs);
  const auto* scales = reinterpret_cast<const unsigned char*>(rows.scales);
  bytes.insert(bytes.end(), scales, scales + static_cast<size_t>(count) * sizeof(float));
  return bytes;
}

// CombineProgram quantizes also rows that an AttendProgram has combined.
TEST(CombineProgram, QuantizesLikeQuantizeProgram) {
  constexpr int kHeads = 3, kDim = 160, kInputs = kHeads * kDim, kRows = 8, kSplits = 2;
  std::vector<float> attended = RandomRows(kRows, kInputs);
  // Each second row has the softmax states of two splits.
  constexpr int kSlots = kRows / 2 * kSplits * kHeads;
  std::vector<float> outputs = RandomRows(kSlots, kDim), scalars;
  for (int slot = 0; slot < kSlots; ++slot) {
    scalars.insert(scalars.end(), {static_cast<float>(slot % 5), 1.0f + static_cast<float>(slot)});
  }
  std::vector<RowItems> items;
  for (int row = 0; row < kRows; ++row) items.push_back({row, row % 2 == 0 ? 0 : kSplits});
  for (int row = 1; row < kRows; row += 2)
    items[static_cast<size_t>(row)].first = row / 2 * kSplits;
  const int32_t rows = kRows;
  CombineProgram combine = {};
  combine.table.row_count = &rows;
  combine.table.lists[0].row_items = items.data();
  combine.place.heads = combine.place.kv_heads = kHeads;
  combine.place.head_dim = kDim;
  combine.place.sharers = combine.tile_rows = 1;
  combine.states = {scalars.data(), outputs.data()};
  combine.attended = attended.data();
  constexpr size_t kCount = size_t{kInputs} / IntegerTile::kInputs * kRows;
  std::vector<unsigned char> ints(kCount * IntegerTile::kInputs), want_ints(ints);
  std::vector<float> scales(kCount), want_scales(kCount);
  combine.quantized = {ints.data(), scales.data(), kRows};
  EmulatedDevice device;
  const std::vector<float> before = attended;
  Launch(&device, combine, kRows * kHeads);
  for (int row = 0; row < kRows; ++row) {
    const size_t at = static_cast<size_t>(row) * kInputs;
    const bool is_same = std::memcmp(&before[at], &attended[at], kInputs * sizeof(float)) == 0;
    EXPECT_EQ(is_same, row % 2 == 0) << row;
  }
  IntegerArguments arguments = {};
  arguments.matrix.inputs = arguments.x_stride = kInputs;
  arguments.x = attended.data();
  arguments.rows = kRows;
  arguments.quantized = {want_ints.data(), want_scales.data(), kRows};
  device.Launch(kQuantizeProgram, &arguments, QuantizeProgram::Blocks(kRows, kInputs));
  EXPECT_EQ(BytesOf(combine.quantized, kInputs), BytesOf(arguments.quantized, kInputs));
}

TEST(IntegerWeight, EveryTypeIsWidenedExactly) {
  for (const ElementType type : kBlockTypes) {
    const Matrix matrix({type}, 512, 35, false);
    std::vector<float> wide(512);
    for (int output = 0; output < 35; ++output) {
      matrix.matrices()[0].WidenOutput(output, wide.data());
      for (int i = 0; i < 512; ++i) {
        const auto* data = reinterpret_cast<const unsigned char*>(matrix.on_device.data);
        ASSERT_EQ(IntegerWeight(matrix.form(), data, 512, output, i), wide[static_cast<size_t>(i)])
            << FormOf(type).name << ", output " << output << ", input " << i;
      }
    }
  }
}

}  // namespace
}  // namespace hearth
