// RequestCall: a stream that prepares a request from its message, submits it to the engine, and
// follows it to its end: of Generate, of Prefill, or of SaveState.
//
// Thread safety: stream_call.h. Ownership: shared by gRPC, until OnDone, and by the request's
// callbacks.
// Invariant: a cancelled or expired call cancels its request at once, so that its place is free
// within a step.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_REQUEST_CALL_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_REQUEST_CALL_H_

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "proto/inference.pb.h"
#include "services/inference/calls/recent_answers.h"
#include "services/serving/calls/fair_pool.h"
#include "services/serving/calls/stream_call.h"
#include "worker/engine/engine.h"
#include "worker/text/text_stream.h"
#include "worker/text/tokenizer.h"

namespace hearth {

inline constexpr absl::Duration kProgressPause = absl::Milliseconds(250);
// Of an answer's end, for what the store says that it lacked.
inline constexpr absl::Duration kPlanWait = absl::Milliseconds(50);

// ProgressPace: says when a caller is to hear again how far its prompt is.
//
// Thread safety: none.
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

// GenerateCall: one Generate stream: turns the engine's events into messages to the caller.
//
// Ownership: the engine keeps the call until the last event, as a publish may end after the call
// did. The events come from the engine's threads, never under a lock, in this order: started,
// progress*, token*, finished, published.
// Invariant: messages of at most kMaxWaitingBytes wait for a caller who does not read: one more
// token ends the call with kResourceExhausted.
// About 40,000 tokens, or 10,000 with 20 logprobs each.
inline constexpr size_t kMaxWaitingBytes = size_t{4} << 20;

struct GenerateOptions {
  SamplingParams sampling;
  const Tokenizer* tokenizer = nullptr;  // null: tokens without text
  std::vector<std::string> stop;         // validated
  bool wait_published = false;
  bool report_writes = false;            // Finished says what the store lacked, and waits for that:
  absl::Duration plan_wait = kPlanWait;  // at most
  absl::Duration progress_pause = absl::InfiniteDuration();  // between messages with progress
  bool writes = true;  // the request may publish, so the engine reports an outcome
  std::function<void(const FinishedInfo&)> on_finished;  // for metrics; may be null
  std::shared_ptr<RecentAnswer> recent;                  // gets the first answer's tokens; or null
};

class GenerateCall final : public RequestCall {
 public:
  using RequestCall::RequestCall;

  // To be set while the request is made.
  GenerateOptions* options() { return &options_; }

 private:
  absl::StatusOr<std::shared_ptr<EngineRequestHandle>> Submit(EngineRequest request) override;
  void OnStarted(const StartedInfo& info) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnProgress(uint32_t ready_tokens) ABSL_LOCKS_EXCLUDED(mutex_);
  // False: the token's sample ends there.
  bool OnToken(const SampledToken& token) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnFinished(const FinishedInfo& info) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnPublished(const PublishOutcome& outcome) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnPrompt(absl::Span<const SampledToken> tokens) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnPlanned(uint32_t written) ABSL_LOCKS_EXCLUDED(mutex_);
  bool Send(const v1::GenerateResponse& message) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends the last message but `published`, if it was kept back until now.
  void SendEnd() ABSL_LOCKS_EXCLUDED(mutex_);

  GenerateOptions options_;
  // Of the events alone, from Submit on.
  uint32_t prompt_tokens_ = 0;
  bool together_ = false;  // all tokens come at the end, in one message:
  v1::GenerateResponse answer_;
  std::optional<ProgressPace> pace_;
  std::vector<std::unique_ptr<TextStream>> texts_;  // of each sample; none without a tokenizer
  bool tells_prompt_ = false;

  std::optional<uint32_t> written_ ABSL_GUARDED_BY(mutex_);          // once the store's plan came
  std::optional<v1::GenerateResponse> end_ ABSL_GUARDED_BY(mutex_);  // kept back
  std::unique_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);
};

// PrefillCall: one Prefill call, answered when its prefix was published, or could not be. A
// boundary that the store lacks below a restored one is computed by a request of its own, which
// ends there; where that fails, the answer's note says so of what is left.
class PrefillCall final : public RequestCall {
 public:
  using RequestCall::RequestCall;

  // Between messages with progress. To be set while the request is made, if they are wanted.
  absl::Duration* progress_pause() { return &progress_pause_; }

 private:
  EngineCallbacks Callbacks();
  absl::StatusOr<std::shared_ptr<EngineRequestHandle>> Submit(EngineRequest request) override;
  void OnStarted(const StartedInfo& info) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnProgress(uint32_t ready_tokens) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnError(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void OnPublished(const PublishOutcome& outcome) ABSL_LOCKS_EXCLUDED(mutex_);
  void Answer() ABSL_LOCKS_EXCLUDED(mutex_);
  void AddNote(absl::string_view note) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What is left to compute; false: nothing.
  bool TakeNext(const PublishOutcome& outcome, EngineRequest* next)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const absl::Time start_ = absl::Now();
  absl::Duration progress_pause_ = absl::InfiniteDuration();
  std::optional<ProgressPace> pace_;  // of the engine's thread

  std::optional<EngineRequest> first_;  // set before anything is called back
  v1::PrefillResponse answer_ ABSL_GUARDED_BY(mutex_);
  PublishOutcome published_ ABSL_GUARDED_BY(mutex_);       // by all requests so far
  uint32_t written_ ABSL_GUARDED_BY(mutex_) = 0;           // of the request under way
  std::vector<uint32_t> missing_ ABSL_GUARDED_BY(mutex_);  // descending; the last is computed next
  uint32_t computing_ ABSL_GUARDED_BY(mutex_) = 0;         // the one that is
  bool is_first_ ABSL_GUARDED_BY(mutex_) = true;
  uint32_t most_ready_ ABSL_GUARDED_BY(mutex_) = 0;  // tokens, of progress
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_REQUEST_CALL_H_
