// KvStaging: copies, for the attention of one step, of KV blocks that attention cannot read where
// they are: offloaded blocks, which are in host memory, and quantized blocks. While a layer is
// computed, the offloaded keys and values of the next such layer are copied. Only global layers are
// offloaded. Quantized blocks are dequantized before each layer's attention. Attention reads all
// blocks of a step in the same element type. If quantized blocks become float32 although KV blocks
// are bfloat16, the block that the rows are written to is therefore staged too.
//
// A staged block has room for one layer in each of two buffers. Attention reads layer i of a group
// (i counts the layers of the group) at byte i * StagedSliceBytes() of a block, as in every KV
// block. Staged blocks a, b, c lie two slices apart, so the slices of layers i and i + 1 alternate:
//
//   slice     0  1  2  3  4  5  6  7
//   layer 0   a     b     c
//   layer 1      a     b     c
//   layer 2         a     b     c       overwrites slices of layer 0 only
//
// Thread safety: none. The device must outlive the KvStaging.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_KV_STAGING_H_
#define HEARTH_WORKER_MODEL_INVARIANT_KV_STAGING_H_

#include <array>
#include <cassert>
#include <cstddef>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "worker/device/attend_programs.h"
#include "worker/device/device.h"
#include "worker/device/device_model.h"

namespace hearth {

class KvStaging {
 public:
  using Counts = std::array<size_t, 2>;  // numbers of blocks: [0] local layers, [1] global layers

  // `widens`: the KV blocks are bfloat16, and staged blocks float32; then no block may be
  // offloaded.
  KvStaging(Device* device, const DeviceShape& shape, bool widens)
      : device_(device), shape_(shape), widens_(widens) {
    assert(shape.kv_is_bf16 || !widens);
  }
  KvStaging(const KvStaging&) = delete;
  KvStaging& operator=(const KvStaging&) = delete;
  ~KvStaging();

  // Returns whether `more` blocks can be staged in addition.
  bool Fits(const Counts& more) const;
  // Makes room for `counts` blocks. Returns false if the device has too little memory. REQUIRES: no
  // block is staged.
  bool Reserve(const Counts& counts);
  // Frees all memory. REQUIRES: no block is staged.
  void Release();
  // Stages a block; the same block only once. Returns its address for attention. `quantized.plain`
  // is unused. REQUIRES: the block fits, and lives until the step has ended.
  std::byte* AddOffloaded(const std::byte* block);
  std::byte* AddQuantized(bool is_global, QuantizedBlock quantized);
  // Stages a block to which the step writes rows. REQUIRES: widens.
  std::byte* AddWidened(bool is_global, const std::byte* block);
  // Makes the step quantize a block that it completes.
  void AddCompleted(bool is_global, const QuantizedBlock& block);
  // Removes all blocks. The next step may be launched while the device still computes.
  void Clear();
  bool is_empty() const;

  // Call before the step, and before the attention of each layer (DeviceStep::Run).
  void BeginStep() { StartCopies(0); }
  void BeforeAttention(int layer);

 private:
  struct Area {
    void* memory = nullptr;
    size_t capacity = 0;                            // maximum number of staged blocks
    std::map<const std::byte*, std::byte*> staged;  // block -> staged block
    std::vector<QuantizedBlock> quantized, completed;
    std::vector<WidenKvProgram::Pair> widened;
  };
  // Returns the staged block for `block`, and whether it is new.
  std::pair<std::byte*, bool> Stage(bool is_global, const std::byte* block);
  void StartCopies(int number);
  template <class Quantizer>
  void LaunchAll(absl::Span<const QuantizedBlock> blocks, int number);
  void LaunchWidening(absl::Span<const WidenKvProgram::Pair> pairs, int number);
  size_t StagedSliceBytes() const {
    return static_cast<size_t>(shape_.SliceBytes()) * (widens_ ? 2 : 1);
  }

  Device* const device_;
  const DeviceShape& shape_;
  const bool widens_;
  Area areas_[2];  // [0]: local layers, [1]: global layers
  std::vector<std::pair<const std::byte*, std::byte*>> offloaded_;  // host block, staged block
  std::shared_ptr<DeviceEvent> copied_;  // end of the copies of the next global layer
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_KV_STAGING_H_
