// GenerateCall: one Generate stream, from the engine's callbacks to the caller.
//
// Thread safety: stream_call.h; the engine's callbacks come from its threads, and their order is
// kept: started, token*, finished, published. Ownership: shared by gRPC, until OnDone, and by the
// callbacks that the engine still holds: a publish may end after the call did. The engine need not
// outlive it, the tokenizer must.
// Invariants: (1) a cancelled or expired call cancels its request at once, so that the place is
// free within a step; (2) messages of at most kMaxWaitingBytes wait for a caller who does not read:
// one more token ends the call with kResourceExhausted.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_GENERATE_CALL_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_GENERATE_CALL_H_

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "proto/inference.pb.h"
#include "services/inference/calls/prompt_work.h"
#include "services/rpc/slice_wire.h"
#include "services/serving/calls/fair_pool.h"
#include "services/serving/calls/stream_call.h"
#include "worker/engine/engine.h"
#include "worker/text/text_stream.h"
#include "worker/text/tokenizer.h"

namespace hearth {

// About 40,000 tokens, or 10,000 with 20 logprobs each.
inline constexpr size_t kMaxWaitingBytes = size_t{4} << 20;

class GenerateCall final : public StreamCall {
 public:
  struct Options {
    SamplingParams sampling;
    const Tokenizer* tokenizer = nullptr;  // null: tokens without text
    std::vector<std::string> stop;         // validated
    bool wait_published = false;
    bool writes = true;  // the request may publish, so the engine will say what became of it
    std::function<void(const FinishedInfo&)> on_finished;  // for metrics; may be null
  };

  using StreamCall::StreamCall;

  // Makes the request and its options, of a message of `bytes`, on `pool`, then submits and follows
  // it, or ends the call with the refusal. What `make` reads of the call lives until it returns:
  // the call ends no earlier.
  using Make = std::function<absl::StatusOr<EngineRequest>(Options* options)>;
  void Start(FairPool* pool, const std::string& tenant, uint64_t bytes, Make make, Engine* engine);

 private:
  void OnGone() override;
  EngineCallbacks Callbacks();
  bool OnToken(const SampledToken& token);
  void OnFinished(const FinishedInfo& info);
  void OnPublished(const PublishOutcome& outcome);

  void Submit(Engine* engine, EngineRequest request);
  void Prepared(Engine* engine, absl::StatusOr<EngineRequest> prepared) ABSL_LOCKS_EXCLUDED(mutex_);
  void Note(const StartedInfo& info) ABSL_LOCKS_EXCLUDED(mutex_);
  void Send(const v1::GenerateResponse& message) { Push(MessageBytes(message)); }
  void CountToken() ABSL_LOCKS_EXCLUDED(mutex_);
  bool CallerReads() ABSL_LOCKS_EXCLUDED(mutex_);

  Options options_;  // set while the prompt is prepared
  // Of each sample, in order; none without a tokenizer. Engine's callbacks only.
  std::vector<std::unique_ptr<TextStream>> texts_;
  uint32_t prompt_tokens_ = 0;

  std::shared_ptr<EngineRequestHandle> handle_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_GENERATE_CALL_H_
