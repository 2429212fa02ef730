// PublishSessionImpl: one publish, from its announcement to its acknowledgement. Its states:
//
//                                   +-- space reserved, durability `memory` -+
//                                   |                                        v
//   Begin --> STAGING --Commit--> CLAIMED --space reserved-> WRITING --ok--> VISIBLE
//             |  ^ |                |                          |
//    PutSlice +--+ | destroyed      | no space                 | error
//                  v                v                          |
//              ABANDONED         FAILED <----------------------+
//
// Begin computes the keys, then finds the missing objects under the lock. Commit takes the lock
// twice: first to reserve space; then, after the objects and manifests were written, to make the
// restore points visible. With durability `memory`, both happen during the first hold. The lock is
// taken more often only after errors. The keys are claimed from CLAIMED to VISIBLE or FAILED.
//
// Not thread safe: for one caller. Errors: kResourceExhausted if there is no space; then nothing is
// stored. Ownership: borrows the objects that its constructor gets; holds a reference on each
// stored object of the publish.
#ifndef HEARTH_CACHE_STORE_STORE_CALLS_PUBLISH_SESSION_H_
#define HEARTH_CACHE_STORE_STORE_CALLS_PUBLISH_SESSION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache_store/store/background/disk_writer.h"
#include "cache_store/store/store_core.h"

namespace hearth {

class PublishSessionImpl : public PublishSession {
 public:
  PublishSessionImpl(StoreCore* core, DiskWriter* writer, PublishSpec spec)
      : core_(core), writer_(writer), spec_(std::move(spec)) {}
  ~PublishSessionImpl() override;
  // Checks the announcement and finds the objects that the store does not have. kInvalidArgument
  // names the mistake.
  absl::Status Begin();
  absl::Span<const uint32_t> needed() const override { return needed_; }
  absl::StatusOr<std::shared_ptr<std::byte>> AllocateSlice(size_t bytes) override;
  absl::Status PutSlice(uint32_t object, uint32_t layer, SliceView slice,
                        std::optional<uint64_t> digest) override;
  absl::StatusOr<PublishResult> Commit() override;

  // An object of the publish's announcement.
  struct Item {
    const KeyedSegment* segment = nullptr;
    StoredObject* object = nullptr;  // the stored object, held; null until it exists
    bool needed = false;
    // whether the object was retired, or the tenant's entries were dropped, since Begin()
    bool lost = false;
    const std::vector<uint32_t>* layers = nullptr;  // the model layers of the object's group
    uint64_t slice_bytes = 0;
    std::vector<SliceView> staged;  // received slices, by index in *layers
    uint32_t staged_slices = 0;
    HostCopy whole;  // all slices, after the last one was received
    bool complete() const { return needed && whole != nullptr; }
  };

 private:
  // A boundary of the announcement. From MakeRoom() on, only boundaries that will become visible.
  struct Boundary {
    uint32_t boundary = 0;
    const KeyedSegment* segment = nullptr;
    std::vector<size_t> items;  // indices of its items, in NeededObjects() order
    uint64_t number = 0;        // number of the boundary's restore point
    uint64_t manifest = 0;      // number of the restore point's manifest on disk
    bool held = false;   // whether the restore point exists already and is protected from eviction
    bool write = false;  // whether to write the restore point's manifest
    bool shown = false;
    absl::Time expires;
  };
  // What the commit decides when it holds the lock for the first time.
  struct Plan {
    Durability level = Durability::kMemory;
    std::vector<std::string> notes;
    absl::Time expires;  // expiry of new restore points
    absl::Time kept_until;
    ComputeClaims::Wakes wakes;
    // ids of restore points that are not on disk, or have an earlier expiry there
    std::vector<Digest> unwritten;
    uint64_t unwritten_bytes = 0;  // bytes of new objects that are only in RAM
    uint64_t host_reserved_bytes = 0;
    uint64_t points_reserved_bytes = 0;   // bytes of RAM reserved for bookkeeping
    std::vector<StoredObject*> promised;  // objects for which the tenant's quota was reserved
    bool may_evict = true;                // whether to evict from the disk if it is full
    Persisting work;
  };

  // Computes the keys and the items from the announcement. kInvalidArgument names the mistake.
  absl::Status Prepare();
  absl::Status PlanNeeded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  absl::Status Stage(uint64_t bytes);
  // Returns the stored object of an item; null if there is none. kAborted: the stored object has
  // different bytes.
  absl::StatusOr<StoredObject*> Stored(size_t i) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Returns the prefill cuts that belong to the key of the boundary's restore point.
  std::vector<uint32_t> CutsUpTo(uint32_t boundary) const;

  absl::Status ReservePoints() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Returns an upper bound of the RAM for bookkeeping that the commit needs.
  uint64_t PointBytesToAdd() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  absl::StatusOr<PublishResult> RunCommit() ABSL_LOCKS_EXCLUDED(core_->mu);
  // Returns whether all entries of the tenant were dropped since Begin().
  bool IsDropped() const { return core_->drop_numbers.Of(spec_.tenant) != drop_number_; }
  void ClaimKeys() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Does the work after the write, under the lock. `written`: the result of the write.
  void EndWrite(const absl::Status& written) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  absl::Status AdoptStaged() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void ChooseBoundaries() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Returns the expiry of the published restore points. Adds a note to the result if it is earlier
  // than requested.
  absl::Time ExpiryOf(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void HoldPoint(Boundary* kept, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  absl::Status MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void ListManifests() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  ManifestRecord RecordFor(const Boundary& kept);
  void ReleaseItems() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void EndPlan() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Puts the objects into their tiers, and makes the restore points visible. Cannot fail. Releases
  // the lock between two boundaries.
  void Reveal() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void Show(const Boundary& kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  static bool EndsEarlier(const RestorePointEntry& point, const Boundary& kept) {
    return point.expiry.inherited || kept.expires > point.expiry.at;
  }
  static bool IsThere(const StoredObject& object) {
    return !object.retired && (object.in_host() || object.on_disk);
  }
  bool IsWhole(const Boundary& kept) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Creates the nodes of a boundary in the index, and links its new objects to them.
  SegmentNode* LinkBoundary(const Boundary& kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Puts a received object into RAM. REQUIRES: space for it is reserved.
  void PutInHost(const Item& item, uint64_t* reserved_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Puts the received objects into RAM, if the whole restore point can then be read from RAM.
  void AdmitToHost(const Boundary& kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  PublishResult Result();

  StoreCore* const core_;
  DiskWriter* const writer_;
  const PublishSpec spec_;
  std::shared_ptr<const KnownFingerprint> model_;
  uint64_t drop_number_ = 0;  // the tenant's drop number with which the keys were computed
  ChainPtr chain_;
  std::vector<uint32_t> layers_[2];   // the model layers of each group
  std::vector<Item> items_;           // one item for each of spec_.objects
  std::vector<Boundary> boundaries_;  // boundaries; the commit removes those with missing objects
  std::vector<uint32_t> needed_;
  Plan plan_;
  uint64_t staged_bytes_ = 0;        // memory that StagedBytes counts for this publish
  const void* allocated_ = nullptr;  // memory from AllocateSlice() that is counted and not put yet
  uint64_t received_bytes_ = 0;
  bool committed_ = false;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_CALLS_PUBLISH_SESSION_H_
