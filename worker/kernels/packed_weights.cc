#include "worker/kernels/packed_weights.h"

#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "worker/kernels/float_mode.h"

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

void WidenTo(const std::byte* row, ElementType type, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    if (type == ElementType::kFloat32) {
      std::memcpy(&to[i], row + i * 4, 4);
      continue;
    }
    uint16_t bits;
    std::memcpy(&bits, row + i * 2, 2);
    to[i] = type == ElementType::kBFloat16 ? WidenOne(BFloat16{bits}) : WidenOne(Float16{bits});
  }
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
void FillPanelOfGroups(const std::vector<float>& rows, int64_t real, int64_t width, int64_t inputs,
                       std::byte* panel) {
  constexpr int64_t kGroup = PackedWeights::kGroupInputs;
  for (int64_t begin = 0; begin < inputs; begin += kGroup) {
    const int64_t count = std::min(kGroup, inputs - begin);
    std::memset(panel, 0, static_cast<size_t>(width * (count + 4)));
    std::byte* scales = panel + width * count;
    for (int64_t n = 0; n < real; ++n) {
      const float* row = rows.data() + n * inputs + begin;
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
    WidenTo(weights + IndexInPanel(panel, input, n) * bytes, type_, 1, to + input);
  }
}

PackedWeights PackedWeights::Pack(absl::Span<const WeightRows> matrices, ElementType type,
                                  int64_t inputs, ParallelFor parallel, KernelArena* arena,
                                  WeightForm form) {
  PackedWeights packed;
  packed.type_ = form == WeightForm::kFloat32 ? ElementType::kFloat32
                 : form == WeightForm::kInt8  ? ElementType::kInt8
                                              : type;
  packed.inputs_ = inputs;
  for (const WeightRows& matrix : matrices) {
    assert(matrix.outputs >= 1);
    packed.outputs_ += matrix.outputs;
  }
  assert(inputs >= 1 && packed.outputs_ >= 1);
  packed.bytes_ = arena != nullptr
                      ? arena->Take(packed.bytes())
                      : std::shared_ptr<std::byte>(AllocateKernelBytes(packed.bytes()));
  const size_t row_bytes = static_cast<size_t>(inputs) * ElementBytes(type);
  parallel(packed.panels(), [&](int64_t panel) {
    const FloatMode mode;
    const std::byte* rows[kPanelOutputs] = {};
    const int64_t real = packed.PanelReal(panel);
    for (int64_t i = 0; i < real; ++i) {
      rows[i] = FindRow(matrices, panel * kPanelOutputs + i, row_bytes);
    }
    packed.FillFrom(rows, type, panel);
  });
  return packed;
}

void PackedWeights::FillFrom(const std::byte** rows, ElementType type, int64_t panel) {
  const int64_t real = PanelReal(panel), width = PanelWidth(panel);
  std::byte* out = const_cast<std::byte*>(Panel<std::byte>(panel));
  std::vector<float> widened;
  if (type_ != type) {
    widened.resize(static_cast<size_t>(real * inputs_));
    for (int64_t i = 0; i < real; ++i) {
      float* row = widened.data() + i * inputs_;
      WidenTo(rows[i], type, inputs_, row);
      rows[i] = reinterpret_cast<const std::byte*>(row);
    }
  }
  switch (type_) {
    case ElementType::kInt8:
      return FillPanelOfGroups(widened, real, width, inputs_, out);
    case ElementType::kBFloat16:
      return FillPanelOfPairs(rows, real, width, inputs_, out);
    case ElementType::kFloat32:
      return FillPanel<uint32_t>(rows, real, width, inputs_, out);
    case ElementType::kFloat16:
      return FillPanel<uint16_t>(rows, real, width, inputs_, out);
  }
}

}  // namespace hearth
