// CallSet: a client's calls in progress, so that all can be ended at once.
//
// Thread safety: all methods from any thread. Ownership: must outlive its entries; a context must
// outlive its entry.
#ifndef HEARTH_SERVICES_INFERENCE_CALL_SET_H_
#define HEARTH_SERVICES_INFERENCE_CALL_SET_H_

#include <grpcpp/client_context.h>

#include <cassert>
#include <memory>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "worker/prefix/call_stop.h"

namespace hearth {

class CallSet {
 public:
  // A call is in the set while this lives. Cancelled at once after CancelAll. `stop`, which may be
  // null, cancels it too.
  class Entry {
   public:
    Entry(CallSet* set, grpc::ClientContext* context, std::shared_ptr<CallStop> stop = nullptr)
        : set_(set),
          context_(context),
          stop_(std::move(stop), [context] { context->TryCancel(); }) {
      absl::MutexLock lock(&set_->mu_);
      const bool is_new = set_->calls_.insert(context_).second;
      assert(is_new);
      if (set_->cancelled_) context_->TryCancel();
    }
    ~Entry() {
      absl::MutexLock lock(&set_->mu_);
      set_->calls_.erase(context_);
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    CallSet* const set_;
    grpc::ClientContext* const context_;
    const CallStop::Call stop_;
  };

  CallSet() = default;
  ~CallSet() {
    absl::MutexLock lock(&mu_);
    assert(calls_.empty());
  }
  CallSet(const CallSet&) = delete;
  CallSet& operator=(const CallSet&) = delete;

  // Cancels all calls, later ones too.
  void CancelAll() ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    cancelled_ = true;
    for (grpc::ClientContext* context : calls_) context->TryCancel();
  }

 private:
  absl::Mutex mu_;
  std::set<grpc::ClientContext*> calls_ ABSL_GUARDED_BY(mu_);
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALL_SET_H_
