// The device-memory seam: one allocation of an accelerator's memory, and copies into and out of it.
//
// Implemented with the CUDA runtime (cuda_memory.h); tests implement it with host memory. Thread
// safety: one thread at a time may copy; any thread may call the rest. Errors: kUnavailable means
// that the device is lost and that every later call fails. After any other error only this call
// failed, and bytes outside its range are unchanged.
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

  // Name of the device, for people.
  virtual std::string name() const = 0;
  // A device address, aligned for any kernel. Do not dereference it on the host.
  virtual const std::byte* data() const = 0;
  virtual uint64_t size_bytes() const = 0;

  // Starts a copy. Copies start in the order of the calls and have ended when Wait() returns; the
  // host bytes must stay valid until then. REQUIRES: the range lies inside the memory.
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
  // Copies the ranges to memory of this process on the same device, and returns after the copies
  // have ended. Each copy is freed with its last owner. REQUIRES: the ranges lie inside the memory.
  virtual absl::StatusOr<std::vector<std::shared_ptr<const std::byte>>> Copy(
      absl::Span<const SegmentRange> ranges) = 0;
};
// kFailedPrecondition: the memory is on another device than this process uses.
using ImportDevice = std::function<absl::StatusOr<std::unique_ptr<ImportedMemory>>(
    const DeviceMemoryHandle& handle)>;

// An object's copy in device memory, as readers hold it: the object's slices back to back, in layer
// order. While a DeviceRef lives, the copy stays in place.
struct DeviceCopy {
  const std::byte* bytes = nullptr;  // the device's address
  SegmentRange range;                // in the tier's memory
};
using DeviceRef = std::shared_ptr<const DeviceCopy>;

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_DEVICE_MEMORY_H_
