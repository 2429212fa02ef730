// StoreCore: what all parts of a store share: its lock with the catalog under it, its tiers and
// meters, and how what leaves the catalog is erased.
//
// `mu` guards bookkeeping and is never held across disk I/O, hashing or callbacks. Order: `mu`
// before the tiers' and the event hub's own mutexes, and before `noted_mu_`; whoever erases from
// the disk holds `mu` at no time. What grows with a prompt is done in steps, and others have the
// lock in between (Yield).
//
// RAM copies are erased at once, under the lock; copies on disk later: manifests by one thread at a
// time, so that no manifest outlives an object that it names, objects by any. A failed erase is
// counted, and tried again with the next and at the store's end.
//
// Made by Store before its parts, and outlives them. Thread safety: what has no lock named is const
// or thread safe. Ownership: owns all of it.
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

// kInvalidArgument names the field.
absl::Status CheckPrefix(absl::Span<const uint32_t> token_ids, absl::Span<const uint32_t> cuts);
// A walk along a prompt is made under one hold of the lock, in some milliseconds. Of a longer one
// the beginning is stored: with the smallest chunks 131,072 tokens, the longest of Gemma 3.
inline constexpr uint32_t kMaxChunks = 8192;
inline uint32_t StoredTokens(uint32_t tokens, const KvLayout& layout) {
  return std::min(tokens, kMaxChunks * layout.chunk_tokens);
}
// kNotFound, for an id that FindOwned does not find.
absl::Status NoSuchPoint();

// Claims on segment keys, so that of several publishers of one segment only one writes. A claimant
// waits until none of its keys is claimed and takes all at once, so claims cannot deadlock.
class SingleFlight {
 public:
  // REQUIRES: `mu` held. Releases it while waiting; everything read before is stale afterwards.
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
  // Whether a claimant waits for the lock alone.
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

// An error with the tier's name.
inline absl::Status OfDisk(const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("disk tier: ", status.message()));
}

// The tiers beside RAM, whose slices are the objects' (StoredObject::host), and RAM's memory. What
// is read from disk is compared with its length and digest here. Thread safe, as the tiers are.
struct StoreTiers {
  StoreTiers(const StoreOptions& options, const StoreSeams& seams,
             std::shared_ptr<HostArena> host_arena, std::unique_ptr<DiskTier> disk_tier);

  // Memory for a slice, from the arena if that has room.
  std::shared_ptr<std::byte> AllocateSlice(size_t bytes) const;
  // The same bytes where workers can map them, if that is worth a copy.
  SliceView InArena(const SliceView& slice) const;
  // A slice from disk, verified. kDataLoss: it is gone, or it is not the object's.
  absl::StatusOr<SliceView> ReadFromDisk(const StoredObject& object, size_t slice) const;
  // Whether all of these have a copy on the device.
  bool AreOnDevice(absl::Span<StoredObject* const> objects) const;

  const bool is_shared;                    // StoreOptions::shared_memory
  const uint64_t min_table_bytes;          // DiskTier::kMinTableBytes, or a test's
  const std::shared_ptr<HostArena> arena;  // null: no RAM tier
  const std::unique_ptr<DiskTier> disk;    // null: RAM only
  std::unique_ptr<SliceTier> wrapped_disk;
  SliceTier* disk_slices = nullptr;          // what is written to and erased
  const std::unique_ptr<DeviceTier> device;  // null: no gpu tier
};

// Counters and timings, for statistics. Thread safe: relaxed atomics, read one by one.
struct StoreMeters {
  // The place of a tier or a durability in the arrays.
  template <typename Key>
  static constexpr size_t Of(Key key) {
    return static_cast<size_t>(key);
  }
  void CountRemoved(Removal why) { removed[Of(why)].fetch_add(1, std::memory_order_relaxed); }
  // Of the tiers that exist.
  std::vector<LatencySeries> Latencies(bool has_disk, bool has_device, bool has_shared) const;

  Counters counters;
  LatencyHistogram lookups;
  std::array<LatencyHistogram, 6> slice_reads;        // by tier
  std::array<LatencyHistogram, 6> fetches;            // by the slowest tier that one came from
  std::array<LatencyHistogram, 5> commits;            // by the durability that was reached
  std::array<std::atomic<uint64_t>, 6> hit_tokens{};  // by tier
  std::array<std::atomic<uint64_t>, kRemovals> removed{};
};

// The number of each tenant's last drop of all, which is in the keys of all it stores. Thread safe.
class DropNumbers {
 public:
  static constexpr char kNote[] = "drop numbers";  // of their text on disk: never change it
  // Some 100 bytes each. Beyond, those of tenants that have nothing are forgotten.
  static constexpr size_t kMaxTenants = 16'384;

