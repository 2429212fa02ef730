#include "cache_store/store/background/volume_watch.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cache_store/base/disk_sizes.h"

namespace hearth {
namespace {

constexpr char kNote[] = "volume";  // the budget's name on disk: never change it
// Changes of less than this part are neither said nor noted.
constexpr uint64_t kSmallChange = 16;
// The files of a large store are measured less often: this many times as long as it takes.
constexpr int kPauseFactor = 200;

bool IsNear(uint64_t a, uint64_t b) {
  const uint64_t apart = a > b ? a - b : b - a;
  return apart <= std::max(a, b) / kSmallChange;
}

std::string MiB(uint64_t bytes) { return absl::StrCat(bytes >> 20, " MiB"); }

}  // namespace

void VolumeWatch::Begin() {
  const std::string note = core_->tiers.disk->ReadNote(kNote).value_or("");
  if (absl::SimpleAtoi(note, &noted_bytes_)) budget_.Restore(noted_bytes_);
  const DiskRoom room = core_->tiers.disk->Room();
  budget_.Update(room, core_->clock->Now());
  SetLimit(room);
  NoteBudget(room);
}

void VolumeWatch::Step() {
  const absl::Time now = core_->clock->Now();
  if (now < next_ && next_ <= now + absl::Hours(1)) return;
  next_ = now + kEvery;
  if (budget_.IsAmple(core_->tiers.disk->FreeBytes())) return;
  const Stopwatch stopwatch;
  const DiskRoom room = core_->tiers.disk->Room();
  next_ = now + std::max(kEvery, kPauseFactor * absl::FromChrono(stopwatch.Elapsed()));
  budget_.Update(room, now);
  SetLimit(room);
  GiveBack(room);
  NoteBudget(room);
}

void VolumeWatch::SetLimit(const DiskRoom& room) {
  const uint64_t limit = budget_.limit_bytes();
  bool evicts = false;
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    core_->SetDiskLimit(limit);
    evicts = core_->objects.sums().disk_bytes() > limit;
    if (evicts) core_->evictor.ReserveDisk(0, "");  // what is pinned or in use stays
  }
  if (!budget_.is_limited()) {
    said_bytes_ = 0;
  } else if (said_bytes_ == 0 || !IsNear(said_bytes_, limit)) {
    said_bytes_ = limit;
    core_->warnings.Say(
        "disk",
        absl::StrCat("the volume of ", core_->options.data_dir, " has room for ",
                     MiB(room.own_bytes + room.free_bytes), " of files, which is too little ",
                     "for --disk-bytes, ", MiB(core_->options.disk_bytes), ": the limit is ",
                     MiB(limit), ", so that files use at most ", MiB(budget_.files_bytes())));
  }
  if (evicts) core_->EraseFromDisk().IgnoreError();
}

void VolumeWatch::NoteBudget(const DiskRoom& room) {
  if (IsNear(noted_bytes_, budget_.files_bytes()) || room.free_bytes < 2 * kReserveBytes) return;
  const std::string text = absl::StrCat(budget_.files_bytes());
  if (core_->tiers.disk->WriteNote(kNote, text).ok()) noted_bytes_ = budget_.files_bytes();
}

void VolumeWatch::GiveBack(const DiskRoom& room) {
  const uint64_t most = budget_.files_bytes(), reclaims = core_->reclaims.load();
  const uint64_t tries = core_->reclaim_tries.load();
  if (!budget_.is_limited() || room.own_bytes <= most) {
    is_over_ = false;
    if (room.own_bytes < most - most / kSmallChange) budget_.Relax();
    if (std::exchange(gave_up_reserve_, gave_up_reserve_ && reclaims == reclaims_before_)) {
      core_->ReclaimSoon();  // the disk tier flushes, and is as it was
    }
    return;
  }
  if (!is_over_) {
    is_over_ = true;
    reclaims_before_ = reclaims;
  } else if (reclaims != reclaims_before_ || (gave_up_reserve_ && tries != tries_before_)) {
    reclaims_before_ = reclaims;
    budget_.Squeeze(room.own_bytes - most);
    SetLimit(room);
  }
  tries_before_ = tries;
  // Less than a flush may need.
  const uint64_t logs_bytes = kMaxLogs * LogBytesFor(most);
  if (room.free_bytes < logs_bytes + kReserveBytes) {
    core_->tiers.disk->GiveUpReserve();
    gave_up_reserve_ = true;
  }
  core_->EraseFromDisk().IgnoreError();
  core_->ReclaimSoon();
}

}  // namespace hearth
