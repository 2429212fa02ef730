#include "cache_store/store/background/upkeep.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace hearth {
namespace {

// Removed under one hold of the lock, at up to 0.1 ms each for a long prompt: by a call that waits
// for something else, and in the background.
constexpr int kExpiredInPassing = 8;
constexpr int kExpiredAtOnce = 64;
// How long expired points may stay where nobody looks anything up.
constexpr absl::Duration kMaxPause = absl::Seconds(1);
// Between two batches others get the lock.
constexpr absl::Duration kBreath = absl::Milliseconds(1);
// A crash forgets the uses of so long. Some 40 bytes each, 4,096 of them in one batch.
constexpr absl::Duration kNoteUsesEvery = absl::Minutes(1);
constexpr size_t kUsesAtOnce = 4096;

}  // namespace

bool Upkeep::ExpireSome(int most) {
  state_->mu.AssertHeld();
  const absl::Time now = core_->clock->Now();
  bool any = false;
  for (; most > 0; --most, any = true) {
    const RestorePointEntry* point = state_->catalog.expiry().FirstExpired(now);
    if (point == nullptr) break;
    state_->catalog.Remove(point, Removal::kExpired);
  }
  return any;
}

void Upkeep::ExpireFew() {
  StoreLock lock(core_);
  ExpireSome(kExpiredInPassing);
}

absl::Duration Upkeep::Step() {
  absl::Time next;
  bool removed = false;
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    removed = ExpireSome(kExpiredAtOnce);
    next = state_->catalog.expiry().next();
  }
  if (removed) core_->eraser.EraseFromDisk().IgnoreError();
  const absl::Time now = core_->clock->Now();
  if (now - uses_noted_ >= kNoteUsesEvery || now < uses_noted_) {
    if (NoteUses()) return kBreath;
    uses_noted_ = now;
  }
  return std::clamp(next - now, kBreath, kMaxPause);
}

bool Upkeep::NoteUses() {
  if (core_->tiers.disk == nullptr) return false;
  std::vector<std::pair<uint64_t, absl::Time>> uses;
  {
    StateLock lock(state_);
    uses = state_->catalog.TakeUses(kUsesAtOnce);
  }
  if (uses.empty()) return false;
  // They are only worth what they cost: what cannot be written is forgotten.
  if (!core_->tiers.disk->NoteUses(uses).ok()) core_->Count(Counter::kTierErrors);
  return true;
}

}  // namespace hearth
