// The two sessions of the store, as plain state: what they hold and what they were told.
//
// Private to cache_store/. A session is used by one thread at a time; the store changes shared
// state on its behalf under its own mutex. Sessions hold references on objects from their making to
// their end, so none of them is evicted in between.
#ifndef HEARTH_CACHE_STORE_STORE_SESSIONS_H_
#define HEARTH_CACHE_STORE_STORE_SESSIONS_H_

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cache_store/store/store_impl.h"

namespace hearth {

// What a session and the jobs that put into RAM what it read have in common.
struct Promotion {
  Digest point_id{};
  uint64_t point_number = 0;
  std::atomic<bool> no_room{false};  // nothing more fits beside what may not be demoted
  std::atomic<bool> skipped{false};  // counted once
};

class FetchSessionImpl : public FetchSession {
 public:
  explicit FetchSessionImpl(Store* store) : store_(store) {}
  ~FetchSessionImpl() override { store_->EndFetch(this); }
  const LookupPlan& plan() const override { return plan_; }
  absl::StatusOr<SliceView> ReadSlice(size_t object, uint32_t layer) override;
  std::optional<SliceView> PeekSlice(size_t object, uint32_t layer) override;
  std::optional<SegmentRange> ShareSlice(size_t object, uint32_t layer) override;
  DeviceLease OnDevice(size_t object) override;
  std::optional<SegmentRange> ShareOnDevice(size_t object) override;

 private:
  friend class Store;

  // One more slice went out.
  void NoteServed(size_t object, Tier from);
  void NoteUnverified(size_t object, size_t bytes, const Stopwatch& stopwatch);
  // Of a slice of the plan; kInvalidArgument when there is none.
  absl::StatusOr<size_t> PlaceOf(size_t object, uint32_t layer) const;
  std::optional<SliceView> InHost(size_t object, uint32_t layer);
  // A slice that was read from disk: of use for RAM.
  void Keep(size_t object, size_t place, const SliceView& view);

  Store* const store_;
  LookupPlan plan_;
  std::vector<StoredObject*> objects_;  // held
  struct Served {
    bool from_device = false, from_host = false, from_disk = false;
  };
  std::vector<Served> served_;  // by object
  size_t unserved_slices_ = 0;
  std::vector<SliceView> shared_;  // keeps what was shared where it is
  std::vector<DeviceLease> shared_on_device_;
  Digest point_id_{};
  uint64_t point_number_ = 0;  // 0: none held
  const Stopwatch begun_;
  bool again_ = false;      // PrefixQuery::again
  bool is_export_ = false;  // by id: serves nobody's prompt
  // Of an object: its slices as they were read from disk, until it is whole.
  struct Kept {
    bool tried = false;
    std::vector<SliceView> slices;  // empty: not to be promoted, or on its way
    size_t count = 0;
  };
  std::shared_ptr<Promotion> promotion_;  // null: nothing is to be promoted
  std::vector<Kept> kept_;                // by object
};

// One object of a publish.
struct PublishItem {
  const KeyedSegment* segment = nullptr;
  StoredObject* object = nullptr;  // held; null until the store has it or commit makes it
  bool needed = false;
  bool lost = false;  // quarantined since it was promised
  std::vector<uint32_t> layers;
  uint64_t slice_bytes = 0;
  std::vector<SliceView> staged;  // by place in `layers`
  uint32_t staged_slices = 0;
  bool complete() const { return needed && staged_slices == layers.size(); }
};

class PublishSessionImpl : public PublishSession {
 public:
  PublishSessionImpl(Store* store, PublishSpec spec) : store_(store), spec_(std::move(spec)) {}
  ~PublishSessionImpl() override { store_->EndPublish(this); }
  absl::Span<const uint32_t> needed() const override { return needed_; }
  absl::StatusOr<std::shared_ptr<std::byte>> AllocateSlice(size_t bytes) override;
  absl::Status PutSlice(uint32_t object, uint32_t layer, SliceView slice) override;
  absl::StatusOr<PublishResult> Commit() override;

 private:
  friend class Store;

  std::vector<uint32_t> CutsUpTo(uint32_t boundary) const;
  absl::Status Stage(uint64_t bytes);
  // Fills chain and items from the spec; kInvalidArgument names what is wrong.
  absl::Status Prepare(const std::string& secret);

  Store* const store_;
  PublishSpec spec_;
  std::shared_ptr<const KnownFingerprint> model_;
  PromptChain chain_;
  std::vector<PublishItem> items_;  // as spec_.objects
  // By boundary of the spec: its items, in NeededObjects order.
  std::vector<std::vector<size_t>> needs_;
  std::vector<uint32_t> needed_;
  uint64_t staged_bytes_ = 0;        // counted by the store for this publish
  const void* allocated_ = nullptr;  // the slice that is counted already, until it is put
  uint64_t received_bytes_ = 0;
  bool committed_ = false;
  bool waited_in_vain_ = false;  // for the index
};

// A boundary that a commit will show.
struct PublishBoundary {
  uint32_t boundary = 0;
  const KeyedSegment* segment = nullptr;
  std::vector<size_t> items;  // NeededObjects order
  uint64_t number = 0;        // of its restore point
  uint64_t manifest = 0;      // its number on disk
  bool held = false;          // a restore point exists already, and is kept from eviction
  bool write = false;         // its manifest is to be written
  absl::Time expires;
};

// What one commit decided, between its two turns under the lock.
struct PublishPlan {
  Durability level = Durability::kMemory;
  std::vector<PublishBoundary> boundaries;
  std::vector<std::string> notes;
  absl::Time expires;                        // of what is new
  std::vector<uint64_t> newly_durable_pins;  // pinned while they were in RAM only
  std::vector<Digest> renewed;               // whose manifests on disk say an earlier end
  std::vector<Digest> claims;
  std::vector<Digest> shown;  // restore points that are not yet durable
  uint64_t shown_bytes = 0;   // of new objects that are in RAM only
  uint64_t host_reserved_bytes = 0;
  std::vector<StoredObject*> promised;  // to the tenant's quota
  Persisting work;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_SESSIONS_H_
