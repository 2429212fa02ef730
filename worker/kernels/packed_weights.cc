#include "worker/kernels/packed_weights.h"

#include <cassert>
#include <cstring>
#include <vector>

#include "worker/kernels/float_mode.h"
#include "worker/kernels/quantized/weight_blocks.h"

namespace hearth {
namespace {

constexpr int64_t kMaxBlockValues = 256;

// Returns the weights of one output of the stacked matrices as `type`. If the matrix has another
// type, the weights are converted into `made`.
const std::byte* RowAs(ElementType type, absl::Span<const WeightRows> matrices, int64_t output,
                       int64_t inputs, std::vector<std::byte>* made) {
  auto matrix = matrices.begin();
  for (; output >= matrix->outputs; ++matrix) output -= matrix->outputs;
  const auto* row = static_cast<const std::byte*>(matrix->data) +
                    static_cast<size_t>(output) * RowBytes(matrix->type, inputs);
  if (matrix->type == type) return row;
  std::vector<float> wide(static_cast<size_t>(inputs));
  WidenRow(matrix->type, row, inputs, wide.data());
  made->resize(RowBytes(type, inputs));
  if (type == ElementType::kFloat32) {
    std::memcpy(made->data(), wide.data(), made->size());
  } else {
    QuantizeRow(type, wide.data(), inputs, made->data());
  }
  return made->data();
}

// Writes `count` inputs of one panel: [count][width]. rows[i]: address of output i's first input.
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

// Packs bfloat16 weights; two adjacent inputs of an output form one 32-bit element.
void FillPanelOfPairs(const std::byte** rows, int64_t real, int64_t width, int64_t inputs,
                      std::byte* panel) {
  const int64_t pairs = inputs / 2;
  FillPanel<uint32_t>(rows, real, width, pairs, panel);
  for (int64_t i = 0; i < real; ++i) rows[i] += pairs * 4;
  FillPanel<uint16_t>(rows, real, width, inputs % 2, panel + pairs * width * 4);
}

// Packs quantized blocks: first the float16 numbers of each block, then its remaining bytes as
// elements of one byte (uint8_t) or four bytes (uint32_t).
template <typename Element>
void FillPanelOfBlocks(ElementType type, const std::byte** rows, int64_t real, int64_t width,
                       int64_t blocks, std::byte* panel) {
  const int64_t bytes = static_cast<int64_t>(FormOf(type).bytes);
  const BlockHalves halves = HalvesOf(type);
  const int64_t others_at = halves.at == 0 ? 2 * halves.count : 0;
  const int64_t others = bytes - 2 * halves.count;
  for (int64_t block = 0; block < blocks; ++block, panel += bytes * width) {
    for (int64_t i = 0; i < real; ++i) rows[i] += halves.at;
    FillPanel<uint16_t>(rows, real, width, halves.count, panel);
    for (int64_t i = 0; i < real; ++i) rows[i] += others_at - halves.at;
    FillPanel<Element>(rows, real, width, others / static_cast<int64_t>(sizeof(Element)),
                       panel + 2 * halves.count * width);
    for (int64_t i = 0; i < real; ++i) rows[i] += bytes - others_at;
  }
}

}  // namespace

const char* WeightFormName(WeightForm form) {
  constexpr const char* kNames[] = {"stored", "float32", "q8_0", "q4_0"};
  return kNames[static_cast<int>(form)];
}

const char* ArithmeticName(Arithmetic arithmetic) {
  constexpr const char* kNames[] = {"float32", "int8/32/1", "bf16/16/2"};
  return kNames[static_cast<int>(arithmetic)];
}

void PackedWeights::WidenOutput(int64_t output, float* to) const {
  assert(output >= 0 && output < outputs_);
  const int64_t panel = output / kPanelOutputs, n = output % kPanelOutputs;
  if (IsOfBlocks(type_)) {
    const int64_t values = FormOf(type_).values;
    std::byte block[kMaxBlockBytes];
    float wide[kMaxBlockValues];
    for (int64_t input = 0; input < inputs_; input += values) {
      GatherBlock(output, input, block);
      WidenRow(type_, block, values, wide);
      std::copy_n(wide, std::min(values, inputs_ - input), to + input);
    }
    return;
  }
  const auto* weights = Panel<std::byte>(panel);
  const int64_t bytes = static_cast<int64_t>(ElementBytes(type_));
  for (int64_t input = 0; input < inputs_; ++input) {
    WidenRow(type_, weights + IndexInPanel(panel, input, n) * bytes, 1, to + input);
  }
}

void PackedWeights::GatherBlock(int64_t output, int64_t input, std::byte* block) const {
  const int64_t n = output % kPanelOutputs, width = PanelWidth(output / kPanelOutputs);
  const std::byte* panel = Panel<std::byte>(output / kPanelOutputs, input);
  const int64_t bytes = static_cast<int64_t>(FormOf(type_).bytes);
  const int64_t together = arithmetic_ == Arithmetic::kInt8 ? 4 : 1;
  const BlockHalves halves = HalvesOf(type_);
  std::memcpy(block + halves.at, panel + 2 * n, 2);
  if (halves.count > 1) std::memcpy(block + halves.at + 2, panel + 2 * (width + n), 2);
  panel += 2 * halves.count * width + n * together;
  std::byte* others = block + (halves.at == 0 ? 2 * halves.count : 0);
  for (int64_t i = 0; i < bytes - 2 * halves.count; ++i) {
    others[i] = panel[i / together * together * width + i % together];
  }
}

ElementType PackedType(ElementType type, WeightForm form) {
  const ElementType types[] = {type, ElementType::kFloat32, ElementType::kQ8_0, ElementType::kQ4_0};
  return types[static_cast<int>(form)];
}

PackedWeights PackedWeights::Pack(absl::Span<const WeightRows> matrices, ElementType type,
                                  int64_t inputs, ParallelFor parallel, KernelArena* arena,
                                  Arithmetic arithmetic) {
  assert(arithmetic == Arithmetic::kFloat32 ||
         (arithmetic == Arithmetic::kInt8 ? IsOfBlocks(type) : type == ElementType::kBFloat16));
  PackedWeights packed;
  packed.type_ = type;
  packed.arithmetic_ = arithmetic;
  packed.inputs_ = inputs;
  for (const WeightRows& matrix : matrices) {
    assert(matrix.outputs >= 1);
    packed.outputs_ += matrix.outputs;
  }
  assert(inputs >= 1 && packed.outputs_ >= 1);
  packed.bytes_ = arena != nullptr
                      ? arena->Take(packed.bytes())
                      : std::shared_ptr<std::byte>(AllocateKernelBytes(packed.bytes()));
  parallel(packed.panels(), [&](int64_t panel) {
    const FloatMode mode;
    const std::byte* rows[kPanelOutputs] = {};
    std::vector<std::byte> made[kPanelOutputs];
    for (int64_t i = 0; i < packed.PanelReal(panel); ++i) {
      rows[i] = RowAs(type, matrices, panel * kPanelOutputs + i, inputs, &made[i]);
    }
    packed.FillFrom(rows, panel);
  });
  return packed;
}

void PackedWeights::FillFrom(const std::byte** rows, int64_t panel) {
  const int64_t real = PanelReal(panel), width = PanelWidth(panel);
  std::byte* out = const_cast<std::byte*>(Panel<std::byte>(panel));
  switch (type_) {
    case ElementType::kBFloat16:
      return FillPanelOfPairs(rows, real, width, inputs_, out);
    case ElementType::kFloat32:
      return FillPanel<uint32_t>(rows, real, width, inputs_, out);
    case ElementType::kFloat16:
      return FillPanel<uint16_t>(rows, real, width, inputs_, out);
    default: {
      const size_t blocks = RowBytes(type_, inputs_) / FormOf(type_).bytes;
      const auto fill = arithmetic_ == Arithmetic::kInt8 ? FillPanelOfBlocks<uint32_t>
                                                         : FillPanelOfBlocks<uint8_t>;
      return fill(type_, rows, real, width, static_cast<int64_t>(blocks), out);
    }
  }
}

}  // namespace hearth
