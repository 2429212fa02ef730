// FetchSessionImpl: one lookup's answer, and the reads of the restore point that it found.
//
// Used by one thread at a time; it changes the store under the store's lock only. It holds
// references on its objects while it lives, so none is evicted.
// Ownership: borrows the parts, which outlive it.
#ifndef HEARTH_CACHE_STORE_STORE_CALLS_FETCH_SESSION_H_
#define HEARTH_CACHE_STORE_STORE_CALLS_FETCH_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "cache_store/store/background/device_copier.h"
#include "cache_store/store/background/promoter.h"
#include "cache_store/store/background/quarantiner.h"
#include "cache_store/store/store_core.h"

namespace hearth {

// The parts of the store that a session works with.
struct FetchParts {
  StoreCore* core = nullptr;
  Quarantiner* quarantiner = nullptr;
  Promoter* promoter = nullptr;
  DeviceCopier* copier = nullptr;
};

class FetchSessionImpl : public FetchSession {
 public:
  // A session for a miss.
  FetchSessionImpl(const FetchParts& parts, const char* miss_reason, uint32_t matched_tokens);
  // Holds the point and all it names. Others have the lock in between where that is much: a miss,
  // should the point be dropped then.
  FetchSessionImpl(const FetchParts& parts, const RestorePointEntry* point)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(parts.core->state.mu);
  ~FetchSessionImpl() override;

  // Before the session is handed out.
  LookupPlan* mutable_plan() { return &plan_; }
  void BeginPromotion(const RestorePointEntry& point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  void SetAgain(bool again) { again_ = again; }  // PrefixQuery::again
  void SetLoadedFrom(Tier tier);                 // PrefixQuery::loaded_from
  void SetExport() { is_export_ = true; }        // by id: serves nobody's prompt

  const LookupPlan& plan() const override { return plan_; }
  absl::StatusOr<SliceView> ReadSlice(size_t object, uint32_t layer) override;
  std::optional<SliceView> PeekSlice(size_t object, uint32_t layer) override;
  std::optional<SegmentRange> ShareSlice(size_t object, uint32_t layer) override;
  DeviceRef OnDevice(size_t object) override;
  std::optional<SegmentRange> ShareOnDevice(size_t object) override;

 private:
  struct Served {
    bool from_device = false, from_host = false, from_disk = false;
  };
  // An object's slices as they were read from disk, until it is whole.
  struct Kept {
    bool tried = false;
    std::vector<SliceView> slices;  // empty: not to be promoted, or on its way
    size_t count = 0;
  };

  // Null: it was dropped.
  const RestorePointEntry* Point() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  // Holds the point's objects and describes them. False: it was dropped meanwhile.
  bool HoldObjects(const RestorePointEntry* point) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  // One more slice went out.
  void NoteServed(size_t object, Tier from);
  void NoteUnverified(size_t object, size_t bytes, const Stopwatch& stopwatch);
  void CountHit();
  // Of a slice of the plan; kInvalidArgument when there is none.
  absl::StatusOr<size_t> PlaceOf(size_t object, uint32_t layer) const;
  absl::StatusOr<SliceView> ReadVerified(const StoredObject* object, size_t slice, bool* from_disk);
  std::optional<SliceView> InHost(size_t object, uint32_t layer);
  // Keeps a slice that was read from disk until its object can be put into RAM.
  void KeepForPromotion(size_t object, size_t place, const SliceView& view);

  const FetchParts parts_;
  StoreCore* const core_;
  StoreState* const state_;
  LookupPlan plan_;
  std::vector<const StoredObject*> objects_;  // held
  std::vector<Served> served_;                // by object
  size_t unserved_slices_ = 0;
  std::vector<SliceView> shared_;  // keeps what was shared where it is
  std::vector<DeviceRef> shared_on_device_;
  Digest point_id_{};
  uint64_t point_number_ = 0;  // 0: none held
  const Stopwatch begun_;
  bool again_ = false;
  Tier loaded_from_ = Tier::kNone;
  bool is_export_ = false;
  std::shared_ptr<Promotion> promotion_;  // null: nothing is to be promoted
  std::vector<Kept> kept_;                // by object
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_CALLS_FETCH_SESSION_H_
