// BlockMemory: allocates and copies the memory of KV blocks, in host or device memory.
//
// Thread safety: HostMemory may be used from any thread; the others by one thread at a time.
// Errors: throws std::bad_alloc, or DeviceError if the device has failed.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_BLOCK_MEMORY_H_
#define HEARTH_WORKER_MODEL_INVARIANT_BLOCK_MEMORY_H_

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <utility>

#include "worker/device/device.h"

namespace hearth {

// Thrown if the device has failed. The engine ends the request, as for any library exception.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class BlockMemory {
 public:
  virtual ~BlockMemory() = default;
  bool is_on_device() const { return device() != nullptr; }
  // Returns the device whose memory this is; null for host memory.
  virtual std::shared_ptr<Device> device() const { return nullptr; }
  // Allocates memory with undefined content, aligned to 64 bytes.
  virtual std::byte* Allocate(size_t bytes) = 0;
  virtual void Free(std::byte* memory) = 0;
  // `way`: kIn copies from host memory to a block, kOut from a block to host memory, kWithin from
  // block to block.
  virtual void Copy(CopyWay way, std::byte* to, const std::byte* from, const CopyRuns& runs) = 0;
};

std::shared_ptr<BlockMemory> HostMemory();
// Host memory that the device's copies reach fast (pinned memory).
std::shared_ptr<BlockMemory> PinnedMemory(std::shared_ptr<Device> device);
// The returned BlockMemory shares ownership of the device.
std::shared_ptr<BlockMemory> DeviceMemory(std::shared_ptr<Device> device);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_BLOCK_MEMORY_H_
