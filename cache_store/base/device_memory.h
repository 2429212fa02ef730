// The device-memory seam: one allocation of an accelerator's memory, and copies into and out of it.
//
// Implemented over the CUDA runtime (cuda_memory.h); tests put host memory behind it.
// Thread safety: copies by one thread at a time, everything else by any.
// Errors: kUnavailable: the device is lost, and nothing of it works any more. Any other: this call
// failed, and bytes outside its range are what they were.
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

  // For people: which device this is.
  virtual std::string name() const = 0;
  // An address of the device, not to be dereferenced on the host; aligned for any kernel.
  virtual const std::byte* data() const = 0;
  virtual uint64_t size_bytes() const = 0;

  // Copies begin in the order of the calls and are over at the latest when Wait returns; until then
  // the host's bytes must stay. REQUIRES: the range lies inside.
  virtual absl::Status StartCopyIn(uint64_t offset, absl::Span<const std::byte> from) = 0;
  virtual absl::Status StartCopyOut(uint64_t offset, absl::Span<std::byte> to) = 0;
  virtual absl::Status Wait() = 0;

  // A handle by which another process of this host maps the memory.
  virtual absl::StatusOr<DeviceMemoryHandle> Export() = 0;
};

// Device memory of another process, mapped into this one. Thread safety: any thread.
class ImportedMemory {
 public:
  virtual ~ImportedMemory() = default;
  // Copies the ranges to memory of this process on the same device, each given back with its last
  // owner; the copies are over when this returns. REQUIRES: the ranges lie inside.
  virtual absl::StatusOr<std::vector<std::shared_ptr<const std::byte>>> Copy(
      absl::Span<const SegmentRange> ranges) = 0;
};
// kFailedPrecondition: it is not this process's device.
using ImportDevice = std::function<absl::StatusOr<std::unique_ptr<ImportedMemory>>(
    const DeviceMemoryHandle& handle)>;

// An object's copy in a device's memory, as readers hold it: its slices, back to back in order of
// their layers. A DeviceRef keeps the copy where it is for as long as it lives.
struct DeviceCopy {
  const std::byte* bytes = nullptr;  // the device's address
  SegmentRange range;                // in the tier's memory
};
using DeviceRef = std::shared_ptr<const DeviceCopy>;

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_DEVICE_MEMORY_H_
