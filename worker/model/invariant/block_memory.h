// BlockMemory: where the blocks of keys and values lie: in the host's memory, or in a device's.
//
// Thread safety: HostMemory from any thread; DeviceMemory as the device.
// Errors: std::bad_alloc; of a device that failed, DeviceError.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_BLOCK_MEMORY_H_
#define HEARTH_WORKER_MODEL_INVARIANT_BLOCK_MEMORY_H_

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <utility>

#include "worker/device/device.h"

namespace hearth {

// Use of a device that failed: the engine ends the request, as it does for a library
// that throws.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class BlockMemory {
 public:
  virtual ~BlockMemory() = default;
  virtual bool is_on_device() const = 0;
  // Of undefined content, aligned to 64 bytes.
  virtual std::byte* Allocate(size_t bytes) = 0;
  virtual void Free(std::byte* memory) = 0;
  // `way`: as seen from the blocks: kIn to a block, kOut of one, kWithin from block to block.
  virtual void Copy(CopyWay way, std::byte* to, const std::byte* from, const CopyRuns& runs) = 0;
};

std::shared_ptr<BlockMemory> HostMemory();
// Owns a share of the device.
std::shared_ptr<BlockMemory> DeviceMemory(std::shared_ptr<Device> device);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_BLOCK_MEMORY_H_
