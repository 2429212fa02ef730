// Fetcher: looks up prompts. FetchSessionImpl: reads the restore point that was found.
//
// Fetch computes the keys of the prompt. Under the lock it finds the longest usable boundary among
// the tenant's prefixes and then, if the query allows it, in the public namespace, and takes
// references. The session then reads and verifies slices without the lock.
//
// Thread safety: Fetcher: all methods from any thread; a session: one thread at a time. Ownership:
// both borrow the objects that their constructors get. A session has references on its restore
// point and all objects, so that everything in its plan stays until the session ends.
#ifndef HEARTH_CACHE_STORE_STORE_CALLS_FETCHER_H_
#define HEARTH_CACHE_STORE_STORE_CALLS_FETCHER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "cache_store/base/latency.h"
#include "cache_store/catalog/prefix_walk.h"
#include "cache_store/store/background/disk_writer.h"
#include "cache_store/store/background/promoter.h"
#include "cache_store/store/background/quarantiner.h"
#include "cache_store/store/store_core.h"

namespace hearth {

class FetchSessionImpl : public FetchSession {
 public:
  struct Use {
    bool again = false;              // see PrefixQuery::again
    bool is_export = false;          // the restore point was fetched by id, not for a prompt
    Tier loaded_from = Tier::kNone;  // see PrefixQuery::loaded_from
    uint64_t token_ns = 0;           // see PrefixQuery::token_ns
  };
  // Creates a session for a miss.
  FetchSessionImpl(StoreCore* core, const char* miss_reason, uint32_t matched_tokens);
  // Creates a session for a hit. Takes references on the restore point and all its objects.
  FetchSessionImpl(StoreCore* core, Quarantiner* quarantiner, Promoter* promoter,
                   RestorePointEntry* point, Use use) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core->mu);
  ~FetchSessionImpl() override;

  // For use before the session is returned to the caller.
  LookupPlan* mutable_plan() { return &plan_; }

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
  // Slices of an object that were read from disk, collected until all slices of the object were
  // read.
  struct Kept {
    bool tried = false;
    std::vector<SliceView> slices;  // empty: the object is not promoted, or was passed on already
    size_t count = 0;
  };

  // Records that a slice was read. The last slice of the restore point counts the hit.
  void NoteServed(size_t object, Tier from);
  void NoteFromHost(size_t object, size_t bytes, const Stopwatch& stopwatch);
  // Returns the index of the layer's slice in the object. kInvalidArgument: the plan has no such
  // slice.
  absl::StatusOr<size_t> PlaceOf(size_t object, uint32_t layer) const;
  std::optional<SliceView> InHost(size_t object, size_t place) const;
  // Keeps a slice that was read from disk, until the whole object can be put into RAM.
  void KeepForPromotion(size_t object, size_t place, const SliceView& view);

  StoreCore* const core_;
  Quarantiner* const quarantiner_ = nullptr;
  Promoter* const promoter_ = nullptr;
  const Use use_;
  LookupPlan plan_;
  // objects of the plan; this session holds a reference on each
  std::vector<StoredObject*> objects_;
  std::vector<HostCopy>
      copies_;  // for each object its copy in RAM, or null; kept until the session ends
  std::vector<HostCopy> broken_;  // damaged copies, kept because callers may use their slices
  std::vector<Served> served_;    // for each object: what was read
  size_t unserved_slices_ = 0;
  std::vector<DeviceRef> shared_on_device_;
  Digest point_id_{};
  uint64_t point_number_ = 0;  // number of the held restore point; 0: none
  const Stopwatch begun_;
  std::vector<Kept> kept_;  // for each object: slices for promotion; empty: promote nothing
};

class Fetcher {
 public:
  struct Namespace {  // one tenant's stored prefixes, in which a prompt is searched
    std::string tenant;
    std::shared_ptr<const KnownFingerprint> model;
    ChainPtr chain;  // keys of the prompt, up to the highest useful boundary
  };
  struct Found {
    bool is_known = false;  // whether the tenant has stored entries of this fingerprint
    uint32_t matched_tokens = 0;
    const Namespace* space = nullptr;
    SegmentNode* node = nullptr;  // node at which the longest restore point ends
    uint32_t boundary = 0;        // boundary of the longest restore point; 0: none
  };

  Fetcher(StoreCore* core, Quarantiner* quarantiner, Promoter* promoter, DiskWriter* writer)
      : core_(core), quarantiner_(quarantiner), promoter_(promoter), writer_(writer) {}

  // Fetch, Peek and FetchById implement the methods of LocalStore.
  absl::StatusOr<std::unique_ptr<FetchSession>> Fetch(const PrefixQuery& query,
                                                      uint32_t above_tokens, uint32_t max_tokens)
      ABSL_LOCKS_EXCLUDED(core_->mu);
  LocalStore::Peeked Peek(const PrefixQuery& query, uint32_t max_tokens) const
      ABSL_LOCKS_EXCLUDED(core_->mu);
  absl::StatusOr<std::unique_ptr<FetchSession>> FetchById(const Digest& id,
                                                          const std::string& tenant)
      ABSL_LOCKS_EXCLUDED(core_->mu);

  // Returns the namespaces that have entries of the query's fingerprint, the tenant's own first.
  // For queries other than Fetch. kCancelled: the query's `stopped` returned true.
  absl::StatusOr<std::vector<Namespace>> NamespacesOf(const PrefixQuery& query,
                                                      uint32_t highest) const
      ABSL_LOCKS_EXCLUDED(core_->mu);
  Found Search(const PrefixQuery& query, const Namespace& space, uint32_t highest) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Returns whether the boundary may be served; false if it exists only because a session still
  // holds an expired restore point.
  bool IsUsable(const BoundaryState& state, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

 private:
  // Returns the session of a miss. `found`: the best boundary, which is not higher than what the
  // caller already has.
  std::unique_ptr<FetchSession> Miss(const PrefixQuery& query, uint32_t above_tokens,
                                     const Found& found);
  std::unique_ptr<FetchSessionImpl> BeginFetch(const PrefixQuery& query, const Namespace& space,
                                               SegmentNode* node, std::vector<Digest>* new_points)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  RestorePointEntry* MakePoint(const Namespace& space, SegmentNode* node)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

  StoreCore* const core_;
  Quarantiner* const quarantiner_;
  Promoter* const promoter_;
  DiskWriter* const writer_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_CALLS_FETCHER_H_
