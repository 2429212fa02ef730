// BlockMemory: the memory of KV blocks, on the host or on a device.
//
// Thread safety: HostMemory may be used from any thread; DeviceMemory as the device.
// Errors: std::bad_alloc; DeviceError if the device has failed.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_BLOCK_MEMORY_H_
#define HEARTH_WORKER_MODEL_INVARIANT_BLOCK_MEMORY_H_

#include <cstddef>
#include <memory>
#include <stdexcept>
#include <utility>

#include "worker/device/device.h"

namespace hearth {

// The device has failed. The engine ends the request, as for any exception of a library.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class BlockMemory {
 public:
  virtual ~BlockMemory() = default;
  virtual bool is_on_device() const = 0;
  // Returns memory with undefined content, aligned to 64 bytes.
  virtual std::byte* Allocate(size_t bytes) = 0;
  virtual void Free(std::byte* memory) = 0;
  // `way`: kIn: host to block; kOut: block to host; kWithin: block to block.
  virtual void Copy(CopyWay way, std::byte* to, const std::byte* from, const CopyRuns& runs) = 0;
};

std::shared_ptr<BlockMemory> HostMemory();
// Shares ownership of the device.
std::shared_ptr<BlockMemory> DeviceMemory(std::shared_ptr<Device> device);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_BLOCK_MEMORY_H_
