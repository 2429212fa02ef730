// KvStaging: copies, for the attention of one step, of KV blocks that attention cannot read where
// they are: offloaded blocks, which are in host memory. While a layer is computed, the keys and
// values of the next such layer are copied. Only global layers are offloaded.
//
// A staged block has room for one layer in each of two buffers. Attention reads layer i of a group
// (i counts the layers of the group) at byte i * SliceBytes() of a block, as in every KV block.
// Staged blocks a, b, c lie two slices apart, so the slices of layers i and i + 1 alternate:
//
//   slice     0  1  2  3  4  5  6  7
//   layer 0   a     b     c
//   layer 1      a     b     c
//   layer 2         a     b     c       overwrites slices of layer 0 only
//
// Thread safety: none. The device must outlive the KvStaging.
#ifndef HEARTH_WORKER_DEVICE_KV_STAGING_H_
#define HEARTH_WORKER_DEVICE_KV_STAGING_H_

#include <cstddef>
#include <utility>
#include <vector>

#include "worker/device/device.h"
#include "worker/device/device_model.h"

namespace hearth {

class KvStaging {
 public:
  KvStaging(Device* device, const DeviceShape& shape) : device_(device), shape_(shape) {}
  KvStaging(const KvStaging&) = delete;
  KvStaging& operator=(const KvStaging&) = delete;
  ~KvStaging() { device_->Free(memory_); }

  size_t capacity() const { return capacity_; }  // maximum number of staged blocks
  // Removes the staged blocks of the previous step. REQUIRES: the device has ended this step.
  void Clear() { offloaded_.clear(); }
  // Increases the capacity to at least `count` blocks. Returns false if the device has too little
  // memory; the capacity is then 0. REQUIRES: no block is staged.
  bool Reserve(size_t count);
  // Stages a block in host memory. Returns its address for attention. REQUIRES: the capacity
  // suffices; `block` lives until the step has ended.
  std::byte* AddOffloaded(const std::byte* block);
  size_t blocks() const { return offloaded_.size(); }  // number of staged blocks

  // Called by DeviceStep: before the first launch of a step, and before each layer's attention.
  void BeginStep() { StartCopies(0); }
  void BeforeAttention(int layer);

 private:
  void StartCopies(int number);

  Device* const device_;
  const DeviceShape& shape_;
  void* memory_ = nullptr;
  size_t capacity_ = 0;
  std::vector<std::pair<const std::byte*, std::byte*>> offloaded_;  // host block, staged block
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_KV_STAGING_H_
