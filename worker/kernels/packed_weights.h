// PackedWeights: a matrix of weights [outputs][inputs] as the product reads it: in panels, in its
// stored bits, or as float32 or in blocks of 8 or 4 bits.
//
// A panel holds kPanelOutputs outputs, input after input: [inputs][kPanelOutputs], so that a vector
// of weights is one load and memory is read in one stream. Of bfloat16 two inputs lie side by side:
// [inputs / 2][kPanelOutputs][2], and an odd last input by itself; one load then has two vectors,
// each widened by one operation, a shift or a mask. The last panel is as wide as what is left,
// rounded up to kPanelGrain; what is added are zeros.
//
// Of a type in blocks (weight_blocks.h) a panel is [blocks of an output][bytes of a block], and
// each of these bytes is the panel's outputs side by side; a float16, of which the block's come
// first, is one element of 2 bytes. The last block of an output may have fewer inputs: what is
// behind them are zeros, which nothing reads. For integer products (integer_product.h) four of a
// block's bytes that follow one another are one element, a word of 4 bytes.
//
// Thread safety: as const. Owns its bytes, or holds its arena's; moved, never copied.
#ifndef HEARTH_WORKER_KERNELS_PACKED_WEIGHTS_H_
#define HEARTH_WORKER_KERNELS_PACKED_WEIGHTS_H_

#include <algorithm>
#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "worker/kernels/base/element.h"
#include "worker/kernels/base/kernel_memory.h"
#include "worker/kernels/base/phases.h"

namespace hearth {

// Rows of a matrix in row-major order, as a checkpoint has them. Not owned.
struct WeightRows {
  const void* data = nullptr;
  int64_t outputs = 0;
  ElementType type = ElementType::kFloat32;
};

// The form in which weights are kept. kFloat32 gives the bits of kStored, as widening is exact;
// kQ8_0 and kQ4_0 are other weights, by QuantizeRow (weight_blocks.h).
enum class WeightForm { kStored, kFloat32, kQ8_0, kQ4_0 };
const char* WeightFormName(WeightForm form);  // as --weights has it
// Raised when a quantized form may give other weights.
constexpr int kQuantizerVersion = 1;
// What weights of a type are packed as.
ElementType PackedType(ElementType type, WeightForm form);

// What a product multiplies: float32, or integers (integer_product.h).
enum class Arithmetic { kFloat32, kInt8 };
// "float32", or as the fingerprint has it: its integers, the values of a block, and its version.
const char* ArithmeticName(Arithmetic arithmetic);

class PackedWeights {
 public:
  static constexpr int64_t kPanelOutputs = 48, kPanelGrain = 16;

  PackedWeights() = default;
  PackedWeights(PackedWeights&&) = default;
  PackedWeights& operator=(PackedWeights&&) = default;

  // The matrices on top of each other (q, k and v), as `type`: those of another are widened, and
  // quantized again where `type` is of blocks.
  // In a piece of `arena`, or where that is null in memory of its own.
  // REQUIRES: inputs >= 1, whole blocks of each matrix; each has outputs >= 1; PackedType gives
  // `type` for them, or it is kFloat32. `arithmetic` is kFloat32, or the type is of blocks.
  static PackedWeights Pack(absl::Span<const WeightRows> matrices, ElementType type, int64_t inputs,
                            ParallelFor parallel, KernelArena* arena = nullptr,
                            Arithmetic arithmetic = Arithmetic::kFloat32);

  ElementType type() const { return type_; }
  Arithmetic arithmetic() const { return arithmetic_; }
  int64_t outputs() const { return outputs_; }
  int64_t inputs() const { return inputs_; }
  size_t bytes() const { return static_cast<size_t>(padded()) * OutputBytes(inputs_); }

  int64_t panels() const { return (outputs_ + kPanelOutputs - 1) / kPanelOutputs; }
  // Outputs that the panel has room for, and how many of them are real.
  int64_t PanelWidth(int64_t panel) const {
    return std::min(kPanelOutputs, padded() - panel * kPanelOutputs);
  }
  int64_t PanelReal(int64_t panel) const {
    return std::min(kPanelOutputs, outputs_ - panel * kPanelOutputs);
  }
  // Where a panel has the weight of an input and its output number n. REQUIRES: not of blocks.
  int64_t IndexInPanel(int64_t panel, int64_t input, int64_t n) const {
    const bool paired = type_ == ElementType::kBFloat16 && (input | 1) < inputs_;
    return paired ? (input & ~int64_t{1}) * PanelWidth(panel) + 2 * n + (input & 1)
                  : input * PanelWidth(panel) + n;
  }
  // A panel from one of its inputs on.
  // REQUIRES: T is the type's element; an input is the first of a block, one of kBFloat16 the first
  // of a pair.
  template <typename T>
  const T* Panel(int64_t panel, int64_t input = 0) const {
    const size_t bytes = static_cast<size_t>(panel * kPanelOutputs) * OutputBytes(inputs_) +
                         static_cast<size_t>(PanelWidth(panel)) * OutputBytes(input);
    return reinterpret_cast<const T*>(bytes_.get() + bytes);
  }
  // One output's weights as floats: inputs() of them. REQUIRES: as WidenRow (weight_blocks.h).
  void WidenOutput(int64_t output, float* to) const;
  // One output's block that begins at an input, as a file has it: kMaxBlockBytes or fewer.
  // REQUIRES: of blocks.
  static constexpr int64_t kMaxBlockBytes = 210;
  void GatherBlock(int64_t output, int64_t input, std::byte* block) const;

 private:
  // A panel from its rows, of type_; moves `rows`.
  void FillFrom(const std::byte** rows, int64_t panel);
  // Of one output: its weights of the first inputs.
  size_t OutputBytes(int64_t inputs) const { return RowBytes(type_, inputs); }
  int64_t padded() const { return (outputs_ + kPanelGrain - 1) / kPanelGrain * kPanelGrain; }

  ElementType type_ = ElementType::kFloat32;
  Arithmetic arithmetic_ = Arithmetic::kFloat32;
  int64_t outputs_ = 0, inputs_ = 0;
  std::shared_ptr<std::byte> bytes_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_PACKED_WEIGHTS_H_
