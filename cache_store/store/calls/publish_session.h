// PublishSessionImpl: one publish, from its announcement to its acknowledgement.
//
//   Begin: check, hash the chain -> lock: what the store lacks
//   PutSlice: stage, verify
//   Commit: lock: claim the keys, adopt what was staged, make room -> write objects, then manifests
//           -> lock: reveal, but not before it is as durable as the caller asked; in RAM alone
//           under the first lock. It takes no other unless something fails
//
// Not thread safe: one caller uses it. Errors: kResourceExhausted where there is no room; then
// nothing is kept. Ownership: borrows its parts; holds a reference on each object it names.
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
  // Checks the spec, and finds the objects that the store lacks. kInvalidArgument names the
  // mistake.
  absl::Status Begin();
  absl::Span<const uint32_t> needed() const override { return needed_; }
  absl::StatusOr<std::shared_ptr<std::byte>> AllocateSlice(size_t bytes) override;
  absl::Status PutSlice(uint32_t object, uint32_t layer, SliceView slice,
                        std::optional<uint64_t> digest) override;
  absl::StatusOr<PublishResult> Commit() override;

  // One object of the announcement.
  struct Item {
    const KeyedSegment* segment = nullptr;
    StoredObject* object = nullptr;  // held; null until the store has it or commit makes it
    bool needed = false;
    bool lost = false;                              // quarantined since it was promised
    const std::vector<uint32_t>* layers = nullptr;  // of its group
    uint64_t slice_bytes = 0;
    std::vector<SliceView> staged;  // by place in *layers
    uint32_t staged_slices = 0;
    HostCopy whole;  // of these, once all have come
    bool complete() const { return needed && whole != nullptr; }
  };

 private:
  // A boundary of the announcement, and from MakeRoom on one that the commit is to show.
  struct Boundary {
    uint32_t boundary = 0;
    const KeyedSegment* segment = nullptr;
    std::vector<size_t> items;  // NeededObjects order
    uint64_t number = 0;        // of its restore point
    uint64_t manifest = 0;      // its number on disk
    bool held = false;          // a restore point exists already, and is kept from eviction
    bool write = false;         // its manifest is to be written
    bool shown = false;
    absl::Time expires;
  };
  // The decisions of the commit, made between its two turns under the lock.
  struct Plan {
    Durability level = Durability::kMemory;
    std::vector<std::string> notes;
    absl::Time expires;  // of what is new
    absl::Time kept_until;
    ComputeClaims::Wakes wakes;
    std::vector<Digest> unwritten;  // restore points that the disk lacks, or has an earlier end of
    uint64_t unwritten_bytes = 0;   // of new objects that are in RAM only
    uint64_t host_reserved_bytes = 0;
    uint64_t points_reserved_bytes = 0;   // for bookkeeping
    std::vector<StoredObject*> promised;  // to the tenant's quota
    bool may_evict = true;                // from the disk
    Persisting work;
  };

  // Fills chain and items from the spec; kInvalidArgument names the mistake.
  absl::Status Prepare();
  absl::Status PlanNeeded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  absl::Status Stage(uint64_t bytes);
  // What the store has of an item; null: nothing. kAborted: it is of other bytes.
  absl::StatusOr<StoredObject*> Stored(size_t i) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // The cuts in the key of the boundary's restore point.
  std::vector<uint32_t> CutsUpTo(uint32_t boundary) const;

  absl::Status ReservePoints() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Bookkeeping that the commit will add to the catalog, at most.
  uint64_t PointBytesToAdd() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  absl::StatusOr<PublishResult> RunCommit() ABSL_LOCKS_EXCLUDED(core_->mu);
  // All of the tenant, since this began.
  bool IsDropped() const { return core_->drop_numbers.Of(spec_.tenant) != drop_number_; }
  void ClaimKeys() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // All that is left to do with the lock.
  void EndWrite(const absl::Status& written) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  absl::Status AdoptStaged() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void ChooseBoundaries() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // The end of the published points. Adds a note where that is earlier than the caller asked.
  absl::Time ExpiryOf(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void HoldPoint(Boundary* kept, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  absl::Status MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void ListManifests() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  ManifestRecord RecordFor(const Boundary& kept);
  void ReleaseItems() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void EndPlan() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Puts the objects into their tiers and makes the points visible; nothing here can fail. Others
  // have the lock between two boundaries.
  void Reveal() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void Show(const Boundary& kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  static bool EndsEarlier(const RestorePointEntry& point, const Boundary& kept) {
    return point.expiry.inherited || kept.expires > point.expiry.at;
  }
  static bool IsThere(const StoredObject& object) {
    return !object.retired && (object.in_host() || object.on_disk);
  }
  bool IsWhole(const Boundary& kept) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Makes the path of a boundary and puts its new objects into it.
  SegmentNode* LinkBoundary(const Boundary& kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // REQUIRES: room for it is reserved.
  void PutInHost(const Item& item, uint64_t* reserved_bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Puts what this publish brought into RAM, if the whole restore point can then be read from
  // there.
  void AdmitToHost(const Boundary& kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  PublishResult Result();

  StoreCore* const core_;
  DiskWriter* const writer_;
  const PublishSpec spec_;
  std::shared_ptr<const KnownFingerprint> model_;
  uint64_t drop_number_ = 0;  // the tenant's, that the chain was made under
  ChainPtr chain_;
  std::vector<uint32_t> layers_[2];   // by group
  std::vector<Item> items_;           // as spec_.objects
  std::vector<Boundary> boundaries_;  // the commit leaves out those whose objects did not arrive
  std::vector<uint32_t> needed_;
  Plan plan_;
  uint64_t staged_bytes_ = 0;        // counted by the store for this publish
  const void* allocated_ = nullptr;  // the slice that is counted already, until it is put
  uint64_t received_bytes_ = 0;
  bool committed_ = false;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_CALLS_PUBLISH_SESSION_H_