  // 0: it never dropped all.
  uint64_t Of(const std::string& tenant) const ABSL_LOCKS_EXCLUDED(mu_);
  void Set(const std::string& tenant, uint64_t number,
           absl::FunctionRef<bool(const std::string& tenant)> has_any) ABSL_LOCKS_EXCLUDED(mu_);
  // On disk: never change it. A line for each tenant: number, space, the tenant escaped as in C.
  std::string Text() const ABSL_LOCKS_EXCLUDED(mu_);
  // Lines that are anything else are of no use.
  void Parse(absl::string_view text) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  absl::flat_hash_map<std::string, uint64_t> numbers_ ABSL_GUARDED_BY(mu_);
};

class StoreCore {
 public:
  // Of up to a microsecond each, under one hold of the lock.
  static constexpr size_t kStepsAHold = 2048;
  // At up to 0.1 ms each for a long prompt, by a call that waits for something else.
  static constexpr int kExpiredInPassing = 8;

  StoreCore(const StoreOptions& store_options, const StoreSeams& seams, std::string store_secret,
            std::shared_ptr<HostArena> arena, std::unique_ptr<DiskTier> disk);
  // Before any job. `reclaimer`: for work that takes minutes; null: the executor does it.
  void StartJobs(std::unique_ptr<Executor> executor, std::unique_ptr<Executor> reclaimer);
  // Runs what was accepted. REQUIRES: the disk tier was told to stop reclaiming.
  void EndJobs();

