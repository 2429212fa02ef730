#include "cache_store/store/eraser.h"

#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

namespace hearth {
namespace {

// Erased values stay in files until these are rewritten or found empty. At most 1/16 of the limit,
// or 1 GiB of a large one, is dead before the disk is asked to give it back.
constexpr uint64_t kReclaimDivisor = 16;
constexpr uint64_t kReclaimBytes = uint64_t{1} << 30;
// Dead bytes in files that also hold live ones may take an eighth of the limit on top of it:
// the less, the more live bytes are moved for each byte gained.
constexpr uint64_t kDeadDivisor = 8;

}  // namespace

void Eraser::Start(Executor* executor, std::unique_ptr<Executor> reclaimer) {
  assert(executor_ == nullptr && executor != nullptr);
  executor_ = executor;
  reclaimer_ = std::move(reclaimer);
}

Eraser::Rest Eraser::CarryOut(const Garbage& garbage) {
  state_->mu.AssertHeld();
  if (!garbage.host_objects.empty()) {
    if (!tiers_->host_slices->EraseObjects(garbage.host_objects).ok()) {
      counters_->Add(Counter::kTierErrors);
    }
  }
  if (tiers_->device != nullptr && !garbage.gone_objects.empty()) {
    tiers_->device->Erase(garbage.gone_objects);
  }
  state_->erasures.AddManifests(garbage.manifests);
  state_->erasures.AddObjects(garbage.disk_objects, garbage.disk_bytes);
  return {!garbage.host_objects.empty(),
          !garbage.manifests.empty() || !garbage.disk_objects.empty()};
}

void Eraser::Finish(const Rest& rest) {
  if (rest.in_host) tiers_->host.Reap();  // RAM is not to wait behind the disk
  if (!rest.on_disk) return;
  assert(executor_ != nullptr);
  if (!executor_->TrySchedule(0, [this] { EraseFromDisk().IgnoreError(); })) {
    EraseFromDisk().IgnoreError();
  }
}

absl::Status Eraser::EraseFromDisk(absl::Span<const uint64_t> orphans) {
  tiers_->host.Reap();
  if (tiers_->disk == nullptr) return absl::OkStatus();
  uint64_t erased_bytes = 0;
  const absl::Status status = EraseNoted(orphans, &erased_bytes);
  ReclaimLater(erased_bytes);
  if (!status.ok()) counters_->Add(Counter::kTierErrors);
  return status;
}

absl::Status Eraser::EraseForGood() {
  absl::Status status = EraseFromDisk();
  if (status.ok() && tiers_->disk != nullptr) status = tiers_->disk->SettleErases();
  return status;
}

absl::Status Eraser::EraseAtEnd() {
  uint64_t erased_bytes = 0;
  return EraseNoted({}, &erased_bytes);
}

absl::Status Eraser::EraseNoted(absl::Span<const uint64_t> orphans, uint64_t* erased_bytes) {
  Erasures::Objects objects;
  // Manifests first: a crash in between leaves objects that nothing names, never the reverse.
  while (true) {
    std::vector<uint64_t> manifests;
    {
      StateLock lock(state_);
      manifests = state_->erasures.SomeManifests();
      if (manifests.empty()) {
        objects = state_->erasures.TakeObjects();
        break;
      }
    }
    absl::Status status = tiers_->disk->EraseManifests(manifests);
    if (!status.ok()) return status;
    StateLock lock(state_);
    state_->erasures.ManifestsErased(manifests);
  }
  absl::Status status;
  if (!orphans.empty()) status = tiers_->disk_slices->EraseObjects(orphans);
  const absl::Span<const uint64_t> numbers(objects.numbers);
  for (size_t i = 0; status.ok() && i < numbers.size(); i += Erasures::kMaxAtOnce) {
    status = tiers_->disk_slices->EraseObjects(numbers.subspan(i, Erasures::kMaxAtOnce));
  }
  if (status.ok()) {
    *erased_bytes = objects.bytes;
    return status;
  }
  StateLock lock(state_);
  state_->erasures.AddObjects(numbers, objects.bytes);
  return status;
}

void Eraser::ReclaimLater(uint64_t erased_bytes) {
  if (erased_bytes == 0) return;
  {
    StateLock lock(state_);
    unreclaimed_bytes_ += erased_bytes;
    const uint64_t worthwhile = std::min(disk_limit_bytes_ / kReclaimDivisor, kReclaimBytes);
    if (unreclaimed_bytes_ < worthwhile || reclaim_queued_) return;
    reclaim_queued_ = true;
  }
  Executor* const executor = reclaimer_ != nullptr ? reclaimer_.get() : executor_;
  if (executor->TrySchedule(0, [this] { Reclaim(); })) return;
  StateLock lock(state_);
  reclaim_queued_ = false;
}

void Eraser::Reclaim() {
  {
    StateLock lock(state_);
    reclaim_queued_ = false;
    unreclaimed_bytes_ = 0;
  }
  const absl::Status status =
      tiers_->disk->ReclaimSpace(disk_limit_bytes_ + disk_limit_bytes_ / kDeadDivisor);
  if (!status.ok() && !absl::IsCancelled(status)) counters_->Add(Counter::kTierErrors);
}

}  // namespace hearth
