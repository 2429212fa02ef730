// Sizes of the disk tier's files that several parts of the store use. Constants only.
#ifndef HEARTH_CACHE_STORE_BASE_DISK_SIZES_H_
#define HEARTH_CACHE_STORE_BASE_DISK_SIZES_H_

#include <cstdint>

namespace hearth {

// Limits the memory of unflushed writes and the bytes that a restart replays. A flush begins when
// the log has this many bytes, or fewer on a small volume (volume_budget.h). While flushes run,
// logs hold up to kMaxLogs times this many bytes.
inline constexpr uint64_t kMaxLogBytes = uint64_t{24} << 20;
inline constexpr int kMaxLogs = 4;

// Disk space reserved for a start on a full disk: the manifest of 5,000 tables (0.5 MiB), twice,
// and the same again.
inline constexpr uint64_t kReserveBytes = uint64_t{2} << 20;

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_DISK_SIZES_H_
