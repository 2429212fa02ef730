// StoreCore: the options, clock, meters, tiers and state that all parts of a store share.
//
// Made by Store before its parts, and outlives them. Thread safety: the state under its own mutex;
// all other members are const or thread safe. Ownership: owns all of it.
#ifndef HEARTH_CACHE_STORE_STORE_STORE_CORE_H_
#define HEARTH_CACHE_STORE_STORE_STORE_CORE_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cache_store/base/clock.h"
#include "cache_store/base/executor.h"
#include "cache_store/base/warnings.h"
#include "cache_store/store/eraser.h"
#include "cache_store/store/event_hub.h"
#include "cache_store/store/options.h"
#include "cache_store/store/store_meters.h"
#include "cache_store/store/store_seams.h"
#include "cache_store/store/store_state.h"
#include "cache_store/store/store_tiers.h"
#include "cache_store/store/tiered_store.h"

namespace hearth {

// kInvalidArgument names the field.
absl::Status CheckPrefix(absl::Span<const uint32_t> token_ids, absl::Span<const uint32_t> cuts);
// kNotFound, for an id that FindOwned does not find.
absl::Status NoSuchPoint();

struct StoreCore {
  StoreCore(const StoreOptions& store_options, const StoreSeams& seams, std::string store_secret,
            std::shared_ptr<HostArena> arena, std::unique_ptr<DiskTier> disk);

  void Count(Counter counter, uint64_t amount = 1) { meters.counters().Add(counter, amount); }
  // Of the keys of what the tenant stores now.
  Digest RootOf(const Digest& fingerprint, const std::string& tenant) ABSL_LOCKS_EXCLUDED(state.mu);
  // As List shows it. Under the lock.
  RestorePoint Describe(const RestorePointEntry& point) const;
  // Null when there is none, or when it is another tenant's, which callers must not be able to
  // tell.
  const RestorePointEntry* FindOwned(const Digest& id, const std::string& tenant)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mu);

  // Writes an object to the RAM tier and tells the catalog. False: the tier refused it. REQUIRES:
  // room, by a reservation that is released under the same lock.
  bool PutInHost(const StoredObject* object, const std::vector<SliceView>& views)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state.mu);

  const StoreOptions options;
  const std::string secret;
  SystemClock system_clock;
  Clock* const clock;
  StoreMeters meters;
  EventHub events;
  Warnings warnings;
  StoreTiers tiers;
  StoreState state;
  Eraser eraser;
  std::unique_ptr<Executor> executor;  // for jobs of all parts; reset before any part ends

 private:
  // Called by the catalog for each restore point that leaves. Under the lock.
  void OnRemoved(const RestorePointEntry& point, Removal why);
};

// Holds the store's mutex; its destructor has everything erased that the catalog removed meanwhile.
class ABSL_SCOPED_LOCKABLE StoreLock {
 public:
  // Who erases from the disk.
  enum OnDisk {
    kInBackground,
    kErasesItself,  // the holder, by Eraser::EraseFromDisk, after it released the lock
  };

  explicit StoreLock(StoreCore* core, OnDisk on_disk = kInBackground)
      ABSL_EXCLUSIVE_LOCK_FUNCTION(core->state.mu)
      : core_(core), on_disk_(on_disk) {
    core_->state.Lock();
  }
  ~StoreLock() ABSL_UNLOCK_FUNCTION() {
    const Eraser::Rest rest = core_->eraser.CarryOut(core_->state.objects.TakeGarbage());
    core_->state.Unlock();
    if (on_disk_ == kInBackground) core_->eraser.Finish(rest);
  }
  StoreLock(const StoreLock&) = delete;
  StoreLock& operator=(const StoreLock&) = delete;

 private:
  StoreCore* const core_;
  const OnDisk on_disk_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_STORE_CORE_H_
