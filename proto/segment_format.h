// The format of the memory that a store shares with workers on its host, and of the generations by
// which a reader checks that it copied the right bytes.
//
// A segment is one file of shared memory: a header of 4096 bytes, a table of generations (one
// 64-bit number per granule of the data, little endian), and the data.
// A slice occupies whole granules, and the generation of its first granule is the slice's. The
// store changes the generation before any byte of the range may change. So a reader that finds the
// same generation before and after its copy has copied the slice that the store named. If the data
// is a device's memory, the header says how to map it, and the file ends after the table
// (docs/dev/decisions.md, D10, D11).
// Thread safety: pure functions; generations are atomics.
#ifndef HEARTH_PROTO_SEGMENT_FORMAT_H_
#define HEARTH_PROTO_SEGMENT_FORMAT_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace hearth {

inline constexpr uint64_t kSegmentGranuleBytes = 4096;
inline constexpr uint64_t kSegmentHeaderBytes = 4096;
// The data is aligned for huge pages.
inline constexpr uint64_t kSegmentDataAlignment = uint64_t{2} << 20;

using SegmentId = std::array<uint8_t, 16>;  // random, new for every segment

// Memory of a CUDA device that other processes of the host can map.
struct DeviceMemoryHandle {
  std::array<uint8_t, 16> device{};  // the device's UUID
  std::array<uint8_t, 64> memory{};  // a cudaIpcMemHandle_t
};

struct SegmentLayout {
  SegmentId id{};
  uint64_t data_bytes = 0;  // a multiple of the granule
  // device memory that holds the data; unset: the file holds it
  std::optional<DeviceMemoryHandle> device;

  uint64_t granules() const { return data_bytes / kSegmentGranuleBytes; }
  uint64_t data_offset() const;
  uint64_t file_bytes() const { return data_offset() + (device.has_value() ? 0 : data_bytes); }
};

// A range of a segment's data that holds one slice.
struct SegmentRange {
  uint64_t offset = 0;  // in the data, a multiple of the granule
  uint64_t bytes = 0;
  uint64_t generation = 0;
};

// Returns kSegmentHeaderBytes bytes.
std::string EncodeSegmentHeader(const SegmentLayout& layout);
// kFailedPrecondition: not a segment, a segment of another version, or a file of another size.
absl::StatusOr<SegmentLayout> ParseSegmentHeader(absl::string_view header, uint64_t file_bytes);

// A generation in a mapped segment.
using SegmentGeneration = std::atomic<uint64_t>;
static_assert(sizeof(SegmentGeneration) == 8 && SegmentGeneration::is_always_lock_free);

}  // namespace hearth

#endif  // HEARTH_PROTO_SEGMENT_FORMAT_H_
