// Constants: sizes of the disk tier's files.
#ifndef HEARTH_CACHE_STORE_BASE_DISK_SIZES_H_
#define HEARTH_CACHE_STORE_BASE_DISK_SIZES_H_

#include <cstdint>

namespace hearth {

// Size of RocksDB's log at which a flush begins (less on a small volume, see volume_budget.h). It
// limits the memory of unflushed writes and the bytes that a restart replays. While flushes run,
// the logs hold up to kMaxLogs times this many bytes.
inline constexpr uint64_t kMaxLogBytes = uint64_t{24} << 20;
inline constexpr int kMaxLogs = 4;

// Disk space reserved so that the store can start on a full disk: twice RocksDB's manifest of 5,000
// tables (0.5 MiB), and a safety factor of two.
inline constexpr uint64_t kReserveBytes = uint64_t{2} << 20;

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_DISK_SIZES_H_
