#include "cache_store/disk/volume_budget.h"

#include <algorithm>
#include <limits>

#include "cache_store/base/disk_sizes.h"

namespace hearth {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

// Part of the room that stays free.
constexpr uint64_t kFreeDivisor = 10;
constexpr uint64_t kMinLogBytes = kMiB;
// RocksDB's manifest, its options, and the small files of the data folder.
constexpr uint64_t kSettingsBytes = kMiB;
// A volume of which the files may use less than this is not worth a finer sum.
constexpr uint64_t kMinStoredDivisor = 4;

uint64_t Below(uint64_t a, uint64_t b) { return a - std::min(a, b); }

}  // namespace

uint64_t DiskRoom::FilesBytes() const {
  const uint64_t all = own_bytes > std::numeric_limits<uint64_t>::max() - free_bytes
                           ? std::numeric_limits<uint64_t>::max()
                           : own_bytes + free_bytes;
  return all - all / kFreeDivisor;
}

uint64_t LogBytesFor(uint64_t files_bytes) {
  return std::clamp(files_bytes / 64, kMinLogBytes, kMaxLogBytes);
}

uint64_t StoredBytesFor(uint64_t files_bytes) {
  const uint64_t fixed = kMaxLogs * LogBytesFor(files_bytes) + kReserveBytes + kSettingsBytes;
  const uint64_t rest = Below(files_bytes, fixed);
  // 16 of 19 parts are stored. One is erased and not given back yet, one is erased in files that
  // hold live bytes too, one is being rewritten (store_core.cc). On a large volume the first and
  // the last are at most 1 GiB each.
  const uint64_t of_small = rest / 19 * 16, of_large = Below(rest, 2 * kGiB) / 17 * 16;
  return std::max({of_small, of_large, std::min(files_bytes, fixed) / kMinStoredDivisor});
}

VolumeBudget::VolumeBudget(uint64_t wanted_bytes)
    : wanted_bytes_(wanted_bytes),
      ample_bytes_(wanted_bytes > std::numeric_limits<uint64_t>::max() / 4
                       ? std::numeric_limits<uint64_t>::max()
                       : 2 * wanted_bytes + 256 * kMiB) {}

void VolumeBudget::Restore(uint64_t files_bytes) {
  files_bytes_ = previous_bytes_ = std::min(files_bytes, ample_bytes_);
}

void VolumeBudget::Update(const DiskRoom& room, absl::Time now) {
  const uint64_t measured = std::min(room.FilesBytes(), ample_bytes_);
  // Files come and go while they are counted: only what is seen twice raises the budget.
  const uint64_t raised = files_bytes_ == 0 ? measured : std::min(measured, previous_bytes_);
  previous_bytes_ = measured;
  if (measured >= files_bytes_) {
    files_bytes_ = std::max(files_bytes_, raised);
    less_since_ = absl::InfiniteFuture();
    return;
  }
  if (less_since_ > now) {  // the first time, or the clock was set back
    less_since_ = now;
    highest_bytes_ = measured;
  }
  highest_bytes_ = std::max(highest_bytes_, measured);
  if (now - less_since_ < kPatience) return;
  files_bytes_ = highest_bytes_;
  less_since_ = absl::InfiniteFuture();
}

bool VolumeBudget::is_limited() const {
  return files_bytes_ > 0 && StoredBytesFor(files_bytes_) < wanted_bytes_;
}

bool VolumeBudget::IsAmple(uint64_t free_bytes) const {
  return !is_limited() && DiskRoom{0, free_bytes}.FilesBytes() >= ample_bytes_;
}

uint64_t VolumeBudget::limit_bytes() const {
  if (!is_limited()) return wanted_bytes_;
  const uint64_t limit = StoredBytesFor(files_bytes_);
  return std::max(Below(limit, squeezed_bytes_), limit / 8);
}

}  // namespace hearth
