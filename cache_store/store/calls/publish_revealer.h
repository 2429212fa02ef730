// PublishRevealer: makes a committed publish visible: its objects in RAM and the index, its points
// in the catalog. All of it under the lock; nothing here can fail.
//
// Ownership: borrows the content and the plan.
#ifndef HEARTH_CACHE_STORE_STORE_CALLS_PUBLISH_REVEALER_H_
#define HEARTH_CACHE_STORE_STORE_CALLS_PUBLISH_REVEALER_H_

#include "absl/base/thread_annotations.h"
#include "cache_store/store/calls/publish_plan.h"
#include "cache_store/store/store_core.h"

namespace hearth {

class PublishRevealer {
 public:
  PublishRevealer(StoreCore* core, PublishContent* content, PublishPlan* plan)
      : core_(core), state_(&core->state), content_(content), plan_(plan) {}

  // The plan's boundaries are then those that are visible.
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

#endif  // HEARTH_CACHE_STORE_STORE_CALLS_PUBLISH_REVEALER_H_
