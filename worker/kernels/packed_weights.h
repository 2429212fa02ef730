// PackedWeights: a weight matrix [outputs][inputs], packed into panels for the product kernels. The
// weights keep their stored bits, or are converted to float32, or quantized to blocks of 8 or 4
// bits.
//
// A panel holds kPanelOutputs outputs: [inputs][kPanelOutputs]. So one load reads a vector of
// weights, and memory is read as one stream. A bfloat16 panel is [inputs / 2][kPanelOutputs][2]:
// one load reads two vectors, and a shift or a mask widens each of them. If the number of inputs is
// odd, the last input follows as [kPanelOutputs]. The last panel holds the remaining outputs,
// padded with zeros to a multiple of kPanelGrain.
//
// A panel of a block type (weight_blocks.h) is [blocks of an output][bytes of a block][outputs]. In
// each block the float16 numbers come first, as elements of 2 bytes; every other element is one
// byte. If the last block of an output has fewer inputs, it is padded with zeros that nothing
// reads. For integer products (integer_product.h), four consecutive bytes of a block form one
// element of 4 bytes.
//
// Thread safety: const methods may be called from any thread. Ownership: the object owns its bytes,
// or shares ownership of its arena's memory. Movable, not copyable.
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

// A matrix [outputs][inputs] in row-major order, as a checkpoint stores it; the memory is not
// owned.
struct WeightRows {
  const void* data = nullptr;
  int64_t outputs = 0;
  ElementType type = ElementType::kFloat32;
};

// Form of the weights in memory (--weights). kFloat32 gives the same bits as kStored, because
// widening is exact. kQ8_0 and kQ4_0 change the weights: QuantizeRow (weight_blocks.h) quantizes
// them.
enum class WeightForm { kStored, kFloat32, kQ8_0, kQ4_0 };
const char* WeightFormName(WeightForm form);  // the value of --weights
// Increment this version whenever quantization may give different weights.
constexpr int kQuantizerVersion = 1;
// Returns the element type to which weights of `type` are packed if the form is `form`.
ElementType PackedType(ElementType type, WeightForm form);

// Number format in which a product is computed: float32, integers (integer_product.h), or bfloat16
// as tensor cores compute it (bf16_product.h).
enum class Arithmetic { kFloat32, kInt8, kBFloat16 };
// Returns the arithmetic's name in the model fingerprint: "float32", or "<numbers>/<values of a
// step>/<version>".
const char* ArithmeticName(Arithmetic arithmetic);

class PackedWeights {
 public:
  static constexpr int64_t kPanelOutputs = 48, kPanelGrain = 16;

  PackedWeights() = default;
  PackedWeights(PackedWeights&&) = default;
  PackedWeights& operator=(PackedWeights&&) = default;

  // Stacks the matrices (such as q, k and v) into one matrix, packed as `type`. Weights of another
  // type are widened, and quantized if `type` is a block type. The bytes are allocated from
  // `arena`, or separately if `arena` is null. REQUIRES: inputs >= 1, and whole blocks in each
  // matrix; outputs >= 1 in each matrix; `type` is PackedType of each matrix, or kFloat32;
  // `arithmetic` is kFloat32, or kInt8 with a block type, or kBFloat16 with type kBFloat16.
  static PackedWeights Pack(absl::Span<const WeightRows> matrices, ElementType type, int64_t inputs,
                            ParallelFor parallel, KernelArena* arena = nullptr,
                            Arithmetic arithmetic = Arithmetic::kFloat32);

  ElementType type() const { return type_; }
  Arithmetic arithmetic() const { return arithmetic_; }
  int64_t outputs() const { return outputs_; }
  int64_t inputs() const { return inputs_; }
  size_t bytes() const { return static_cast<size_t>(padded()) * OutputBytes(inputs_); }

  int64_t panels() const { return (outputs_ + kPanelOutputs - 1) / kPanelOutputs; }
  // Number of outputs of a panel: PanelWidth with padding, PanelReal without padding.
  int64_t PanelWidth(int64_t panel) const {
    return std::min(kPanelOutputs, padded() - panel * kPanelOutputs);
  }
  int64_t PanelReal(int64_t panel) const {
    return std::min(kPanelOutputs, outputs_ - panel * kPanelOutputs);
  }
  // Returns the index in a panel of the weight of `input` for the panel's output n. REQUIRES:
  // type() is not a block type.
  int64_t IndexInPanel(int64_t panel, int64_t input, int64_t n) const {
    const bool paired = type_ == ElementType::kBFloat16 && (input | 1) < inputs_;
    return paired ? (input & ~int64_t{1}) * PanelWidth(panel) + 2 * n + (input & 1)
                  : input * PanelWidth(panel) + n;
  }
  // Returns the address of a panel's weights for `input`. REQUIRES: T is the element type of
  // type(); `input` is the first input of a block, or for kBFloat16 the first of a pair.
  template <typename T>
  const T* Panel(int64_t panel, int64_t input = 0) const {
    const size_t bytes = static_cast<size_t>(panel * kPanelOutputs) * OutputBytes(inputs_) +
                         static_cast<size_t>(PanelWidth(panel)) * OutputBytes(input);
    return reinterpret_cast<const T*>(bytes_.get() + bytes);
  }
  // Writes one output's weights as floats: [inputs()]. REQUIRES: the mode that float_mode.h sets.
  void WidenOutput(int64_t output, float* to) const;
  // Copies a quantized block of weights to `block`, in the layout of a GGUF file: the block of row
  // `output` whose first column is `input`. Writes at most kMaxBlockBytes bytes. REQUIRES: type()
  // is a block type.
  static constexpr int64_t kMaxBlockBytes = 210;
  void GatherBlock(int64_t output, int64_t input, std::byte* block) const;

 private:
  // Fills a panel from `rows`, which have the type type_. Advances the pointers in `rows`.
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
