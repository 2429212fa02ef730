#include "worker/kernels/packed_weights.h"

#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "worker/kernels/float_mode.h"
#include "worker/kernels/quantized/weight_blocks.h"

namespace hearth {
namespace {

// One output's weights, in a stack of matrices, as `type`; where they are of another, widened into
// `wide`.
const std::byte* RowAs(ElementType type, absl::Span<const WeightRows> matrices, int64_t output,
                       int64_t inputs, std::vector<float>* wide) {
  auto matrix = matrices.begin();
  for (; output >= matrix->outputs; ++matrix) output -= matrix->outputs;
  const auto* row = static_cast<const std::byte*>(matrix->data) +
                    static_cast<size_t>(output) * RowBytes(matrix->type, inputs);
  if (matrix->type == type) return row;
  wide->resize(static_cast<size_t>(inputs));
  WidenRow(matrix->type, row, inputs, wide->data());
  return reinterpret_cast<const std::byte*>(wide->data());
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

// One group of one output: what each value is a multiple of.
float ScaleOf(const float* weights, int64_t count) {
  float most = 0;
  bool is_finite = true;
  for (int64_t i = 0; i < count; ++i) {
    is_finite &= std::isfinite(weights[i]);
    most = std::max(most, std::abs(weights[i]));
  }
  if (!is_finite) return std::numeric_limits<float>::quiet_NaN();
  return most < PackedWeights::kLeastMagnitude ? 0.0f : most / 127;
}

int8_t NearestMultiple(float weight, float scale) {
  if (!(scale > 0)) return 0;  // NaN, too
  // The nearest integer, as the sum has no room for fractions.
  constexpr float kNoFractions = 12582912.0f;
  const float nearest = (weight / scale + kNoFractions) - kNoFractions;
  return static_cast<int8_t>(nearest);
}

// Rows of floats, [real][inputs], as a panel of groups.
void FillPanelOfGroups(const std::byte* const* rows, int64_t real, int64_t width, int64_t inputs,
                       std::byte* panel) {
  constexpr int64_t kGroup = PackedWeights::kGroupInputs;
  for (int64_t begin = 0; begin < inputs; begin += kGroup) {
    const int64_t count = std::min(kGroup, inputs - begin);
    std::memset(panel, 0, static_cast<size_t>(width * (count + 4)));
    std::byte* scales = panel + width * count;
    for (int64_t n = 0; n < real; ++n) {
      const float* row = reinterpret_cast<const float*>(rows[n]) + begin;
      const float scale = ScaleOf(row, count);
      std::memcpy(scales + n * 4, &scale, 4);
      for (int64_t i = 0; i < count; ++i) {
        panel[i * width + n] = static_cast<std::byte>(NearestMultiple(row[i], scale));
      }
    }
    panel = scales + width * 4;
  }
}

}  // namespace

const char* WeightFormName(WeightForm form) {
  return form == WeightForm::kFloat32 ? "float32" : form == WeightForm::kInt8 ? "int8" : "stored";
}

float PackedWeights::Scale(int64_t panel, int64_t input, int64_t n) const {
  const int64_t begin = input / kGroupInputs * kGroupInputs;
  const int64_t count = std::min(kGroupInputs, inputs_ - begin);
  float scale;
  std::memcpy(&scale, Panel<std::byte>(panel, begin) + PanelWidth(panel) * count + n * 4, 4);
  return scale;
}

void PackedWeights::WidenOutput(int64_t output, float* to) const {
  assert(type_ != ElementType::kInt8 && output >= 0 && output < outputs_);
  const int64_t panel = output / kPanelOutputs, n = output % kPanelOutputs;
  const auto* weights = Panel<std::byte>(panel);
  const int64_t bytes = static_cast<int64_t>(ElementBytes(type_));
  for (int64_t input = 0; input < inputs_; ++input) {
    WidenRow(type_, weights + IndexInPanel(panel, input, n) * bytes, 1, to + input);
  }
}

ElementType PackedType(absl::Span<const ElementType> types, WeightForm form) {
  if (form == WeightForm::kInt8) return ElementType::kInt8;
  const bool is_one = std::count(types.begin(), types.end(), types[0]) == int64_t(types.size());
  return form == WeightForm::kStored && is_one && !IsOfBlocks(types[0]) ? types[0]
                                                                        : ElementType::kFloat32;
}

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
  const ElementType from = type == ElementType::kInt8 ? ElementType::kFloat32 : type;
  parallel(packed.panels(), [&](int64_t panel) {
    const FloatMode mode;
    const std::byte* rows[kPanelOutputs] = {};
    std::vector<float> wide[kPanelOutputs];
    for (int64_t i = 0; i < packed.PanelReal(panel); ++i) {
      rows[i] = RowAs(from, matrices, panel * kPanelOutputs + i, inputs, &wide[i]);
    }
    packed.FillFrom(rows, panel);
  });
  return packed;
}

void PackedWeights::FillFrom(const std::byte** rows, int64_t panel) {
  const int64_t real = PanelReal(panel), width = PanelWidth(panel);
  std::byte* out = const_cast<std::byte*>(Panel<std::byte>(panel));
  switch (type_) {
    case ElementType::kInt8:
      return FillPanelOfGroups(rows, real, width, inputs_, out);
    case ElementType::kBFloat16:
      return FillPanelOfPairs(rows, real, width, inputs_, out);
    case ElementType::kFloat32:
      return FillPanel<uint32_t>(rows, real, width, inputs_, out);
    case ElementType::kFloat16:
      return FillPanel<uint16_t>(rows, real, width, inputs_, out);
    default:
      assert(false);
  }
}

}  // namespace hearth
