// What is done when its time comes rather than when somebody asks: restore points that are over
// leave, and last uses are noted on disk.
//
// Nobody is served what is over, however late it is removed. A lookup first removes a few; while
// more are left, only boundaries with a restore point of their own are usable (IsUsable).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cache_store/catalog/prefix_walk.h"
#include "cache_store/store/sessions.h"
#include "cache_store/store/unloaded_index.h"

namespace hearth {
namespace {

// Removed under one hold of the lock, at up to 0.1 ms each for a long prompt: by a call that waits
// for something else, and in the background.
constexpr int kExpiredByTheWay = 8;
constexpr int kExpiredAtOnce = 64;
// How long what is over may stay unnoticed where nobody looks anything up.
constexpr absl::Duration kMostPause = absl::Seconds(1);
// Between two batches others get the lock.
constexpr absl::Duration kBreath = absl::Milliseconds(1);
// A crash forgets the uses of so long. Some 40 bytes each, 4,096 of them in one batch.
constexpr absl::Duration kNoteUsesEvery = absl::Minutes(1);
constexpr size_t kUsesAtOnce = 4096;

}  // namespace

absl::Time Store::ExpiryOf(const PublishSpec& spec, absl::Time now,
                           std::vector<std::string>* notes) const {
  const TenantQuota& quota = state_->catalog.ledger().QuotaOf(spec.tenant);
  absl::Duration ttl = spec.ttl;
  if (ttl <= absl::ZeroDuration()) {
    ttl = quota.default_ttl_s > 0 ? absl::Seconds(quota.default_ttl_s) : core_->options.default_ttl;
  }
  const absl::Duration most = absl::Seconds(quota.max_ttl_s);
  if (quota.max_ttl_s > 0 && (ttl == absl::ZeroDuration() || ttl > most)) {
    if (spec.ttl > most) {
      notes->push_back(absl::StrCat("ttl_s lowered to the tenant's max_ttl_s, ", quota.max_ttl_s));
    }
    ttl = most;
  }
  return ttl == absl::ZeroDuration() ? absl::InfiniteFuture() : now + ttl;
}

bool Store::IsUsable(const BoundaryState& state, const KvLayout& layout, absl::Time now) const {
  if (!state.usable()) return false;
  const bool any_is_over = state_->catalog.next_expiry() <= now;
  if (const RestorePointEntry* point = state.node->restore_point; point != nullptr) {
    return !any_is_over || !Catalog::IsOver(*point, now);
  }
  if (any_is_over) return false;
  // What it has of its own, a pin and an end say, is on disk and will come.
  if (unloaded_ != nullptr && unloaded_->IsPendingAt(state.node->key)) return false;
  // Objects may outlive all restore points that named them: a session, or the loader, holds them.
  return InheritedExpiry(ObjectsOf(layout, state.node), now) > now;
}

bool Store::ExpireSome(int most) {
  const absl::Time now = core_->clock->Now();
  bool any = false;
  for (; most > 0; --most, any = true) {
    RestorePointEntry* point = state_->catalog.FirstExpired(now);
    if (point == nullptr) break;
    state_->catalog.Remove(point, Removal::kExpired);
  }
  return any;
}

void Store::ExpireByTheWay() {
  {
    StoreLock lock(core_);
    ExpireSome(kExpiredByTheWay);
  }
}

absl::Status Store::WriteRenewals(const PublishPlan& plan) {
  absl::Status status;
  for (const Digest& id : plan.renewed) {
    absl::Status written = RewriteManifest(id, plan.level == Durability::kSync);
    if (!absl::IsNotFound(written)) status.Update(std::move(written));
  }
  if (status.ok()) return status;
  core_->Count(Counter::kTierErrors);
  return plan.level == Durability::kMemory ? absl::OkStatus() : status;
}

absl::Duration Store::UpkeepStep() {
  absl::Time next;
  bool removed = false;
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    removed = ExpireSome(kExpiredAtOnce);
    next = state_->catalog.next_expiry();
  }
  if (removed) core_->eraser.EraseFromDisk().IgnoreError();
  const absl::Time now = core_->clock->Now();
  if (now - uses_noted_ >= kNoteUsesEvery || now < uses_noted_) {
    if (NoteUses()) return kBreath;
    uses_noted_ = now;
  }
  return std::clamp(next - now, kBreath, kMostPause);
}

bool Store::NoteUses() {
  if (core_->tiers.disk == nullptr) return false;
  std::vector<std::pair<uint64_t, absl::Time>> uses;
  {
    absl::MutexLock lock(&state_->mu);
    uses = state_->catalog.TakeUses(kUsesAtOnce);
  }
  if (uses.empty()) return false;
  // They are only worth what they cost: what cannot be written is forgotten.
  if (!core_->tiers.disk->NoteUses(uses).ok()) core_->Count(Counter::kTierErrors);
  return true;
}

}  // namespace hearth