  void SetDiskLimit(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  bool has_small_volume() const { return disk_limit_bytes < options.disk_bytes; }
  // Of the slowest tier: pins are a share of it.
  uint64_t capacity_bytes() const {
    return tiers.disk != nullptr ? disk_limit_bytes.load() : options.host_bytes;
  }

  void Lock() ABSL_EXCLUSIVE_LOCK_FUNCTION(mu);  // StoreLock's
  // To be called after each `steps` steps of a walk. True: others had the lock, and pointers read
  // before are stale.
  bool Yield(size_t steps) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Returns when a thread that waits for the lock had it, or at once if none waits. A thread that
  // releases the lock and takes it again leaves others no chance.
  void LetOthersIn() ABSL_LOCKS_EXCLUDED(mu);
  // As SingleFlight::Claim: everything read before is stale afterwards.
  void Claim(const std::vector<Digest>& keys) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Threads that wait for the lock, aside from claimants.
  size_t waiting() const { return waiting_.load(); }

  void Count(Counter counter, uint64_t amount = 1) { meters.counters.Add(counter, amount); }
  // Of the keys of what the tenant stores now.
  Digest RootOf(const Digest& fingerprint, const std::string& tenant) const {
    return RootKey(fingerprint, tenant, secret, drop_numbers.Of(tenant));
  }
  // As List shows it.
  RestorePoint Describe(const RestorePointEntry& point) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Null when there is none, or when it is another tenant's, which callers must not be able to
  // tell.
  RestorePointEntry* FindOwned(const Digest& id, const std::string& tenant)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Removes expired restore points, `most` at most; without it as many as a call may that does
  // something else. False: nothing had expired. An expired point is never served, however late it
  // is removed; while any is left, only boundaries with a restore point of their own are usable
  // (Fetcher).
  bool Expire(int most = kExpiredInPassing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // All slices of an object from RAM, verified. Null: some are missing or wrong. REQUIRES: held.
  HostCopy IntactCopy(StoredObject* object) ABSL_LOCKS_EXCLUDED(mu);

  // Erases from the device, and notes what is to be erased from the disk. False: nothing is.
  bool CarryOut(const Garbage& garbage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu)
      ABSL_LOCKS_EXCLUDED(noted_mu_);
  // EraseFromDisk in the background, or in this thread when the executor is full.
  void EraseLater() ABSL_LOCKS_EXCLUDED(mu);
  // Erases what was noted so far from the disk, and `orphans`: objects of a failed write, whose
  // keys the caller has claimed. No manifest noted before the call is left then; another caller may
  // still erase objects. A disk that is full or fails takes no erase; the next one that succeeds
  // takes all that wait. A start before that would bring them back.
  absl::Status EraseFromDisk(absl::Span<const uint64_t> orphans = {})
      ABSL_LOCKS_EXCLUDED(mu, erase_mu_, noted_mu_);
  // Has the disk give back erased bytes in the background, however few they are.
  void ReclaimSoon() ABSL_LOCKS_EXCLUDED(noted_mu_);
  // On a small volume, before a write: gives back erased bytes when there are many, so that files
  // stay within the volume however fast publishes replace each other.
  void ReclaimBeforeWrite() ABSL_LOCKS_EXCLUDED(mu, noted_mu_);
  // False: the last write found no room on the disk, and there still is none for `bytes` more, nor
  // for a twentieth of the limit. To evict for them would help nobody: another program has filled
  // the volume.
  bool MayEvictForDisk(uint64_t bytes);
  // As EraseFromDisk; what was erased stays so, whatever is damaged later.
  absl::Status EraseForGood() ABSL_LOCKS_EXCLUDED(mu, erase_mu_, noted_mu_);

  const StoreOptions options;
  const std::string secret;
  SystemClock system_clock;
  Clock* const clock;
  StoreMeters meters;
  EventHub events;
  Warnings warnings;
  std::vector<std::string> damage;  // that the start found on disk; constant from then on
  StoreTiers tiers;
  StagedBytes staged;
  // The limit in force: lower than the option on a volume that is too small for that.
  std::atomic<uint64_t> disk_limit_bytes{0};
  std::atomic<bool> lacks_room{false};  // the last write found the disk full
  std::atomic<uint64_t> reclaims{0};    // that gave erased bytes back
  // What is erased before a reclaim begins, it gives back, or finds no room to.
  std::atomic<uint64_t> reclaims_begun{0};
  std::atomic<uint64_t> last_reclaim{0};  // the number, in order of their beginning, of that
  Executor* executor = nullptr;           // for jobs of all parts; null once these have ended

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
  std::function<void()> between_holds;  // for tests: called by Yield, without the lock

 private:
  void AwaitOthers() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Called by the catalog for each restore point that leaves.
  void OnRemoved(const RestorePointEntry& point, Removal why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void ReclaimLater(uint64_t erased_bytes) ABSL_LOCKS_EXCLUDED(noted_mu_);
  void QueueReclaim() ABSL_LOCKS_EXCLUDED(noted_mu_);
  void Reclaim() ABSL_LOCKS_EXCLUDED(mu, noted_mu_, reclaim_mu_);

  // What could not be erased: before what was noted meanwhile.
  void NoteAgain(Garbage taken) ABSL_LOCKS_EXCLUDED(noted_mu_);

  // Held while manifests are erased: objects that were noted after them wait until they are gone.
  absl::Mutex erase_mu_ ABSL_ACQUIRED_BEFORE(noted_mu_);
  absl::Mutex reclaim_mu_ ABSL_ACQUIRED_BEFORE(mu, noted_mu_);  // one Reclaim at a time
  absl::Mutex noted_mu_ ABSL_ACQUIRED_AFTER(mu);
  // To be erased from the disk, the first noted first. A number noted here is never written again.
  Garbage noted_ ABSL_GUARDED_BY(noted_mu_);
  std::atomic<bool> may_erase_{false};  // false: nothing is noted, and no manifest being erased
  uint64_t unreclaimed_bytes_ ABSL_GUARDED_BY(noted_mu_) = 0;  // erased, but maybe still in files
  bool reclaim_queued_ ABSL_GUARDED_BY(noted_mu_) = false;
  bool reclaims_all_ ABSL_GUARDED_BY(noted_mu_) = false;  // the next one, also where it moves much
  std::atomic<size_t> waiting_{0};                        // threads in Lock and AwaitOthers
  uint64_t holds_ ABSL_GUARDED_BY(mu) = 0;                // of the lock, until now
  size_t steps_ ABSL_GUARDED_BY(mu) = 0;                  // of this hold
  std::unique_ptr<Executor> own_executor_, reclaimer_;
};

// Holds the store's mutex; its destructor has everything erased that the catalog removed meanwhile.
class ABSL_SCOPED_LOCKABLE StoreLock {
 public:
  // Who erases from the disk.
  enum OnDisk {
    kInBackground,
    kErasesItself,  // the holder, by EraseFromDisk, after it released the lock
  };

  explicit StoreLock(StoreCore* core, OnDisk on_disk = kInBackground)
      ABSL_EXCLUSIVE_LOCK_FUNCTION(core->mu)
      : core_(core), on_disk_(on_disk) {
    core_->Lock();
  }
  ~StoreLock() ABSL_UNLOCK_FUNCTION() {
    Garbage garbage = core_->objects.TakeGarbage();
    const bool erases = core_->CarryOut(garbage);
    core_->mu.Unlock();
    garbage.host_copies.clear();  // RAM is not to wait behind the disk
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
