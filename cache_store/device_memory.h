// The device-memory seam: one allocation of an accelerator's memory, and copies into and out of it.
//
// Implemented over the CUDA runtime (cuda_memory.h); tests put host memory behind it.
// Thread safety: copies by one thread at a time, everything else by any.
// Errors: kUnavailable: the device is lost, and nothing of it works any more. Any other: this call
// failed, and bytes outside its range are what they were.
#ifndef HEARTH_CACHE_STORE_DEVICE_MEMORY_H_
#define HEARTH_CACHE_STORE_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace hearth {

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  // For people: which device this is.
  virtual std::string name() const = 0;
  // An address of the device, which the host must not follow; aligned as any kernel wants it.
  virtual const std::byte* data() const = 0;
  virtual uint64_t size_bytes() const = 0;

  // Copies begin in the order of the calls and are over at the latest when Wait returns; until then
  // the host's bytes must stay. REQUIRES: the range lies inside.
  virtual absl::Status StartCopyIn(uint64_t offset, absl::Span<const std::byte> from) = 0;
  virtual absl::Status StartCopyOut(uint64_t offset, absl::Span<std::byte> to) = 0;
  virtual absl::Status Wait() = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DEVICE_MEMORY_H_
