// PackedWeights: a matrix of weights [outputs][inputs] in panels, the layout that the product
// reads. The weights keep their stored bits, or are converted to float32, or to blocks of 8 or 4
// bits.
//
// A panel holds kPanelOutputs outputs: [inputs][kPanelOutputs]. So one load reads a vector of
// weights, and memory is read in one stream. A bfloat16 panel is [inputs / 2][kPanelOutputs][2],
// followed by an odd last input by itself: one load then reads two vectors, each widened by one
// operation, a shift or a mask. The last panel holds the remaining outputs, rounded up to
// kPanelGrain and padded with zeros.
//
// A panel of a block type (weight_blocks.h) is [blocks of an output][bytes of a block][outputs]: a
// block's float16 numbers come first, as elements of 2 bytes; every other element is one byte. The
// last block of an output may have fewer inputs; zeros that nothing reads fill it up. For integer
// products (integer_product.h) four consecutive bytes of a block form one element, a word of 4
// bytes.
//
// Thread safety: const use from any thread. Ownership: owns its bytes, or shares its arena's.
// Movable, not copyable.
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

// A matrix in row-major order [outputs][inputs], as a checkpoint stores it. Not owned.
struct WeightRows {
  const void* data = nullptr;
  int64_t outputs = 0;
  ElementType type = ElementType::kFloat32;
};

// The form in which weights are kept. kFloat32 gives the same bits as kStored, because widening is
// exact. kQ8_0 and kQ4_0 change the weights: they are quantized by QuantizeRow (weight_blocks.h).
enum class WeightForm { kStored, kFloat32, kQ8_0, kQ4_0 };
const char* WeightFormName(WeightForm form);  // as in --weights
// Raise this version when a quantized form may give other weights.
constexpr int kQuantizerVersion = 1;
// Returns the type as which weights of `type` are packed in `form`.
ElementType PackedType(ElementType type, WeightForm form);

// The numbers that a product multiplies: float32, or integers (integer_product.h).
enum class Arithmetic { kFloat32, kInt8 };
// Returns the name in the fingerprint: "float32", or "int8/<values of a block>/<version>".
const char* ArithmeticName(Arithmetic arithmetic);

class PackedWeights {
 public:
  static constexpr int64_t kPanelOutputs = 48, kPanelGrain = 16;

  PackedWeights() = default;
  PackedWeights(PackedWeights&&) = default;
  PackedWeights& operator=(PackedWeights&&) = default;

  // Stacks the matrices (q, k and v) into one, packed as `type`. Weights of another type are
  // widened, and quantized again if `type` is a block type. The bytes come from `arena`; if `arena`
  // is null, from memory of their own. REQUIRES: inputs >= 1, whole blocks in each matrix; outputs
  // >= 1 in each matrix; `type` is PackedType of each matrix, or kFloat32. `arithmetic` is
  // kFloat32, or `type` is a block type.
  static PackedWeights Pack(absl::Span<const WeightRows> matrices, ElementType type, int64_t inputs,
                            ParallelFor parallel, KernelArena* arena = nullptr,
                            Arithmetic arithmetic = Arithmetic::kFloat32);

  ElementType type() const { return type_; }
  Arithmetic arithmetic() const { return arithmetic_; }
  int64_t outputs() const { return outputs_; }
  int64_t inputs() const { return inputs_; }
  size_t bytes() const { return static_cast<size_t>(padded()) * OutputBytes(inputs_); }

  int64_t panels() const { return (outputs_ + kPanelOutputs - 1) / kPanelOutputs; }
  // Outputs of a panel: with padding (Width), and without (Real).
  int64_t PanelWidth(int64_t panel) const {
    return std::min(kPanelOutputs, padded() - panel * kPanelOutputs);
  }
  int64_t PanelReal(int64_t panel) const {
    return std::min(kPanelOutputs, outputs_ - panel * kPanelOutputs);
  }
  // Index in a panel of the weight of `input` and output number n. REQUIRES: not a block type.
  int64_t IndexInPanel(int64_t panel, int64_t input, int64_t n) const {
    const bool paired = type_ == ElementType::kBFloat16 && (input | 1) < inputs_;
    return paired ? (input & ~int64_t{1}) * PanelWidth(panel) + 2 * n + (input & 1)
                  : input * PanelWidth(panel) + n;
  }
  // Returns a panel from `input` on. REQUIRES: T is the element of type(); `input` is the first of
  // a block, and for kBFloat16 the first of a pair.
  template <typename T>
  const T* Panel(int64_t panel, int64_t input = 0) const {
    const size_t bytes = static_cast<size_t>(panel * kPanelOutputs) * OutputBytes(inputs_) +
                         static_cast<size_t>(PanelWidth(panel)) * OutputBytes(input);
    return reinterpret_cast<const T*>(bytes_.get() + bytes);
  }
  // Writes one output's weights as floats: [inputs()]. REQUIRES: as WidenRow (weight_blocks.h).
  void WidenOutput(int64_t output, float* to) const;
  // Writes the block of one output that begins at `input`, as a file stores it: at most
  // kMaxBlockBytes. REQUIRES: a block type.
  static constexpr int64_t kMaxBlockBytes = 210;
  void GatherBlock(int64_t output, int64_t input, std::byte* block) const;

 private:
  // Fills a panel from its rows, which have type_. Advances the pointers in `rows`.
  void FillFrom(const std::byte** rows, int64_t panel);
  // Bytes of the first `inputs` weights of one output.
  size_t OutputBytes(int64_t inputs) const { return RowBytes(type_, inputs); }
  int64_t padded() const { return (outputs_ + kPanelGrain - 1) / kPanelGrain * kPanelGrain; }

  ElementType type_ = ElementType::kFloat32;
  Arithmetic arithmetic_ = Arithmetic::kFloat32;
  int64_t outputs_ = 0, inputs_ = 0;
  std::shared_ptr<std::byte> bytes_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_PACKED_WEIGHTS_H_
