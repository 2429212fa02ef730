// The store behind tiered_store.h: one mutex over the catalog, sessions around it, tiers outside.
//
// Private to cache_store/ and its tests. Locking: mu_ guards bookkeeping and is never held across
// disk I/O, hashing or callbacks; RAM-tier calls under it move pointers only. Order: mu_ before the
// tiers' and the event hub's own mutexes.
//
//   lookup:  hash the chain -> mu_{walk, take references} -> read and verify outside
//   publish: mu_{what is lacking, references} -> stage -> mu_{claim, make room} -> write slices,
//            then the manifests -> mu_{show} -> answer
#ifndef HEARTH_CACHE_STORE_STORE_STORE_IMPL_H_
#define HEARTH_CACHE_STORE_STORE_STORE_IMPL_H_

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cache_store/base/clock.h"
#include "cache_store/base/executor.h"
#include "cache_store/base/latency.h"
#include "cache_store/base/repeating_thread.h"
#include "cache_store/base/staged_bytes.h"
#include "cache_store/base/stats.h"
#include "cache_store/catalog/catalog.h"
#include "cache_store/catalog/compute_leases.h"
#include "cache_store/catalog/erasures.h"
#include "cache_store/catalog/fingerprint_book.h"
#include "cache_store/catalog/history.h"
#include "cache_store/catalog/single_flight.h"
#include "cache_store/disk/disk_tier.h"
#include "cache_store/memory/device_tier.h"
#include "cache_store/memory/host_arena.h"
#include "cache_store/memory/host_tier.h"
#include "cache_store/store/event_hub.h"
#include "cache_store/store/persisting.h"
#include "cache_store/store/scrub.h"
#include "cache_store/store/store_seams.h"
#include "cache_store/store/tiered_store.h"

namespace hearth {

// kInvalidArgument names the field.
absl::Status CheckQuery(const PrefixQuery& query);

class FetchSessionImpl;
class PublishSessionImpl;
struct Promotion;
struct BoundaryState;
class MissExplainer;
class UnloadedIndex;
struct PublishPlan;
struct PublishBoundary;

class Store : public SteppedStore {
 public:
  Store(const StoreOptions& options, StoreSeams seams, std::string secret,
        std::shared_ptr<HostArena> arena, std::unique_ptr<DiskTier> disk);
  ~Store() override;
  absl::Status Recover();  // rebuilds the index, or begins to; before any other method, once
  void StartThreads();     // the loader, the scrub, upkeep

  absl::StatusOr<std::unique_ptr<FetchSession>> Fetch(const PrefixQuery& query,
                                                      uint32_t above_tokens,
                                                      uint32_t max_tokens) override;
  absl::StatusOr<std::unique_ptr<FetchSession>> FetchById(const Digest& id,
                                                          const std::string& tenant) override;
  absl::StatusOr<std::unique_ptr<PublishSession>> Publish(PublishSpec spec) override;
  absl::StatusOr<LeaseTurn> Lease(const PrefixQuery& query, LeaseAsk ask) override;
  void Observe(const Fingerprint& fingerprint, const std::string& tenant) override;
  absl::StatusOr<ExplainReport> Explain(const PrefixQuery& query) override;
  absl::StatusOr<RestorePoint> SetPinned(const Digest& id, const std::string& tenant,
                                         bool pinned) override;
  absl::StatusOr<DropResult> Drop(const Digest& id, const std::string& tenant, bool force) override;
  absl::StatusOr<DropResult> DropAll(const std::string& tenant, bool force) override;
  absl::StatusOr<QuarantineResult> Quarantine(const PrefixQuery& query,
                                              absl::Span<const ObjectId> objects) override;
  std::vector<RestorePoint> List(const std::string& tenant) override;
  std::vector<RestorePoint> Hottest(size_t limit) override;
  StoreStats Stats() override;
  TenantFigures StatsOf(const std::string& tenant) override;
  uint64_t incarnation() const override { return incarnation_; }
  std::optional<SharedMemory> shared_memory() const override;
  std::optional<SharedMemory> shared_device() const override;
  void WaitForMemory() override;
  WatchStart Subscribe(const std::string& tenant, const WatchFrom& from,
                       EventCallback callback) override;
  absl::StatusOr<BackupReport> BackUp(const std::string& to) override;
  absl::Status Flush(absl::Time deadline) override;

