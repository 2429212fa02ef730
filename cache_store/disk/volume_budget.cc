#include "cache_store/disk/volume_budget.h"

#include <algorithm>
#include <cassert>
#include <limits>

#include "cache_store/base/disk_sizes.h"

namespace hearth {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;

// 1/kFreeDivisor of the usable space stays free.
constexpr uint64_t kFreeDivisor = 10;
constexpr uint64_t kMinLogBytes = kMiB;
// Space for RocksDB's manifest and options, and for the small files of the data folder.
constexpr uint64_t kSettingsBytes = kMiB;
// If the files may use less than the fixed part (logs, reserve, settings), 1/kMinStoredDivisor of
// the files' bytes may be stored.
constexpr uint64_t kMinStoredDivisor = 4;
// Erases that shrink the files by less than 1/kSmallPart of the budget do not show whether erasing
// frees space.
constexpr uint64_t kSmallPart = 32;

// Squeeze() does not lower the limit below this: RocksDB can still write a table of this size into
// the reserved space (disk_sizes.h). Even a large volume may need such a low limit, because each
// table may contain one live byte.
constexpr uint64_t kLeastBytes = kReserveBytes / 2;

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
  // 16/19 of the rest may be stored. 1/19 each is for erased bytes that are not reclaimed yet, for
  // erased bytes in files with live bytes, and for files that are being rewritten (store_core.cc).
  // On a large volume, the first and the third part are at most 1 GiB each.
  const uint64_t of_small = rest / 19 * 16, of_large = Below(rest, 2 * kGiB) / 17 * 16;
  const uint64_t stored =
      std::max({of_small, of_large, std::min(files_bytes, fixed) / kMinStoredDivisor});
  assert(stored <= files_bytes);
  return stored;
}

VolumeBudget::VolumeBudget(uint64_t wanted_bytes)
    : wanted_bytes_(wanted_bytes),
      ample_bytes_(wanted_bytes > std::numeric_limits<uint64_t>::max() / 4
                       ? std::numeric_limits<uint64_t>::max()
                       : 2 * wanted_bytes + 256 * kMiB),
      files_bytes_(ample_bytes_) {}

void VolumeBudget::Begin(uint64_t noted_bytes, const std::optional<DiskRoom>& room) {
  if (noted_bytes > 0) files_bytes_ = std::min(noted_bytes, ample_bytes_);
  if (!room.has_value()) return;
  const uint64_t measured = std::min(room->FilesBytes(), ample_bytes_);
  const uint64_t most_stored = Below(room->own_bytes, kReserveBytes + kSettingsBytes);
  const bool costs_nothing = most_stored <= StoredBytesFor(measured);
  const bool is_new_volume = noted_bytes == 0 || noted_bytes > room->volume_bytes;
  const bool is_own_volume = noted_bytes == 0 && room->own_bytes >= room->volume_bytes / 2;
  if (measured > files_bytes_ || (is_new_volume && costs_nothing) || is_own_volume) {
    files_bytes_ = measured;
  }
}

void VolumeBudget::Update(const DiskRoom& room, absl::Time now) {
  assert(files_bytes_ <= ample_bytes_);
  const uint64_t measured = std::min(room.FilesBytes(), ample_bytes_);
  highest_free_bytes_ = std::max(highest_free_bytes_, room.free_bytes);
  // Raise the budget only by space that two measurements show, because files may be created and
  // deleted during a measurement.
  const uint64_t raised = std::min(measured, previous_bytes_);
  previous_bytes_ = measured;
  if (measured >= files_bytes_) {
    if (raised > files_bytes_) {
      files_bytes_ = raised;
      lowered_.reset();
      is_stuck_ = false;
    }
    less_since_ = absl::InfiniteFuture();
    return;
  }
  if (less_since_ > now) {  // first measurement with less space, or the clock was set back
    less_since_ = now;
    highest_bytes_ = measured;
  }
  highest_bytes_ = std::max(highest_bytes_, measured);
  if (now - less_since_ < kPatience) return;
  less_since_ = absl::InfiniteFuture();
  Lower(room);
}

// Lowers the budget. If the last lowering freed no space on the volume, does not lower again: a
// snapshot of the volume may keep erased bytes, or the file system reports no free bytes because it
// does not have space for its own records.
void VolumeBudget::Lower(const DiskRoom& room) {
  assert(highest_bytes_ < files_bytes_);  // every measurement since less_since_ was lower
  if (lowered_.has_value()) {
    const uint64_t given_back = Below(lowered_->own_bytes, room.own_bytes);
    const uint64_t gained = Below(highest_free_bytes_, lowered_->free_bytes);
    is_stuck_ = given_back > files_bytes_ / kSmallPart && gained < given_back / 2;
    if (is_stuck_) return;
  }
  files_bytes_ = highest_bytes_;
  lowered_ = room;
  highest_free_bytes_ = room.free_bytes;
}

void VolumeBudget::Squeeze(uint64_t bytes) {
  const uint64_t most = StoredBytesFor(files_bytes_);
  squeezed_bytes_ = std::min(most, squeezed_bytes_ + std::min(most, bytes));
  assert(limit_bytes() <= most);
}

bool VolumeBudget::is_limited() const { return StoredBytesFor(files_bytes_) < wanted_bytes_; }

bool VolumeBudget::IsAmple(uint64_t free_bytes) const {
  return !is_limited() && DiskRoom{0, free_bytes}.FilesBytes() >= ample_bytes_;
}

uint64_t VolumeBudget::limit_bytes() const {
  if (!is_limited()) return wanted_bytes_;
  const uint64_t limit = StoredBytesFor(files_bytes_);
  const uint64_t bytes = std::max(Below(limit, squeezed_bytes_), std::min(limit / 8, kLeastBytes));
  assert(bytes <= limit && bytes < wanted_bytes_);
  return bytes;
}

}  // namespace hearth
