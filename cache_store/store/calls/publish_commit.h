// PublishCommit: commits a publish: claims its keys, makes room, writes, and makes it visible, but
// not before it is as durable as the caller asked.
//
// Used by one thread, once. Errors: kResourceExhausted where there is no room; then nothing is
// kept. Ownership: borrows the content and the parts.
#ifndef HEARTH_CACHE_STORE_STORE_CALLS_PUBLISH_COMMIT_H_
#define HEARTH_CACHE_STORE_STORE_CALLS_PUBLISH_COMMIT_H_

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache_store/store/background/manifest_writer.h"
#include "cache_store/store/background/write_behind.h"
#include "cache_store/store/calls/claim_desk.h"
#include "cache_store/store/calls/publish_plan.h"
#include "cache_store/store/store_core.h"

namespace hearth {

// The parts of the store that a commit works with.
struct CommitParts {
  StoreCore* core = nullptr;
  ManifestWriter* manifests = nullptr;
  WriteBehind* write_behind = nullptr;
  ClaimDesk* leases = nullptr;
};

class PublishCommit {
 public:
  PublishCommit(const CommitParts& parts, PublishContent* content, uint64_t received_bytes)
      : parts_(parts),
        core_(parts.core),
        state_(&parts.core->state),
        content_(content),
        received_bytes_(received_bytes) {}

  absl::StatusOr<PublishResult> Run() ABSL_LOCKS_EXCLUDED(state_->mu);

 private:
  void Claim() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  absl::Status AdoptStaged() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  void ChooseBoundaries() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  // The end of the published points. Adds a note where that is earlier than the caller asked.
  absl::Time ExpiryOf(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  absl::Status ReserveQuota() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  absl::Status MakeRoom() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  void EndPlan() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  ManifestRecord RecordFor(const PublishBoundary& kept);
  absl::Status ViewsFor(const StoredObject* object, std::vector<SliceView>* views)
      ABSL_LOCKS_EXCLUDED(state_->mu);
  PublishResult Result();
  // REQUIRES: the points' ids are claimed.
  absl::Status WriteRenewals() ABSL_LOCKS_EXCLUDED(state_->mu);

  const CommitParts parts_;
  StoreCore* const core_;
  StoreState* const state_;
  PublishContent* const content_;
  const uint64_t received_bytes_;
  PublishPlan plan_;
};

// PublishRevealer: the end of a commit: makes its objects visible in RAM and the index, and its
// points in the catalog. All of it under the lock; nothing here can fail. Ownership: borrows the
// content and the plan.
class PublishRevealer {
 public:
  PublishRevealer(StoreCore* core, PublishContent* content, PublishPlan* plan)
      : core_(core), state_(&core->state), content_(content), plan_(plan) {}

  // Leaves in the plan the boundaries that are visible.
  void Reveal() ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);

 private:
  bool IsWhole(const PublishBoundary& kept) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  SegmentNode* LinkBoundary(const PublishBoundary& kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);
  bool AdmitToHost(const PublishBoundary& kept) ABSL_EXCLUSIVE_LOCKS_REQUIRED(state_->mu);

  StoreCore* const core_;
  StoreState* const state_;
  PublishContent* const content_;
  PublishPlan* const plan_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_CALLS_PUBLISH_COMMIT_H_
