// DeviceMemory: one allocation of an accelerator's memory, with copies into and out of it.
// ImportedMemory: such an allocation of another process.
//
// Implemented with CUDA (cuda_memory.h); tests implement both with host memory. Thread
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

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/segment_format.h"

namespace hearth {

// Memory that other processes of this host can map. The file descriptor belongs to the
// DeviceMemory.
struct ExportedMemory {
  DeviceMemoryHandle handle;
  int fd = -1;
};

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

  // Returns what another process of this host needs to map the memory.
  virtual absl::StatusOr<ExportedMemory> Export() = 0;
};

// Device memory of another process, mapped into this one, read only. It exists as long as any
// process maps it, even if the other process is killed. Thread safety: any thread. REQUIRES of the
// destructor: all reads have ended.
class ImportedMemory {
 public:
  virtual ~ImportedMemory() = default;
  // The device address of the memory in this process.
  virtual const std::byte* data() const = 0;
};
// Maps exported memory; the caller may then close `fd`. kFailedPrecondition: the memory is on a
// different device than this process uses. Other errors: `fd` is not memory of `handle.bytes`
// bytes.
using ImportDevice = std::function<absl::StatusOr<std::unique_ptr<ImportedMemory>>(
    const DeviceMemoryHandle& handle, int fd)>;

// An object's copy in device memory: the object's slices back to back, in layer order. The copy
// stays in place while a DeviceRef to it exists.
struct DeviceCopy {
  const std::byte* bytes = nullptr;  // device address of the first byte
  SegmentRange range;                // position of the copy in the gpu tier's memory
};
using DeviceRef = std::shared_ptr<const DeviceCopy>;

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_DEVICE_MEMORY_H_
