#include "worker/kernels/packed_weights.h"

#include <cassert>

namespace hearth {
namespace {

// One output's weights, in a stack of matrices.
const std::byte* FindRow(absl::Span<const WeightRows> matrices, int64_t output, size_t row_bytes) {
  for (const WeightRows& matrix : matrices) {
    if (output < matrix.outputs) {
      return static_cast<const std::byte*>(matrix.data) + static_cast<size_t>(output) * row_bytes;
    }
    output -= matrix.outputs;
  }
  return nullptr;
}

// Inputs of one panel, [count][width]; `rows` are at the first of them.
template <typename Bits>
void FillPanel(const std::byte* const* rows, int64_t real, int64_t width, int64_t count,
               std::byte* panel) {
  Bits* out = reinterpret_cast<Bits*>(panel);
  for (int64_t input = 0; input < count; ++input, out += width) {
    for (int64_t i = 0; i < real; ++i) {
      std::memcpy(&out[i], rows[i] + static_cast<size_t>(input) * sizeof(Bits), sizeof(Bits));
    }
    std::fill(out + real, out + width, Bits{0});
  }
}

// Two inputs of bfloat16 are one element of 32 bits, in a row and in a panel.
void FillPanelOfPairs(const std::byte** rows, int64_t real, int64_t width, int64_t inputs,
                      std::byte* panel) {
  const int64_t pairs = inputs / 2;
  FillPanel<uint32_t>(rows, real, width, pairs, panel);
  for (int64_t i = 0; i < real; ++i) rows[i] += pairs * 4;
  FillPanel<uint16_t>(rows, real, width, inputs % 2, panel + pairs * width * 4);
}

}  // namespace

PackedWeights PackedWeights::Pack(absl::Span<const WeightRows> matrices, ElementType type,
                                  int64_t inputs, ParallelFor parallel, KernelArena* arena) {
  PackedWeights packed;
  packed.type_ = type;
  packed.inputs_ = inputs;
  for (const WeightRows& matrix : matrices) {
    assert(matrix.outputs >= 1);
    packed.outputs_ += matrix.outputs;
  }
  assert(inputs >= 1 && packed.outputs_ >= 1);
  packed.bytes_ = arena != nullptr
                      ? arena->Take(packed.bytes())
                      : std::shared_ptr<std::byte>(AllocateKernelBytes(packed.bytes()));
  const size_t element_bytes = ElementBytes(type);
  const size_t row_bytes = static_cast<size_t>(inputs) * element_bytes;
  parallel(packed.panels(), [&](int64_t panel) {
    const std::byte* rows[kPanelOutputs] = {};
    const int64_t real = packed.PanelReal(panel), width = packed.PanelWidth(panel);
    for (int64_t i = 0; i < real; ++i) {
      rows[i] = FindRow(matrices, panel * kPanelOutputs + i, row_bytes);
    }
    std::byte* out =
        packed.bytes_.get() + static_cast<size_t>(panel * kPanelOutputs * inputs) * element_bytes;
    if (type == ElementType::kBFloat16) {
      FillPanelOfPairs(rows, real, width, inputs, out);
    } else if (element_bytes == 4) {
      FillPanel<uint32_t>(rows, real, width, inputs, out);
    } else {
      FillPanel<uint16_t>(rows, real, width, inputs, out);
    }
  });
  return packed;
}

}  // namespace hearth
