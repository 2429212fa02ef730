// StoreCore: the state that all parts of a store share: the lock and the catalog that it guards,
// the tiers, the counters, and the erasing of removed entries.
//
// `mu` guards bookkeeping, and is never held during disk I/O, hashing or callbacks. Long work is
// done in steps, and the lock is released between them (Yield). Lock order: a thread that holds a
// mutex may take only mutexes to which an arrow leads.
//
//   Store::notes_mu_ --+
//                      +--> mu (StoreLock) --+--> mutexes of the tiers, EventHub, DropNumbers,
//   reclaim_mu_ -------+                     |    FingerprintBook, executors
//                                            +--> pending_mu_
//   erase_mu_ --------------------------------> pending_mu_, the disk tier; never together with mu
//
// Copies in RAM are freed immediately. Copies on disk are erased later: manifests by one thread at
// a time, so that no manifest outlives its objects; objects by any thread. A failed erase is
// counted, and tried again with the next erase and when the store closes.
//
// Store creates the core before its parts, and destroys it after them. Thread safety: members
// without a named lock are const or thread safe. Ownership: owns all members.
#ifndef HEARTH_CACHE_STORE_STORE_STORE_CORE_H_
#define HEARTH_CACHE_STORE_STORE_STORE_CORE_H_

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "cache_store/base/clock.h"
#include "cache_store/base/executor.h"
#include "cache_store/base/latency.h"
#include "cache_store/base/removal.h"
#include "cache_store/base/slice_view.h"
#include "cache_store/base/staged_bytes.h"
#include "cache_store/base/stats.h"
#include "cache_store/base/tier.h"
#include "cache_store/base/warnings.h"
#include "cache_store/catalog/catalog.h"
#include "cache_store/catalog/compute_claims.h"
#include "cache_store/catalog/evictor.h"
#include "cache_store/catalog/fingerprint_book.h"
#include "cache_store/catalog/history.h"
#include "cache_store/catalog/stored_object.h"
#include "cache_store/disk/disk_tier.h"
#include "cache_store/memory/device_tier.h"
#include "cache_store/memory/host_arena.h"
#include "cache_store/store/event_hub.h"
#include "cache_store/store/options.h"
#include "cache_store/store/store_seams.h"
#include "cache_store/store/tiered_store.h"
#include "proto/prefix_key.h"

namespace hearth {

// Checks a prompt's tokens and prefill cuts. kInvalidArgument names the invalid field.
absl::Status CheckPrefix(absl::Span<const uint32_t> token_ids, absl::Span<const uint32_t> cuts);
// Limit of the chunks of a prompt that are stored, because a walk along a prompt holds the lock
// once, for some milliseconds. Of longer prompts only the first chunks are stored. With the
// smallest chunks it is 131,072 tokens, the longest context of Gemma 3.
inline constexpr uint32_t kMaxChunks = 8192;
inline uint32_t StoredTokens(uint32_t tokens, const KvLayout& layout) {
  return std::min(tokens, kMaxChunks * layout.chunk_tokens);
}
// Returns kNotFound for an id that FindOwned() does not find.
absl::Status NoSuchPoint();

// Claims on segment keys: if several publishers have the same segment, only one of them writes it.
// A claimant waits until none of its keys is claimed, and then claims all of them at once, so
// claims cannot deadlock.
class SingleFlight {
 public:
  // Claims the keys. REQUIRES: the caller holds `mu`. Releases `mu` while waiting, so everything
  // that was read before is stale.
  void Claim(absl::Mutex* mu, const std::vector<Digest>& keys) {
    mu->AssertHeld();
    const auto place = waiting_.insert(waiting_.end(), &keys);
    const auto free = [this, &keys] { return AreFree(keys); };
    mu->Await(absl::Condition(&free));
    waiting_.erase(place);
    claimed_.insert(keys.begin(), keys.end());
  }
  void Release(const std::vector<Digest>& keys) {
    for (const Digest& key : keys) claimed_.erase(key);
  }
  // Returns whether any claimant now waits only for the lock.
  bool HasReadyClaimant() const {
    return absl::c_any_of(waiting_, [this](const auto* keys) { return AreFree(*keys); });
  }

 private:
  bool AreFree(const std::vector<Digest>& keys) const {
    return absl::c_none_of(keys, [this](const Digest& key) { return claimed_.contains(key); });
  }

  absl::flat_hash_set<Digest> claimed_;
  std::list<const std::vector<Digest>*> waiting_;
};

// Adds "disk tier" to the message of an error.
inline absl::Status OfDisk(const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("disk tier: ", status.message()));
}

