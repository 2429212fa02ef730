// Sizes of the disk tier's files that several parts of it reckon with. Constants only.
#ifndef HEARTH_CACHE_STORE_BASE_DISK_SIZES_H_
#define HEARTH_CACHE_STORE_BASE_DISK_SIZES_H_

#include <cstdint>

namespace hearth {

// Bounds the memory for unflushed writes, and how much a restart replays. A flush begins when the
// log has this many bytes, or fewer on a small volume (volume_budget.h); up to kMaxLogs times as
// many are in logs while flushes run.
inline constexpr uint64_t kMaxLogBytes = uint64_t{24} << 20;
inline constexpr int kMaxLogs = 4;

// The room that is kept for a start on a full disk: the manifest of 5,000 tables, twice, and as
// much again.
inline constexpr uint64_t kReserveBytes = uint64_t{2} << 20;

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_DISK_SIZES_H_
