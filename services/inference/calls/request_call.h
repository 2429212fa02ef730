// RequestCall: a stream that prepares a request from its message, submits it to the engine, and
// follows it to its end.
//
// Thread safety: stream_call.h. Ownership: shared by gRPC, until OnDone, and by the request's
// callbacks.
// Invariant: a cancelled or expired call cancels its request at once, so that its place is free
// within a step.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_REQUEST_CALL_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_REQUEST_CALL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "services/serving/calls/fair_pool.h"
#include "services/serving/calls/stream_call.h"
#include "worker/engine/engine.h"

namespace hearth {

// ProgressPace: says when a caller is to hear again how far its prompt is.
//
// Thread safety: none.
inline constexpr absl::Duration kProgressPause = absl::Milliseconds(250);

class ProgressPace {
 public:
  // `pause`: the least time between two messages; InfiniteDuration: there are none.
  explicit ProgressPace(absl::Duration pause) : pause_(pause) {}

  // Whether now; then not for a while.
  bool IsDue() {
    const absl::Time now = absl::Now();
    if (now < next_) return false;
    next_ = now + pause_;
    return true;
  }
  bool is_wanted() const { return pause_ != absl::InfiniteDuration(); }

 private:
  const absl::Duration pause_;
  absl::Time next_ = absl::InfinitePast();
};

class RequestCall : public StreamCall {
 public:
  using StreamCall::StreamCall;

  // Makes the engine's request, its prompt included, or an error.
  using Make = std::function<absl::StatusOr<EngineRequest>()>;
  // Has `make` read the message of `bytes` on the pool, in its tenant's turn, then submits what it
  // made, or ends the call with the refusal. The call does not end before `make` returns.
  void Follow(Engine* engine, FairPool* pool, const std::string& tenant, uint64_t bytes, Make make)
      ABSL_LOCKS_EXCLUDED(mutex_);

 protected:
  // Hands the request to the engine, with what is to be called of it.
  virtual absl::StatusOr<std::shared_ptr<EngineRequestHandle>> Submit(EngineRequest request) = 0;
  // Submits a request, the first or one that follows it, and keeps its handle. An error: the engine
  // refused it.
  absl::Status Begin(EngineRequest request) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnGone() final;
  // Once Follow was called.
  Engine* engine() const { return engine_; }
  FairPool* pool() const { return pool_; }

 private:
  Engine* engine_ = nullptr;
  FairPool* pool_ = nullptr;
  std::shared_ptr<EngineRequestHandle> handle_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_REQUEST_CALL_H_
