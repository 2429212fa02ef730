// PublishSessionImpl: one publish, from its announcement to its acknowledgement. Its states:
//
//                                   +-- room reserved, durability `memory` --+
//                                   |                                        v
//   Begin --> STAGING --Commit--> CLAIMED --room reserved--> WRITING --ok--> VISIBLE
//             |  ^ |                |                          |
//    PutSlice +--+ | destroyed      | no room                  | error
//                  v                v                          |
//              ABANDONED         FAILED <----------------------+
//
// Begin hashes the chain, then finds the missing objects under the lock. Commit takes the lock once
// until the room is reserved, and once to make the points visible, after objects and then manifests
// have been written. With durability `memory`, both happen under the first lock. The lock is taken
// more often only after errors. Key claims last from CLAIMED to VISIBLE or FAILED.
//
// Not thread safe: one caller uses it. Errors: kResourceExhausted if there is no room; then nothing
// is kept. Ownership: borrows its collaborators; holds a reference on each object it names.
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
  // Checks the spec and finds the objects that the store lacks. kInvalidArgument names the mistake.
  absl::Status Begin();
  absl::Span<const uint32_t> needed() const override { return needed_; }
  absl::StatusOr<std::shared_ptr<std::byte>> AllocateSlice(size_t bytes) override;
  absl::Status PutSlice(uint32_t object, uint32_t layer, SliceView slice,
                        std::optional<uint64_t> digest) override;
  absl::StatusOr<PublishResult> Commit() override;

  // An object of the announcement.
  struct Item {
    const KeyedSegment* segment = nullptr;
    StoredObject* object = nullptr;  // held; null until the store has it or the commit creates it
    bool needed = false;
    bool lost = false;                              // retired, or its tenant dropped, since Begin
    const std::vector<uint32_t>* layers = nullptr;  // layers of its group
    uint64_t slice_bytes = 0;
    std::vector<SliceView> staged;  // by index in *layers
    uint32_t staged_slices = 0;
    HostCopy whole;  // all slices, once complete
    bool complete() const { return needed && whole != nullptr; }
  };

 private:
  // A boundary of the announcement; from MakeRoom on, a boundary to make visible.
  struct Boundary {
    uint32_t boundary = 0;
    const KeyedSegment* segment = nullptr;
    std::vector<size_t> items;  // NeededObjects order
    uint64_t number = 0;        // number of its restore point
    uint64_t manifest = 0;      // number of its manifest on disk
    bool held = false;          // the restore point already exists, and is protected from eviction
    bool write = false;         // whether to write its manifest
    bool shown = false;
    absl::Time expires;
  };
  // Decisions of the commit, made under its first lock.
  struct Plan {
    Durability level = Durability::kMemory;
    std::vector<std::string> notes;
    absl::Time expires;  // of new points
    absl::Time kept_until;
    ComputeClaims::Wakes wakes;
    std::vector<Digest> unwritten;  // points missing on disk, or with an earlier expiry there
    uint64_t unwritten_bytes = 0;   // of new objects that are only in RAM
    uint64_t host_reserved_bytes = 0;
    uint64_t points_reserved_bytes = 0;   // for bookkeeping
    std::vector<StoredObject*> promised;  // reserved in the tenant's quota
    bool may_evict = true;                // whether evicting from disk may make room
    Persisting work;
  };

  // Fills chain and items from the spec. kInvalidArgument names the mistake.
  absl::Status Prepare();
  absl::Status PlanNeeded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  absl::Status Stage(uint64_t bytes);
  // Returns the stored object of an item; null: none. kAborted: stored with other bytes.
  absl::StatusOr<StoredObject*> Stored(size_t i) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Returns the cuts in the key of the boundary's restore point.
  std::vector<uint32_t> CutsUpTo(uint32_t boundary) const;

  absl::Status ReservePoints() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Returns an upper bound of the bookkeeping that the commit adds to the catalog.
  uint64_t PointBytesToAdd() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  absl::StatusOr<PublishResult> RunCommit() ABSL_LOCKS_EXCLUDED(core_->mu);
  // Whether all entries of the tenant were dropped since Begin.
  bool IsDropped() const { return core_->drop_numbers.Of(spec_.tenant) != drop_number_; }
  void ClaimKeys() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // All remaining work under the lock.
  void EndWrite(const absl::Status& written) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  absl::Status AdoptStaged() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void ChooseBoundaries() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Returns the expiry of the published points. Adds a note if it is earlier than the caller asked.
  absl::Time ExpiryOf(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void HoldPoint(Boundary* kept, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  absl::Status MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void ListManifests() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  ManifestRecord RecordFor(const Boundary& kept);
  void ReleaseItems() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void EndPlan() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Puts the objects into their tiers and makes the points visible. Cannot fail. The lock is
  // released between boundaries.
  void Reveal() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void Show(const Boundary& kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  static bool EndsEarlier(const RestorePointEntry& point, const Boundary& kept) {
    return point.expiry.inherited || kept.expires > point.expiry.at;
  }
  static bool IsThere(const StoredObject& object) {
    return !object.retired && (object.in_host() || object.on_disk);
  }
  bool IsWhole(const Boundary& kept) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Creates the path of a boundary in the index and links its new objects.
  SegmentNode* LinkBoundary(const Boundary& kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // REQUIRES: room for the object is reserved.
  void PutInHost(const Item& item, uint64_t* reserved_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Puts the received objects into RAM if the whole restore point can then be read from RAM.
  void AdmitToHost(const Boundary& kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  PublishResult Result();

  StoreCore* const core_;
  DiskWriter* const writer_;
  const PublishSpec spec_;
  std::shared_ptr<const KnownFingerprint> model_;
  uint64_t drop_number_ = 0;  // the tenant's drop number in the chain's keys
  ChainPtr chain_;
  std::vector<uint32_t> layers_[2];   // by group
  std::vector<Item> items_;           // parallel to spec_.objects
  std::vector<Boundary> boundaries_;  // the commit removes boundaries with missing objects
  std::vector<uint32_t> needed_;
  Plan plan_;
  uint64_t staged_bytes_ = 0;        // counted as staged for this publish
  const void* allocated_ = nullptr;  // the slice already counted as staged, until it is put
  uint64_t received_bytes_ = 0;
  bool committed_ = false;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_CALLS_PUBLISH_SESSION_H_
