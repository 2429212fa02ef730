#include "cache_store/store/background/volume_watch.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cache_store/base/disk_sizes.h"

namespace hearth {
namespace {

constexpr char kNote[] = "volume";  // name of the saved budget on disk: never change it
// Changes of the limit or budget by less than 1/kSmallChange are neither reported nor saved.
constexpr uint64_t kSmallChange = 16;
// The pause after a measurement is this many times as long as the measurement, so that large stores
// are measured less often.
constexpr int kPauseFactor = 200;
constexpr absl::Duration kLongestPause = absl::Minutes(30);
// Number of restore points that are evicted during one hold of the lock, which must not exceed some
// milliseconds.
constexpr int kEvictedAtOnce = 64;

bool IsNear(uint64_t a, uint64_t b) {
  const uint64_t apart = a > b ? a - b : b - a;
  return apart <= std::max(a, b) / kSmallChange;
}

std::string MiB(uint64_t bytes) { return absl::StrCat(bytes >> 20, " MiB"); }

}  // namespace

void VolumeWatch::Begin() {
  const std::string note = core_->tiers.disk->ReadNote(kNote).value_or("");
  if (!absl::SimpleAtoi(note, &noted_bytes_)) noted_bytes_ = 0;
  const std::optional<DiskRoom> room = core_->tiers.disk->Room();
  budget_.Begin(noted_bytes_, room);
  if (!room.has_value()) return;
  budget_.Update(*room, core_->clock->Now());
  SetLimit(*room);
  NoteBudget(*room);
}

// The pause has a limit, so that it cannot look like a clock that was set back.
absl::Duration VolumeWatch::PauseAfter(absl::Duration measuring) {
  return std::clamp(kPauseFactor * measuring, kEvery, kLongestPause);
}

void VolumeWatch::Step() {
  const absl::Time now = core_->clock->Now();
  if (now < next_ && next_ <= now + 2 * kLongestPause) return;
  next_ = now + kEvery;
  const uint64_t free_bytes = core_->tiers.disk->FreeBytes();
  const uint64_t last_reclaim = core_->last_reclaim.load();
  if (budget_.IsAmple(free_bytes)) {
    const DiskRoom ample{0, free_bytes};  // enough free bytes: the files need not be measured
    budget_.Update(ample, now);           // ends the delay before the budget is lowered
    GiveBack(ample, last_reclaim);  // a reclaim may have failed since the reserve file was deleted
    return;
  }
  const std::optional<DiskRoom> room = core_->tiers.disk->Room();
  next_ = now + PauseAfter(core_->clock->Now() - now);
  if (!room.has_value()) return;
  budget_.Update(*room, now);
  SetLimit(*room);
  GiveBack(*room, last_reclaim);
  NoteBudget(*room);
}

void VolumeWatch::SetLimit(const DiskRoom& room) {
  const uint64_t limit = budget_.limit_bytes();
  uint64_t stored = 0;
  bool evicts = false;
  for (bool more = true; more;) {
    {
      StoreLock lock(core_, StoreLock::kErasesItself);
      core_->SetDiskLimit(limit);
      const uint64_t before = core_->objects.sums().disk_bytes();
      more = core_->evictor.TrimDisk(kEvictedAtOnce);
      stored = core_->objects.sums().disk_bytes();
      evicts = evicts || stored < before;
    }
    if (more) core_->YieldLock();
  }
  WarnLimit(room, stored);
  if (evicts) core_->EraseFromDisk().IgnoreError();
}

void VolumeWatch::WarnLimit(const DiskRoom& room, uint64_t stored_bytes) {
  const std::string volume = absl::StrCat("the volume of ", core_->options.data_dir);
  const uint64_t limit = budget_.limit_bytes(), before = said_bytes_;
  const bool stays = budget_.is_limited() && stored_bytes > limit;
  if (std::exchange(said_stays_, stays) != stays && stays) {
    core_->warnings.Say(
        "disk",
        absl::StrCat("restore points that are pinned, in use or guaranteed by floor_bytes take ",
                     MiB(stored_bytes), "; the limit of the disk tier is ", MiB(limit),
                     ": publishes may be refused; free space on the volume, "
                     "unpin restore points, or lower floor_bytes"));
  }
  if (std::exchange(said_stuck_, budget_.is_stuck()) != budget_.is_stuck() && budget_.is_stuck()) {
    core_->warnings.Say(
        "disk", absl::StrCat(volume,
                             " gained no free space from evictions, so evictions stopped; look for "
                             "snapshots of the volume and for programs that fill it"));
  }
  if (!budget_.is_limited()) {
    said_bytes_ = 0;
    if (before == 0) return;
    core_->warnings.Say(
        "disk",
        absl::StrCat(volume, " has space for --disk-bytes again; the limit is ", MiB(limit)));
  } else if (before == 0 || !IsNear(before, limit)) {
    said_bytes_ = limit;
    core_->warnings.Say(
        "disk", absl::StrCat(volume, " has space for ", MiB(room.own_bytes + room.free_bytes),
                             " of files, too little for --disk-bytes, ",
                             MiB(core_->options.disk_bytes), ": the limit is now ", MiB(limit),
                             ", so that files use at most ", MiB(budget_.files_bytes())));
  }
}

void VolumeWatch::NoteBudget(const DiskRoom& room) {
  if (IsNear(noted_bytes_, budget_.files_bytes()) || room.free_bytes < 2 * kReserveBytes) return;
  const std::string text = absl::StrCat(budget_.files_bytes());
  if (core_->tiers.disk->WriteNote(kNote, text).ok()) noted_bytes_ = budget_.files_bytes();
}

void VolumeWatch::GiveBack(const DiskRoom& room, uint64_t last_reclaim) {
  const uint64_t most = budget_.files_bytes(), reclaims = core_->reclaims.load();
  if (!budget_.is_limited() || room.own_bytes <= most) {
    is_over_ = false;
    squeeze_bytes_ = 0;
    if (room.own_bytes < most - most / kSmallChange) budget_.Relax();
    if (std::exchange(gave_up_reserve_, gave_up_reserve_ && reclaims == reclaims_before_)) {
      core_->ReclaimSoon();  // the reclaim flushes, and then the reserve file is created again
    }
    return;
  }
  // Erased bytes stay in files until the erase is on disk, and a reclaim that began after it has
  // ended. Only then do the sizes of files show whether the limit is too high.
  const bool is_settled = is_over_ && !erases_wait_;
  const bool squeezes = is_settled && last_reclaim >= awaited_reclaim_;
  if (squeezes) {
    // If a log or table also has live bytes, erasing its other bytes frees no space. So the next
    // step evicts twice as much, and a few steps suffice.
    const bool gave_back = squeeze_bytes_ == 0 || room.own_bytes < squeezed_at_bytes_;
    squeeze_bytes_ = gave_back ? room.own_bytes - most : 2 * squeeze_bytes_;
    squeezed_at_bytes_ = room.own_bytes;
    budget_.Squeeze(squeeze_bytes_);
    SetLimit(room);
  }
  // There may be less free space than a flush needs.
  const uint64_t logs_bytes = kMaxLogs * LogBytesFor(most);
  if (room.free_bytes < logs_bytes + kReserveBytes) {
    reclaims_before_ = reclaims;
    core_->tiers.disk->ReleaseReserve();
    gave_up_reserve_ = true;
  }
  is_over_ = true;
  erases_wait_ = !core_->EraseFromDisk().ok();
  if (!is_settled || squeezes || erases_wait_) {
    awaited_reclaim_ = core_->reclaims_begun.load() + 1;
  }
  core_->ReclaimSoon();
}

}  // namespace hearth
