// The store behind tiered_store.h: one mutex over the catalog, sessions around it, tiers outside.
//
// Private to cache_store/. Locking: store_state.h.
//
//   lookup:  hash the chain -> lock: walk, take references -> read and verify outside
//   publish: lock: what is lacking, references -> stage -> lock: claim, make room -> write slices,
//            then the manifests -> lock: show -> answer
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
#include "cache_store/base/executor.h"
#include "cache_store/base/repeating_thread.h"
#include "cache_store/base/staged_bytes.h"
#include "cache_store/catalog/compute_leases.h"
#include "cache_store/store/persisting.h"
#include "cache_store/store/scrub.h"
#include "cache_store/store/store_core.h"

namespace hearth {

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
      ABSL_LOCKS_EXCLUDED(state_->mu);
  Found Search(const PrefixQuery& query, const Namespace& space, uint32_t highest)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);

  // store_fetch.cc
  absl::StatusOr<std::unique_ptr<FetchSession>> Lookup(const PrefixQuery& query,
                                                       uint32_t above_tokens, uint32_t max_tokens);
  std::unique_ptr<FetchSession> Miss(const PrefixQuery& query, Counter why, const char* reason,
                                     uint32_t matched_tokens);
  std::unique_ptr<FetchSessionImpl> BeginFetch(const Namespace& space, SegmentNode* node,
                                               std::vector<Digest>* new_points)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  // A session that holds the point and all it names.
  std::unique_ptr<FetchSessionImpl> Hold(RestorePointEntry* point)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  RestorePointEntry* MakePoint(const Namespace& space, SegmentNode* node)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  void EndFetch(FetchSessionImpl* session);
  void CountHit(const FetchSessionImpl& session);
  absl::StatusOr<SliceView> ReadSlice(StoredObject* object, size_t slice, bool* from_disk);
  bool IsReadFailureForGood(StoredObject* object, const absl::Status& status)
      ABSL_LOCKS_EXCLUDED(state_->mu);
  void QuarantineHostCopy(StoredObject* object);
  void Quarantine(StoredObject* object, const absl::Status& why);
  bool QuarantineLocked(StoredObject* object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);

  // store_promotion.cc
  void BeginPromotion(RestorePointEntry* point, FetchSessionImpl* session)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  void SkipPromotion(Promotion* promotion);
  // Whether this reader is to promote the object: it is not in RAM, nobody else does, and what is
  // held for promotions stays below its limit.
  bool ClaimPromotion(StoredObject* object, Promotion* promotion) ABSL_LOCKS_EXCLUDED(state_->mu);
  void UnclaimPromotion(StoredObject* object) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  void Promote(std::shared_ptr<Promotion> promotion, StoredObject* object,
               std::vector<SliceView> views) ABSL_LOCKS_EXCLUDED(state_->mu);
  RestorePointEntry* PromotedPoint(const Promotion& promotion)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  void TakeIn(Promotion* promotion, StoredObject* object, std::vector<SliceView> views)
      ABSL_LOCKS_EXCLUDED(state_->mu);

  // store_device.cc
  void QueueForDevice(const FetchSessionImpl& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  void CopyToDevice(uint64_t number) ABSL_LOCKS_EXCLUDED(state_->mu);

  // store_publish.cc
  absl::Status PlanNeeded(PublishSessionImpl* session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  void EndPublish(PublishSessionImpl* session);
  absl::StatusOr<PublishResult> CommitPublish(PublishSessionImpl* session);
  void ClaimFor(PublishSessionImpl* session, PublishPlan* plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  absl::Status AdoptStaged(PublishSessionImpl* session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  void ChooseBoundaries(PublishSessionImpl* session, PublishPlan* plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  absl::Status ReserveQuota(PublishSessionImpl* session, PublishPlan* plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  absl::Status MakeRoom(PublishSessionImpl* session, PublishPlan* plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  void Show(PublishSessionImpl* session, PublishPlan* plan)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  void EndPlan(PublishPlan* plan) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  ManifestRecord RecordFor(const PublishSessionImpl& session, const PublishBoundary& kept);
  absl::Status ViewsFor(PublishSessionImpl* session, const StoredObject* object,
                        std::vector<SliceView>* views) ABSL_LOCKS_EXCLUDED(state_->mu);
  SegmentNode* LinkBoundary(PublishSessionImpl* session, const PublishBoundary& kept)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  bool Showable(const PublishSessionImpl& session, const PublishBoundary& kept) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  bool AdmitToHost(PublishSessionImpl* session, const PublishBoundary& kept)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  bool PutInHost(StoredObject* object, const std::vector<SliceView>& views)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);

  // store_leases.cc
  LeaseTurn TakeTurn(const PrefixQuery& query, const std::vector<Namespace>& spaces, LeaseAsk ask,
                     ComputeLeases::Wakes* wakes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  void Promise(const PrefixQuery& query, const KvLayout& layout, const PromptChain& chain,
               const LeaseAsk& ask, absl::Time now, LeaseTurn* turn)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  void CountWait(const LeaseAsk& ask, absl::Time now, const LeaseTurn& turn);
  // Calls `give_back`, under no lock, when the last copy goes.
  static std::shared_ptr<void> Ticket(std::function<void()> give_back);
  void WakeWaiters(const PublishPlan& plan) ABSL_LOCKS_EXCLUDED(state_->mu);

  // store_upkeep.cc
  // When what this publishes is over. Says in the notes where that is earlier than was asked for.
  absl::Time ExpiryOf(const PublishSpec& spec, absl::Time now,
                      std::vector<std::string>* notes) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  // Not a boundary that is there only because what is over is still held.
  bool IsUsable(const BoundaryState& state, const KvLayout& layout, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  // False: nothing was over.
  bool ExpireSome(int most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  void ExpireByTheWay() ABSL_LOCKS_EXCLUDED(state_->mu);
  // REQUIRES: the points' ids are claimed.
  absl::Status WriteRenewals(const PublishPlan& plan) ABSL_LOCKS_EXCLUDED(state_->mu);
  // True: some, and there may be more.
  bool NoteUses() ABSL_LOCKS_EXCLUDED(state_->mu);

  // store_persist.cc
  // Fills `compressed_bytes` of the work.
  absl::Status Write(Persisting* work, bool sync) ABSL_LOCKS_EXCLUDED(state_->mu);
  // Compresses the views of one object where the options ask for it and it is worth it; 0: none.
  uint64_t Compress(const Fingerprint& fingerprint, std::vector<SliceView>* views);
  void ScheduleWriteBehind(std::vector<Digest> points, uint64_t bytes)
      ABSL_LOCKS_EXCLUDED(state_->mu);
  void WriteBehind(const Digest& id) ABSL_LOCKS_EXCLUDED(state_->mu);
  ManifestRecord ManifestOf(const RestorePointEntry& point) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  bool PreparePersist(RestorePointEntry* point, Persisting* work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  // Of a failed write: notes that what it may have left is to be erased; the objects that it began.
  // These may be in RAM and written again: only while their keys are claimed can they be erased.
  std::vector<uint64_t> AbandonWrite(const Persisting& work)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  // store_scrub.cc
  bool BeginScrubPass(absl::Time now);
  StoredObject* HoldScrubbed(bool* at_end) ABSL_LOCKS_EXCLUDED(state_->mu);
  void ScrubSlice(StoredObject* object, size_t slice) ABSL_LOCKS_EXCLUDED(state_->mu);
  void ScrubObjectRecord(const StoredObject* object) ABSL_LOCKS_EXCLUDED(state_->mu);
  void ScrubManifest(const StoredObject* object) ABSL_LOCKS_EXCLUDED(state_->mu);
  void RepairManifest(const Digest& id) ABSL_LOCKS_EXCLUDED(state_->mu);
  // Writes its manifest again. kNotFound: it is not on disk. REQUIRES: its id is claimed.
  absl::Status RewriteManifest(const Digest& id, bool sync) ABSL_LOCKS_EXCLUDED(state_->mu);
  bool IsDiskInUse();
  void SaveScrubProgress();

  // store_load.cc
  void LoadFor(const PromptChain& chain, const KvLayout& layout) ABSL_LOCKS_EXCLUDED(state_->mu);
  absl::Status LoadPoint(const Digest& id) ABSL_LOCKS_EXCLUDED(state_->mu);
  absl::Status WaitUntilLoaded()
      ABSL_LOCKS_EXCLUDED(state_->mu);  // kUnavailable after load_patience_
  absl::StatusOr<bool> LoadNext() ABSL_LOCKS_EXCLUDED(state_->mu);
  absl::Status FinishLoading() ABSL_LOCKS_EXCLUDED(state_->mu);
  void NoteDamage(std::vector<std::string> damage, const std::vector<std::string>& mended);
  void NoteLost(const Digest& id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  // Of what was promised and turned out to be of no use. True: nothing of it was.
  bool NoteDropped(const UnloadedIndex& unloaded) ABSL_LOCKS_EXCLUDED(state_->mu);
  void AdoptUses(absl::Span<const Digest> points) ABSL_LOCKS_EXCLUDED(state_->mu);

  // store_adopt.cc
  // Under one hold of the lock: a millisecond or so, of the longest prompts some 20.
  static constexpr size_t kManifestsAtOnce = 8;
  struct ReadManifest;
  absl::Status LoadManifests(absl::Span<const uint64_t> numbers) ABSL_LOCKS_EXCLUDED(state_->mu);
  ReadManifest CheckManifest(ManifestRecord record, const UnloadedIndex& unloaded);
  bool AdoptManifest(const ReadManifest& read) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  void NoteUseless(uint64_t number, const ReadManifest& read)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  // Names what is quarantined. `point`: its restore point's id, zeros: it cannot be told.
  void NoteRetired(uint64_t number, const Digest& point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);

  // store_quarantine.cc
  struct UnloadedName;
  std::vector<StoredObject*> FindObjects(const PrefixQuery& query, const PromptChain& chain,
                                         const KvLayout& layout, absl::Span<const ObjectId> objects)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  // What is not loaded yet and names one of these, in `names`. kCancelled; other errors: of the
  // disk.
  absl::Status FindUnloaded(const absl::flat_hash_set<uint64_t>& objects,
                            const std::function<bool()>& stopped, std::vector<UnloadedName>* names)
      ABSL_LOCKS_EXCLUDED(state_->mu);
  void TakeOut(const std::vector<StoredObject*>& objects, QuarantineResult* result)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  void SettleUnloaded(const std::vector<UnloadedName>& names) ABSL_LOCKS_EXCLUDED(state_->mu);
  std::vector<uint64_t> PendingOf(const std::vector<uint64_t>& manifests)
      ABSL_LOCKS_EXCLUDED(state_->mu);

  // store_admin.cc
  absl::Status PinLocked(const Digest& id, const std::string& tenant, bool pinned,
                         RestorePoint* described, uint64_t* durable_number)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  // REQUIRES: the point's id is claimed.
  absl::Status PersistPin(uint64_t number, bool pinned);
  absl::Status CheckIsWhole() const;  // as far as the start could tell
  DropResult DropPoints(const std::vector<RestorePointEntry*>& points, bool force)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);

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
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);

  // First: all else uses it.
  const std::unique_ptr<StoreCore> owned_core_;
  StoreCore* const core_;
  StoreState* const state_;
  const uint64_t incarnation_;
  const absl::Duration load_patience_;
  std::vector<std::string> damage_;  // that the start found on disk; constant from then on
  std::string unmended_;             // the first line of it by which something may be lost
  std::atomic<uint64_t> retired_unloaded_{0};  // manifests that a quarantine took while they loaded
  ComputeLeases leases_ ABSL_GUARDED_BY(state_->mu);
  std::shared_ptr<UnloadedIndex> unloaded_ ABSL_GUARDED_BY(state_->mu);  // null: all is loaded
  std::vector<Digest> implicit_points_ ABSL_GUARDED_BY(state_->mu);      // to be written then
  std::atomic<bool> is_loading_{false};  // follows unloaded_: saves taking the lock
  StagedBytes staged_;                   // has a mutex of its own
  uint64_t promoting_bytes_ ABSL_GUARDED_BY(state_->mu) =
      0;  // of objects with StoredObject::promoting

  ScrubState scrub_;                           // of whoever calls ScrubStep
  std::atomic<int64_t> last_scrub_unix_s_{0};  // the last complete pass
  absl::Time uses_noted_;                      // of whoever calls UpkeepStep

  // Last: their jobs use everything above. Copies to a device may come by the hundred: nothing is
  // to wait behind them.
  std::unique_ptr<Executor> device_copier_;  // null: the executor is a test's, or no gpu tier
  std::unique_ptr<RepeatingThread> scrubber_, upkeeper_, loader_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_STORE_IMPL_H_
