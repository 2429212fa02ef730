// PublishSessionImpl: one publish, from its announcement to its commit.
//
// Used by one thread at a time; it changes the store under the store's lock only. It holds
// references on objects while it lives, so none is evicted. Ownership: borrows the parts, which
// outlive it.
#ifndef HEARTH_CACHE_STORE_STORE_CALLS_PUBLISH_SESSION_H_
#define HEARTH_CACHE_STORE_STORE_CALLS_PUBLISH_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cache_store/base/staged_bytes.h"
#include "cache_store/store/background/index_loader.h"
#include "cache_store/store/calls/publish_commit.h"
#include "cache_store/store/calls/publish_plan.h"
#include "cache_store/store/store_core.h"

namespace hearth {

// The parts of the store that a session works with.
struct PublishParts {
  CommitParts commit;
  IndexLoader* loader = nullptr;
  StagedBytes* staged = nullptr;
};

class PublishSessionImpl : public PublishSession {
 public:
  // Checks the spec, and finds the objects that the store lacks. kInvalidArgument names the
  // mistake.
  static absl::StatusOr<std::unique_ptr<PublishSession>> Begin(const PublishParts& parts,
                                                               PublishSpec spec);
  PublishSessionImpl(const PublishParts& parts, PublishSpec spec)
      : parts_(parts), core_(parts.commit.core), state_(&core_->state) {
    content_.spec = std::move(spec);
  }
  ~PublishSessionImpl() override;
  absl::Span<const uint32_t> needed() const override { return needed_; }
  absl::StatusOr<std::shared_ptr<std::byte>> AllocateSlice(size_t bytes) override;
  absl::Status PutSlice(uint32_t object, uint32_t layer, SliceView slice) override {
    return Put(object, layer, std::move(slice), std::nullopt);
  }
  absl::Status PutHashedSlice(uint32_t object, uint32_t layer, SliceView slice,
                              uint64_t digest) override {
    return Put(object, layer, std::move(slice), digest);
  }
  absl::StatusOr<PublishResult> Commit() override;

 private:
  absl::Status Stage(uint64_t bytes);
  // `digest`: the slice's, where it was computed already.
  absl::Status Put(uint32_t object, uint32_t layer, SliceView slice,
                   std::optional<uint64_t> digest);
  // Fills chain and items from the spec; kInvalidArgument names the mistake.
  absl::Status Prepare();
  absl::Status PlanNeeded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);

  const PublishParts parts_;
  StoreCore* const core_;
  StoreState* const state_;
  PublishContent content_;
  std::vector<uint32_t> needed_;
  uint64_t staged_bytes_ = 0;        // counted by the store for this publish
  const void* allocated_ = nullptr;  // the slice that is counted already, until it is put
  uint64_t received_bytes_ = 0;
  bool committed_ = false;
  bool timed_out_loading_ = false;  // for the index
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_CALLS_PUBLISH_SESSION_H_