  absl::Duration ScrubStep() override;
  absl::Duration UpkeepStep() override;
  absl::Duration LoadStep() override;
  bool is_loading() const override { return is_loading_.load(); }
  void CheckInvariants() override;
  uint64_t index_finds() override;

 private:
  friend class FetchSessionImpl;
  friend class PublishSessionImpl;

  // store_namespaces.cc
  struct Namespace {  // that a prompt is looked for in
    std::string tenant;
    std::shared_ptr<const KnownFingerprint> model;
    PromptChain chain;  // to the highest boundary that is of use
  };
  struct Found {
    bool is_known = false;  // something of this fingerprint is stored
    uint32_t matched_tokens = 0;
    const Namespace* space = nullptr;
    SegmentNode* node = nullptr;  // ends the longest restore point
    uint32_t boundary = 0;        // 0: none
  };
  // The tenant's own first. None: no fingerprint like this was seen in any of them. kCancelled.
  absl::StatusOr<std::vector<Namespace>> NamespacesOf(const PrefixQuery& query, uint32_t highest)
      ABSL_LOCKS_EXCLUDED(mu_);
  Found Search(const PrefixQuery& query, const Namespace& space, uint32_t highest)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // store_fetch.cc
  absl::StatusOr<std::unique_ptr<FetchSession>> Lookup(const PrefixQuery& query,
                                                       uint32_t above_tokens, uint32_t max_tokens);
  std::unique_ptr<FetchSession> Miss(const PrefixQuery& query, Counter why, const char* reason,
                                     uint32_t matched_tokens);
  std::unique_ptr<FetchSessionImpl> BeginFetch(const Namespace& space, SegmentNode* node,
                                               std::vector<Digest>* new_points)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A session that holds the point and all it names.
  std::unique_ptr<FetchSessionImpl> Hold(RestorePointEntry* point)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  RestorePointEntry* MakePoint(const Namespace& space, SegmentNode* node)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndFetch(FetchSessionImpl* session);
  void CountHit(const FetchSessionImpl& session) ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<SliceView> ReadSlice(StoredObject* object, size_t slice, bool* from_disk);
  bool IsReadFailureForGood(StoredObject* object, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(mu_);
  void QuarantineHostCopy(StoredObject* object);
  void Quarantine(StoredObject* object, const absl::Status& why);
  bool QuarantineLocked(StoredObject* object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // store_promotion.cc
  void BeginPromotion(RestorePointEntry* point, FetchSessionImpl* session)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SkipPromotion(Promotion* promotion);
  // Whether this reader is to promote the object: it is not in RAM, nobody else does, and what is
  // held for promotions stays below its limit.
  bool ClaimPromotion(StoredObject* object, Promotion* promotion) ABSL_LOCKS_EXCLUDED(mu_);
  void UnclaimPromotion(StoredObject* object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Promote(std::shared_ptr<Promotion> promotion, StoredObject* object,
               std::vector<SliceView> views) ABSL_LOCKS_EXCLUDED(mu_);
  RestorePointEntry* PromotedPoint(const Promotion& promotion) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeIn(Promotion* promotion, StoredObject* object, std::vector<SliceView> views)
      ABSL_LOCKS_EXCLUDED(mu_);

  // store_memory.cc
  std::shared_ptr<std::byte> AllocateSlice(size_t bytes);
  SliceView InArena(const SliceView& slice);

  // store_device.cc
  bool IsOnDevice(absl::Span<StoredObject* const> objects) const;
  void QueueForDevice(const FetchSessionImpl& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CopyToDevice(uint64_t number) ABSL_LOCKS_EXCLUDED(mu_);

  // store_publish.cc
  absl::Status PlanNeeded(PublishSessionImpl* session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndPublish(PublishSessionImpl* session);
  absl::StatusOr<PublishResult> CommitPublish(PublishSessionImpl* session);
  void ClaimFor(PublishSessionImpl* session, PublishPlan* plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status AdoptStaged(PublishSessionImpl* session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ChooseBoundaries(PublishSessionImpl* session, PublishPlan* plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status ReserveQuota(PublishSessionImpl* session, PublishPlan* plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status MakeRoom(PublishSessionImpl* session, PublishPlan* plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Show(PublishSessionImpl* session, PublishPlan* plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndPlan(PublishPlan* plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  ManifestRecord RecordFor(const PublishSessionImpl& session, const PublishBoundary& kept);
  absl::Status ViewsFor(PublishSessionImpl* session, const StoredObject* object,
                        std::vector<SliceView>* views) ABSL_LOCKS_EXCLUDED(mu_);
  SegmentNode* LinkBoundary(PublishSessionImpl* session, const PublishBoundary& kept)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Showable(const PublishSessionImpl& session, const PublishBoundary& kept) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AdmitToHost(PublishSessionImpl* session, const PublishBoundary& kept)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool PutInHost(StoredObject* object, const std::vector<SliceView>& views)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // store_leases.cc
  LeaseTurn TakeTurn(const PrefixQuery& query, const std::vector<Namespace>& spaces, LeaseAsk ask,
                     ComputeLeases::Wakes* wakes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Promise(const PrefixQuery& query, const KvLayout& layout, const PromptChain& chain,
               const LeaseAsk& ask, absl::Time now, LeaseTurn* turn)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountWait(const LeaseAsk& ask, absl::Time now, const LeaseTurn& turn);
  // Calls `give_back`, under no lock, when the last copy goes.
  static std::shared_ptr<void> Ticket(std::function<void()> give_back);
  void WakeWaiters(const PublishPlan& plan) ABSL_LOCKS_EXCLUDED(mu_);

  // store_upkeep.cc
  // When what this publishes is over. Says in the notes where that is earlier than was asked for.
  absl::Time ExpiryOf(const PublishSpec& spec, absl::Time now,
                      std::vector<std::string>* notes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Not a boundary that is there only because what is over is still held.
  bool IsUsable(const BoundaryState& state, const KvLayout& layout, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // False: nothing was over.
  bool ExpireSome(int most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ExpireByTheWay() ABSL_LOCKS_EXCLUDED(mu_);
  // REQUIRES: the points' ids are claimed.
  absl::Status WriteRenewals(const PublishPlan& plan) ABSL_LOCKS_EXCLUDED(mu_);
  // True: some, and there may be more.
  bool NoteUses() ABSL_LOCKS_EXCLUDED(mu_);

  // store_persist.cc
  // Fills `compressed_bytes` of the work.
  absl::Status Write(Persisting* work, bool sync) ABSL_LOCKS_EXCLUDED(mu_);
  // Compresses the views of one object where the options ask for it and it is worth it; 0: none.
  uint64_t Compress(const Fingerprint& fingerprint, std::vector<SliceView>* views);
  void ScheduleWriteBehind(std::vector<Digest> points, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  void WriteBehind(const Digest& id) ABSL_LOCKS_EXCLUDED(mu_);
  ManifestRecord ManifestOf(const RestorePointEntry& point) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool PreparePersist(RestorePointEntry* point, Persisting* work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HostViews(const StoredObject* object, std::vector<SliceView>* views);
  // Of a failed write: notes that what it may have left is to be erased; the objects that it began.
  // These may be in RAM and written again: only while their keys are claimed can they be erased.
  std::vector<uint64_t> Forsake(const Persisting& work) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  struct Unsettled {
    bool in_host = false, on_disk = false;
  };
  // Erases what the catalog let go from RAM, and notes what is to be erased from the disk.
  Unsettled SettleHost() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Unsettled Settle(const Garbage& garbage) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReclaimLater(uint64_t erased_bytes) ABSL_LOCKS_EXCLUDED(mu_);
  void Reclaim() ABSL_LOCKS_EXCLUDED(mu_);
  // Erases all that was noted, by whomever, and objects that were written in vain. What fails is
  // noted again.
  absl::Status SettleDisk(absl::Span<const uint64_t> in_vain = {}) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status EraseFromDisk(absl::Span<const uint64_t> in_vain, uint64_t* erased_bytes)
      ABSL_LOCKS_EXCLUDED(mu_);
  void SettleLater(const Unsettled& left) ABSL_LOCKS_EXCLUDED(mu_);

  // store_scrub.cc
  bool BeginScrubPass(absl::Time now);
  StoredObject* HoldScrubbed(bool* at_end) ABSL_LOCKS_EXCLUDED(mu_);
  void ScrubSlice(StoredObject* object, size_t slice) ABSL_LOCKS_EXCLUDED(mu_);
  void ScrubObjectRecord(const StoredObject* object) ABSL_LOCKS_EXCLUDED(mu_);
  void ScrubManifest(const StoredObject* object) ABSL_LOCKS_EXCLUDED(mu_);
  void RepairManifest(const Digest& id) ABSL_LOCKS_EXCLUDED(mu_);
  // Writes its manifest again. kNotFound: it is not on disk. REQUIRES: its id is claimed.
  absl::Status RewriteManifest(const Digest& id, bool sync) ABSL_LOCKS_EXCLUDED(mu_);
  bool IsDiskInUse();
  void SaveScrubProgress();

  // store_load.cc
  void LoadFor(const PromptChain& chain, const KvLayout& layout) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status LoadPoint(const Digest& id) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status WaitUntilLoaded() ABSL_LOCKS_EXCLUDED(mu_);  // kUnavailable after load_patience_
  absl::StatusOr<bool> LoadNext() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status FinishLoading() ABSL_LOCKS_EXCLUDED(mu_);
  void NoteDamage(std::vector<std::string> damage, const std::vector<std::string>& mended);
  void NoteLost(const Digest& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of what was promised and turned out to be of no use. True: nothing of it was.
  bool NoteDropped(const UnloadedIndex& unloaded) ABSL_LOCKS_EXCLUDED(mu_);
  void AdoptUses(absl::Span<const Digest> points) ABSL_LOCKS_EXCLUDED(mu_);

  // store_adopt.cc
  // Under one hold of the lock: a millisecond or so, of the longest prompts some 20.
  static constexpr size_t kManifestsAtOnce = 8;
  struct ReadManifest;
  absl::Status LoadManifests(absl::Span<const uint64_t> numbers) ABSL_LOCKS_EXCLUDED(mu_);
  ReadManifest CheckManifest(ManifestRecord record, const UnloadedIndex& unloaded);
  bool AdoptManifest(const ReadManifest& read) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteUseless(uint64_t number, const ReadManifest& read) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Names what is quarantined. `point`: its restore point's id, zeros: it cannot be told.
  void NoteRetired(uint64_t number, const Digest& point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // store_quarantine.cc
  struct UnloadedName;
  std::vector<StoredObject*> FindObjects(const PrefixQuery& query, const PromptChain& chain,
                                         const KvLayout& layout, absl::Span<const ObjectId> objects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What is not loaded yet and names one of these, in `names`. kCancelled; other errors: of the
  // disk.
  absl::Status FindUnloaded(const absl::flat_hash_set<uint64_t>& objects,
                            const std::function<bool()>& stopped, std::vector<UnloadedName>* names)
      ABSL_LOCKS_EXCLUDED(mu_);
  void TakeOut(const std::vector<StoredObject*>& objects, QuarantineResult* result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SettleUnloaded(const std::vector<UnloadedName>& names) ABSL_LOCKS_EXCLUDED(mu_);
  std::vector<uint64_t> PendingOf(const std::vector<uint64_t>& manifests) ABSL_LOCKS_EXCLUDED(mu_);

  // store_admin.cc
  absl::Status PinLocked(const Digest& id, const std::string& tenant, bool pinned,
                         RestorePoint* described, uint64_t* durable_number)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // REQUIRES: the point's id is claimed.
  absl::Status PersistPin(uint64_t number, bool pinned);
  absl::Status CheckIsWhole() const;  // as far as the start could tell
  std::vector<LatencySeries> Latencies() const;
  RestorePoint Describe(const RestorePointEntry& point) const;
  void OnRemoved(const RestorePointEntry& point, Removal why);
  DropResult DropPoints(const std::vector<RestorePointEntry*>& points, bool force)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  RestorePointEntry* FindOwned(const Digest& id, const std::string& tenant)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // store_explain.cc
  ExplainReport ExplainOwn(const PrefixQuery& query);
  void AddPublic(const ExplainReport& theirs, const PrefixQuery& query, ExplainReport* report);
  void ExplainCuts(const PrefixQuery& query, const KnownFingerprint& model, ExplainReport* report);
  void ExplainOthers(const PrefixQuery& query, const KnownFingerprint* asked,
                     ExplainReport* report);
  struct PathSums {
    uint64_t bytes = 0;
    bool in_host = true;  // all of it
  };
  static PathSums SumsOf(const KvLayout& layout, const SegmentNode* last,
                         absl::flat_hash_map<const SegmentNode*, PathSums>* of_globals);
  BoundaryReport ReportOn(const BoundaryState& state, const MissExplainer& misses,
                          const KvLayout& layout,
                          absl::flat_hash_map<const SegmentNode*, PathSums>* of_globals)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const StoreOptions options_;
  const std::string secret_;
  const uint64_t incarnation_;
  SystemClock system_clock_;
  Clock* const clock_;
  const absl::Duration load_patience_;
  Counters counters_;
  LatencyHistogram lookup_seconds_;
  LatencyHistogram read_seconds_[5];    // of a slice, by Tier
  LatencyHistogram fetch_seconds_[5];   // of what was read whole, by its slowest Tier
  LatencyHistogram commit_seconds_[4];  // of a publish, by Durability reached
  EventHub events_;
  Warnings warnings_;
  std::vector<std::string> damage_;  // that the start found on disk; constant from then on
  std::string unmended_;             // the first line of it by which something may be lost
  std::atomic<uint64_t> retired_unloaded_{0};  // manifests that a quarantine took while they loaded
  const std::shared_ptr<HostArena> arena_;     // null: no RAM tier
  HostTier host_;
  const std::unique_ptr<DiskTier> disk_;  // null: RAM only
  std::unique_ptr<SliceTier> wrapped_host_, wrapped_disk_, decoded_disk_;
  SliceTier* unverified_host_ = nullptr;
  std::unique_ptr<SliceTier> host_slices_, disk_slices_;  // verified
  const std::unique_ptr<DeviceTier> device_;              // null: no gpu tier
  absl::Mutex mu_;
  Catalog catalog_ ABSL_GUARDED_BY(mu_);
  SingleFlight flight_ ABSL_GUARDED_BY(mu_);
  ComputeLeases leases_ ABSL_GUARDED_BY(mu_);
  FingerprintBook fingerprints_ ABSL_GUARDED_BY(mu_);
  History history_ ABSL_GUARDED_BY(mu_);
  Erasures erasures_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<UnloadedIndex> unloaded_ ABSL_GUARDED_BY(mu_);  // null: all is loaded
  std::vector<Digest> implicit_points_ ABSL_GUARDED_BY(mu_);      // to be written then
  std::atomic<bool> is_loading_{false};                  // follows unloaded_: saves taking the lock
  StagedBytes staged_{options_.max_staged_bytes};        // has a mutex of its own
  uint64_t promoting_bytes_ ABSL_GUARDED_BY(mu_) = 0;    // of objects with StoredObject::promoting
  uint64_t unreclaimed_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // erased, but maybe still in files
  bool reclaim_queued_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t hit_tokens_[5] ABSL_GUARDED_BY(mu_) = {};       // by Tier
  uint64_t removed_[kRemovals] ABSL_GUARDED_BY(mu_) = {};  // restore points, by Removal

  ScrubState scrub_;                           // of whoever calls ScrubStep
  std::atomic<int64_t> last_scrub_unix_s_{0};  // the last complete pass
  absl::Time uses_noted_;                      // of whoever calls UpkeepStep

  // Last: their jobs use everything above. Reclaiming takes minutes and copies to a device may come
  // by the hundred: each is on its own, so that nothing waits behind it; with an executor from a
  // test they are that one's jobs.
  std::unique_ptr<Executor> reclaimer_;
  std::unique_ptr<Executor> device_copier_;  // null: the executor is a test's, or no gpu tier
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<RepeatingThread> scrubber_, upkeeper_, loader_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_STORE_IMPL_H_
