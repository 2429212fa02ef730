#include "worker/model/invariant/device_uploader.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstdint>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "worker/device/integer_matrix.h"
#include "worker/kernels/float_mode.h"
#include "worker/kernels/functions.h"
#include "worker/kernels/quantized/weight_blocks.h"

namespace hearth {

IntegerForm FormFor(ElementType type) {
  switch (type) {
    case ElementType::kQ8_0:
    case ElementType::kQ5_0:
      return IntegerForm::kInt8;
    case ElementType::kQ4_0:
      return IntegerForm::kInt4;
    case ElementType::kQ4_1:
    case ElementType::kQ4_K:
      return IntegerForm::kInt4Least;
    default:
      assert(IsOfBlocks(type));
      return IntegerForm::kInt8Parts;
  }
}

void PackIntegers(const PackedWeights& weights, int output, IntegerForm form, int column,
                  unsigned char* packed) {
  const ElementType type = weights.type();
  const IntegerTile tile = TileOf(form);
  const int inputs = static_cast<int>(weights.inputs()), blocks = IntegerBlocks(inputs);
  const int values = static_cast<int>(FormOf(type).values), in_tile = column % tile.kColumns;
  std::byte block[PackedWeights::kMaxBlockBytes];
  for (int k = 0; k < inputs; k += tile.kInputs) {
    if (k % values == 0) weights.GatherBlock(output, k, block);
    const BlockRun run = RunOf(type, block, k % values / tile.kInputs);
    unsigned char* const to =
        packed + (static_cast<size_t>(column / tile.kColumns) * static_cast<size_t>(blocks) +
                  static_cast<size_t>(k / tile.kInputs)) *
                     static_cast<size_t>(tile.bytes);
    for (int i = 0; i < tile.kInputs; ++i) {
      const IntegerPlace place = PlaceInTile(tile.is_narrow, in_tile, i);
      const int bits = run.q[i] - run.zero;
      to[place.byte] = static_cast<unsigned char>(
          !tile.is_narrow ? bits
                          : to[place.byte] | (place.is_lower ? bits & 15 : (bits & 15) << 4));
    }
    if (!tile.has_least) {  // d is the block's own float16
      std::memcpy(to + tile.scales + 2 * in_tile, block + HalvesOf(type).at, 2);
      continue;
    }
    std::memcpy(to + tile.scales + 4 * in_tile, &run.d, sizeof run.d);
    std::memcpy(to + tile.leasts + 4 * in_tile, &run.m, sizeof run.m);
    for (int half = 0; half < 2 && tile.has_parts; ++half) {
      to[tile.parts + 2 * in_tile + half] = static_cast<unsigned char>(run.part[half]);
    }
  }
}

const float* DeviceUploader::Floats(const std::vector<float>& values) {
  float* to = arena_->Take<float>(values.size());
  if (to != nullptr) device_->CopyIn(to, values.data(), values.size() * sizeof(float));
  return to;
}

DeviceMatrix DeviceUploader::Matrix(const std::string& name,
                                    const std::vector<const PackedWeights*>& matrices,
                                    bool is_pair) {
  DeviceMatrix made;
  made.inputs = static_cast<int>(matrices[0]->inputs());
  const bool is_integer = matrices[0]->arithmetic() == Arithmetic::kInt8;
  if (is_integer) made.form = FormFor(matrices[0]->type());
  int outputs = 0;
  for (const PackedWeights* matrix : matrices) {
    outputs += static_cast<int>(matrix->outputs());
    if ((matrix->arithmetic() == Arithmetic::kInt8) != is_integer) {
      Refuse(name,
             "the device multiplies these matrices together, but only some of them are quantized: "
             "use --device cpu");
      return made;
    }
    if (is_integer && FormFor(matrix->type()) != made.form) made.form = IntegerForm::kInt8Parts;
    if (!is_integer && IsOfBlocks(matrix->type())) {
      Refuse(name,
             "a matrix is quantized, and the arithmetic is float32: leave --arithmetic at auto, or "
             "use --device cpu");
      return made;
    }
  }
  made.columns = PaddedColumns(outputs);
  made.outputs = is_pair ? outputs / 2 : outputs;
  const size_t bytes = is_integer ? IntegerMatrixBytes(made.form, made.inputs, made.columns)
                                  : MatrixValues(made.inputs, made.columns) * sizeof(uint16_t);
  std::vector<uint16_t> packed(bytes / sizeof(uint16_t));
  auto* const integers = reinterpret_cast<unsigned char*>(packed.data());
  bool is_exact = true;
  int first = 0;
  for (size_t i = 0; i < matrices.size(); ++i) {
    const PackedWeights& from = *matrices[i];
    const auto column_of = [=](int output) {
      return is_pair ? PairColumn(output, i == 1) : first + output;
    };
    if (is_integer) {
      ForEachOutput(from, [&](int output) {
        PackIntegers(from, output, made.form, column_of(output), integers);
      });
    } else {
      is_exact = PackBfloat16(from, column_of, made.columns, packed.data()) && is_exact;
    }
    first += static_cast<int>(from.outputs());
  }
  if (!is_exact) {
    Refuse(name,
           "a matrix has values that bfloat16 cannot represent: use a bfloat16 or quantized "
           "checkpoint, --weights q8_0 or --device cpu");
  }
  auto* to = arena_->Take<uint16_t>(packed.size());
  if (to != nullptr) device_->CopyIn(to, packed.data(), bytes);
  made.data = to;
  return made;
}

void DeviceUploader::ForEachOutput(const PackedWeights& matrix, PackOutput pack) {
  constexpr int kOutputs = 64;  // outputs that one task packs
  const int outputs = static_cast<int>(matrix.outputs());
  pool_->Run((outputs + kOutputs - 1) / kOutputs, [&](int64_t task, int) {
    const FloatMode mode;
    const int begin = static_cast<int>(task) * kOutputs;
    for (int output = begin; output < std::min(outputs, begin + kOutputs); ++output) pack(output);
  });
}

bool DeviceUploader::PackBfloat16(const PackedWeights& from,
                                  absl::FunctionRef<int(int output)> column_of, int columns,
                                  uint16_t* packed) {
  std::atomic<bool> is_exact{true};
  ForEachOutput(from, [&](int output) {
    std::vector<float> wide(static_cast<size_t>(from.inputs()));
    std::vector<uint16_t> row(wide.size());
    from.WidenOutput(output, wide.data());
    uint32_t lost = 0;
    for (size_t i = 0; i < wide.size(); ++i) {
      const uint32_t bits = exact::BitsOf(wide[i]);
      lost |= bits & 0xffff;
      row[i] = static_cast<uint16_t>(bits >> 16);
    }
    if (lost != 0) is_exact = false;
    PackColumn(row, column_of(output), columns, packed);
  });
  return is_exact;
}

void DeviceUploader::Refuse(const std::string& name, const std::string& why) {
  if (status_.ok()) status_ = absl::UnimplementedError(absl::StrCat("weights: ", name, ": ", why));
}

}  // namespace hearth