// The tiers of a store. The slices in RAM belong to the objects (StoredObject::host). Reads from
// disk are verified here, by length and digest. Thread safe, like the tiers.
struct StoreTiers {
  StoreTiers(const StoreOptions& options, const StoreSeams& seams,
             std::shared_ptr<HostArena> host_arena, std::unique_ptr<DiskTier> disk_tier);

  // Allocates memory for a slice: from the arena if it has free memory, otherwise other memory.
  std::shared_ptr<std::byte> AllocateSlice(size_t bytes) const;
  // Returns a copy of the slice in the arena, which workers can map, if memory is shared and the
  // arena has free memory; otherwise returns `slice`.
  SliceView InArena(const SliceView& slice) const;
  // Reads a slice from disk and verifies it. kDataLoss: the slice is missing, or its bytes are
  // wrong.
  absl::StatusOr<SliceView> ReadFromDisk(const StoredObject& object, size_t slice) const;
  // Returns whether the gpu tier has copies of all these objects.
  bool AreOnDevice(absl::Span<StoredObject* const> objects) const;

  const bool is_shared;                    // value of StoreOptions::shared_memory
  const uint64_t min_table_bytes;          // value of DiskTier::kMinTableBytes; smaller in tests
  const std::shared_ptr<HostArena> arena;  // memory of the RAM tier; null: no RAM tier
  const std::unique_ptr<DiskTier> disk;    // null: no disk tier
  std::unique_ptr<SliceTier> wrapped_disk;
  // used for reads, writes and erases of slices; a wrapper in tests
  SliceTier* disk_slices = nullptr;
  const std::unique_ptr<DeviceTier> device;  // the gpu tier; null: none
};

// Counters and latencies for statistics. Thread safe (relaxed atomics).
struct StoreMeters {
  // Returns the index of a tier or a durability in the arrays below.
  template <typename Key>
  static constexpr size_t Of(Key key) {
    return static_cast<size_t>(key);
  }
  void CountRemoved(Removal why) { removed[Of(why)].fetch_add(1, std::memory_order_relaxed); }
  // Returns the latency series of the tiers that exist.
  std::vector<LatencySeries> Latencies(bool has_disk, bool has_device, bool has_shared) const;

  Counters counters;
  LatencyHistogram lookups;
  std::array<LatencyHistogram, 6> slice_reads;  // for each tier: latencies of slice reads
  // for each tier: latencies of fetches with this slowest tier
  std::array<LatencyHistogram, 6> fetches;
  std::array<LatencyHistogram, 5> commits;  // for each reached durability: latencies of publishes
  std::array<std::atomic<uint64_t>, 6> hit_tokens{};  // for each tier: tokens of hits
  std::array<std::atomic<uint64_t>, kRemovals> removed{};
};

// Each tenant's drop number: the number of the tenant's last drop of all entries. It is part of the
// keys of everything that the tenant stores. Thread safe.
class DropNumbers {
 public:
  // name of the saved text on disk: never change it
  static constexpr char kNote[] = "drop numbers";
  // Limit of remembered tenants, about 100 bytes each. Beyond the limit, tenants without entries
  // are forgotten.
  static constexpr size_t kMaxTenants = 16'384;

  // Returns the tenant's drop number; 0 if the tenant never dropped all entries.
  uint64_t Of(const std::string& tenant) const ABSL_LOCKS_EXCLUDED(mu_);
  void Set(const std::string& tenant, uint64_t number,
           absl::FunctionRef<bool(const std::string& tenant)> has_any) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns the text that is saved on disk: a line for each tenant with the number, a space, and
  // the tenant's name escaped as in C. Never change this format.
  std::string Text() const ABSL_LOCKS_EXCLUDED(mu_);
  // Reads a saved text. Ignores lines with another format.
  void Parse(absl::string_view text) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, uint64_t> numbers_ ABSL_GUARDED_BY(mu_);
};

class StoreCore {
 public:
  // Number of steps in one hold of the lock; a step takes up to a microsecond.
  static constexpr size_t kStepsPerHold = 2048;
  // Number of expired restore points that a call removes in addition to its own work; each takes up
  // to 0.1 ms for a long prompt.
  static constexpr int kExpiredPerCall = 8;

  StoreCore(const StoreOptions& store_options, const StoreSeams& seams, std::string store_secret,
            std::shared_ptr<HostArena> arena, std::unique_ptr<DiskTier> disk);
  // Sets the executors. Call before any job. `reclaimer`: runs reclaims, which take minutes; null:
  // `executor` runs them.
  void StartJobs(std::unique_ptr<Executor> executor, std::unique_ptr<Executor> reclaimer);
  // Runs all accepted jobs, and then accepts no more. REQUIRES: the disk tier has stopped
  // reclaiming.
  void EndJobs();

