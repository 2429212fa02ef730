// DeviceMemory: one allocation of an accelerator's memory, with copies into and out of it.
// ImportedMemory: such an allocation of another process.
//
// Implemented with the CUDA runtime (cuda_memory.h); tests implement both with host memory. Thread
// safety: one thread at a time may copy; any thread may call the other methods. Errors: after
// kUnavailable the device is lost, and every later call fails. After any other error, bytes outside
// the range of the failed call are unchanged.
#ifndef HEARTH_CACHE_STORE_BASE_DEVICE_MEMORY_H_
#define HEARTH_CACHE_STORE_BASE_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/segment_format.h"

namespace hearth {

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  // Name of the device, for log lines.
  virtual std::string name() const = 0;
  // The device address of the memory, aligned for any kernel. Do not dereference it on the host.
  virtual const std::byte* data() const = 0;
  virtual uint64_t size_bytes() const = 0;

  // Starts a copy; Wait() returns after all started copies have ended. Keep the host bytes valid
  // until Wait() returns. REQUIRES: the range lies inside the memory.
  virtual absl::Status StartCopyIn(uint64_t offset, absl::Span<const std::byte> from) = 0;
  virtual absl::Status StartCopyOut(uint64_t offset, absl::Span<std::byte> to) = 0;
  virtual absl::Status Wait() = 0;

  // Returns a handle with which another process of this host can map the memory.
  virtual absl::StatusOr<DeviceMemoryHandle> Export() = 0;
};

// Device memory of another process, mapped into this one. Thread safety: any thread.
class ImportedMemory {
 public:
  virtual ~ImportedMemory() = default;
  // Copies ranges of the other process's memory to memory of this process on the same device.
  // Returns after the copies have ended. A copy is freed with its last owner. REQUIRES: the ranges
  // lie inside the memory.
  virtual absl::StatusOr<std::vector<std::shared_ptr<const std::byte>>> Copy(
      absl::Span<const SegmentRange> ranges) = 0;
};
// Maps exported memory. kFailedPrecondition: the memory is on a different device than this process
// uses.
using ImportDevice = std::function<absl::StatusOr<std::unique_ptr<ImportedMemory>>(
    const DeviceMemoryHandle& handle)>;

// An object's copy in device memory: the object's slices back to back, in layer order. The copy
// stays in place while a DeviceRef to it exists.
struct DeviceCopy {
  const std::byte* bytes = nullptr;  // device address of the first byte
  SegmentRange range;                // position of the copy in the gpu tier's memory
};
using DeviceRef = std::shared_ptr<const DeviceCopy>;

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_DEVICE_MEMORY_H_
