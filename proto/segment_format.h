// The format of the memory that a store shares with workers on its host. Generations let a reader
// check that it copied the right bytes.
//
// A segment is one file of shared memory: a header of 4096 bytes, a table of generations (one
// 64-bit number, little endian, per granule of the data), and the data. A slice occupies whole
// granules, and has the generation of its first granule. The store changes the generation before it
// changes any byte of the range. So if a reader finds the same generation before and after its
// copy, it has copied the slice that the store named. If the data is in the memory of a device, the
// header says which device, and the file ends after the table (docs/dev/decisions.md, D10, D11).
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
// The data in the file begins at a multiple of 2 MiB, the size of a huge page.
inline constexpr uint64_t kSegmentDataAlignment = uint64_t{2} << 20;

using SegmentId = std::array<uint8_t, 16>;  // random bytes, new for every segment

// Describes memory of a CUDA device that other processes of the host can map. They receive its file
// descriptor over the socket, after the segment's own.
struct DeviceMemoryHandle {
  std::array<uint8_t, 16> device{};  // UUID of the device
  uint64_t bytes = 0;                // size of the memory, at least that of the segment's data
};

struct SegmentLayout {
  SegmentId id{};
  uint64_t data_bytes = 0;  // a multiple of the granule size
  // the device memory that holds the data; unset: the data is in the file
  std::optional<DeviceMemoryHandle> device;

  uint64_t granules() const { return data_bytes / kSegmentGranuleBytes; }
  uint64_t data_offset() const;
  uint64_t file_bytes() const { return data_offset() + (device.has_value() ? 0 : data_bytes); }
};

// The range of a segment's data that holds a slice.
struct SegmentRange {
  uint64_t offset = 0;  // byte offset in the data, a multiple of the granule size
  uint64_t bytes = 0;
  uint64_t generation = 0;
};

// Returns the header of a segment file, kSegmentHeaderBytes bytes.
std::string EncodeSegmentHeader(const SegmentLayout& layout);
// Parses the header. kFailedPrecondition: the file is not a segment, has another version, or has a
// size that differs from the header's.
absl::StatusOr<SegmentLayout> ParseSegmentHeader(absl::string_view header, uint64_t file_bytes);

// The generation of a granule in a mapped segment.
using SegmentGeneration = std::atomic<uint64_t>;
static_assert(sizeof(SegmentGeneration) == 8 && SegmentGeneration::is_always_lock_free);

}  // namespace hearth

#endif  // HEARTH_PROTO_SEGMENT_FORMAT_H_