  void SetDiskLimit(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  bool has_small_volume() const { return disk_limit_bytes < options.disk_bytes; }
  // Returns the capacity of the slowest tier, to which the limit of pins refers.
  uint64_t capacity_bytes() const {
    return tiers.disk != nullptr ? disk_limit_bytes.load() : options.host_bytes;
  }

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION(mu);  // called only by StoreLock
  // Lets waiting threads have the lock if the current hold has lasted long enough. Call after each
  // `steps` steps of a walk. Returns true if other threads had the lock; pointers that were read
  // before are then stale.
  bool Yield(size_t steps) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Returns after a waiting thread had the lock, or at once if no thread waits. Without this call,
  // a thread that releases the lock and takes it again at once starves other threads.
  void YieldLock() ABSL_LOCKS_EXCLUDED(mu);
  // Claims keys as SingleFlight::Claim does: everything that was read before is stale.
  void Claim(const std::vector<Digest>& keys) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Returns the number of threads that wait for the lock, without claimants of keys.
  size_t waiting() const { return waiting_.load(); }

  void Count(Counter counter, uint64_t amount = 1) { meters.counters.Add(counter, amount); }
  // Returns the key from which the keys of everything that the tenant stores now are derived.
  Digest RootOf(const Digest& fingerprint, const std::string& tenant) const {
    return RootKey(fingerprint, tenant, secret, drop_numbers.Of(tenant));
  }
  // Returns the description of a restore point, as List() shows it.
  RestorePoint Describe(const RestorePointEntry& point) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Returns the restore point; null if it does not exist or belongs to another tenant. Callers must
  // not be able to distinguish these cases.
  RestorePointEntry* FindOwned(const Digest& id, const std::string& tenant)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Removes at most `most` expired restore points; the default is for calls with other work to do.
  // Returns false if none had expired. An expired restore point is never served, however late it is
  // removed. While any remains, a boundary is usable only if it has a restore point of its own
  // (Fetcher).
  bool Expire(int most = kExpiredPerCall) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // Returns all slices of an object from RAM, verified; null if any slice is missing or wrong.
  // REQUIRES: the caller holds the object.
  HostCopy IntactCopy(StoredObject* object) ABSL_LOCKS_EXCLUDED(mu);

  // Erases removed objects from the gpu tier, and records what must be erased from disk. Returns
  // false if nothing was recorded.
  bool ProcessGarbage(const Garbage& garbage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu)
      ABSL_LOCKS_EXCLUDED(pending_mu_);
  // Calls EraseFromDisk() in the background, or in this thread if the executor is full.
  void EraseLater() ABSL_LOCKS_EXCLUDED(mu);
  // Erases all recorded entries from disk, and `orphans`: objects of a failed write, whose keys the
  // caller has claimed. Afterwards, no manifest that was recorded before this call remains; other
  // threads may still be erasing objects. If the disk is full or fails, it refuses erases; the next
  // call tries all of them again. If the store is restarted before that, the entries reappear.
  absl::Status EraseFromDisk(absl::Span<const uint64_t> orphans = {})
      ABSL_LOCKS_EXCLUDED(mu, erase_mu_, pending_mu_);
  // Reclaims erased bytes in the background, however few there are.
  void ReclaimSoon() ABSL_LOCKS_EXCLUDED(pending_mu_);
  // Call before a write. On a small volume, reclaims erased bytes if there are many, so that the
  // files stay within the volume however fast new entries replace old ones.
  void ReclaimBeforeWrite() ABSL_LOCKS_EXCLUDED(mu, pending_mu_);
  // Returns whether evicting for a write to disk makes sense. False: the last write found the disk
  // full, and there is still no space for `bytes`, or for a twentieth of the limit: another program
  // has filled the volume.
  bool MayEvictForDisk(uint64_t bytes);
  // Calls EraseFromDisk(), and makes the erases permanent, whatever is damaged later.
  absl::Status EraseForGood() ABSL_LOCKS_EXCLUDED(mu, erase_mu_, pending_mu_);

  const StoreOptions options;
  const std::string secret;
  SystemClock system_clock;
  Clock* const clock;
  StoreMeters meters;
  EventHub events;
  Warnings warnings;
  // descriptions of damage that the start found on disk; constant after the start
  std::vector<std::string> damage;
  StoreTiers tiers;
  StagedBytes staged;
  // Current limit of bytes on disk; lower than the option if the volume is too small.
  std::atomic<uint64_t> disk_limit_bytes{0};
  std::atomic<bool> lacks_room{false};  // whether the last write found the disk full
  std::atomic<uint64_t> reclaims{0};    // number of successful reclaims
  // Number of reclaims that have begun. A reclaim frees all bytes that were erased before it began.
  std::atomic<uint64_t> reclaims_begun{0};
  std::atomic<uint64_t> last_reclaim{
      // number (in the order of beginning) of the last reclaim that succeeded or found no space
      0};
  Executor* executor = nullptr;  // runs the jobs of all parts; null after EndJobs()

  DropNumbers drop_numbers;
  FingerprintBook fingerprints;

  absl::Mutex mu;
  ObjectTable objects ABSL_GUARDED_BY(mu);
  Catalog catalog ABSL_GUARDED_BY(mu);
  Evictor evictor ABSL_GUARDED_BY(mu);
  ComputeClaims claims ABSL_GUARDED_BY(mu);
  SingleFlight flight ABSL_GUARDED_BY(mu);
  History history ABSL_GUARDED_BY(mu);
  uint64_t yields ABSL_GUARDED_BY(mu) = 0;
  std::function<void()> between_holds;  // for tests: called by Yield() without the lock

 private:
  void AwaitOthers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // The catalog calls this for each removed restore point.
  void OnRemoved(const RestorePointEntry& point, Removal why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void ReclaimLater(uint64_t erased_bytes) ABSL_LOCKS_EXCLUDED(pending_mu_);
  void QueueReclaim() ABSL_LOCKS_EXCLUDED(pending_mu_);
  void Reclaim() ABSL_LOCKS_EXCLUDED(mu, pending_mu_, reclaim_mu_);

  // Records erases that failed again, before those that were recorded since.
  void RequeueErases(Garbage taken) ABSL_LOCKS_EXCLUDED(pending_mu_);

  // Held while manifests are erased, so that objects that were recorded after these manifests are
  // not erased before them.
  absl::Mutex erase_mu_ ABSL_ACQUIRED_BEFORE(pending_mu_);
  // held by a reclaim: one at a time
  absl::Mutex reclaim_mu_ ABSL_ACQUIRED_BEFORE(mu, pending_mu_);
  absl::Mutex pending_mu_ ABSL_ACQUIRED_AFTER(mu);
  // Entries that must be erased from disk, oldest first. A number in this list is never written
  // again.
  Garbage pending_erases_ ABSL_GUARDED_BY(pending_mu_);
  std::atomic<bool> may_erase_{
      false};  // whether anything is recorded, or manifests are being erased
  uint64_t unreclaimed_bytes_ ABSL_GUARDED_BY(pending_mu_) =
      0;  // bytes that were erased, but may still be in files
  bool reclaim_queued_ ABSL_GUARDED_BY(pending_mu_) = false;
  bool reclaims_all_ ABSL_GUARDED_BY(pending_mu_) =
      false;  // whether the next reclaim must reclaim everything, even if it moves many bytes
  std::atomic<size_t> waiting_{0};          // number of threads in Lock() and AwaitOthers()
  uint64_t holds_ ABSL_GUARDED_BY(mu) = 0;  // how often the lock was taken
  size_t steps_ ABSL_GUARDED_BY(mu) = 0;    // number of steps since the lock was taken
  std::unique_ptr<Executor> own_executor_, reclaimer_;
};

// Holds the store's lock. The destructor starts erasing everything that the catalog removed during
// the hold.
class ABSL_SCOPED_LOCKABLE StoreLock {
 public:
  // Which thread erases the removed entries from disk.
  enum OnDisk {
    kInBackground,
    kErasesItself,  // this thread calls EraseFromDisk() after it has released the lock
  };

  explicit StoreLock(StoreCore* core, OnDisk on_disk = kInBackground)
      ABSL_EXCLUSIVE_LOCK_FUNCTION(core->mu)
      : core_(core), on_disk_(on_disk) {
    core_->Lock();
  }
  ~StoreLock() ABSL_UNLOCK_FUNCTION() {
    Garbage garbage = core_->objects.TakeGarbage();
    const bool erases = core_->ProcessGarbage(garbage);
    core_->mu.Unlock();
    garbage.host_copies.clear();  // free the RAM copies before the work on disk
    if (erases && on_disk_ == kInBackground) core_->EraseLater();
  }
  StoreLock(const StoreLock&) = delete;
  StoreLock& operator=(const StoreLock&) = delete;

 private:
  StoreCore* const core_;
  const OnDisk on_disk_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_STORE_CORE_H_
