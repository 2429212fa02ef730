// GenerateCall: a stream of Generate or Prefill over gRPC: the sink of its request.
//
// Thread safety: stream_call.h. Ownership: shared by gRPC, until OnDone, by a job of the
// Generator's pool, and by the engine's callbacks.
// Invariants: (1) a cancelled or expired call cancels its request at once; (2) at most
// kMaxWaitingBytes wait for a caller who does not read: one more token ends the call with
// kResourceExhausted.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_GENERATE_CALL_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_GENERATE_CALL_H_

#include <grpcpp/grpcpp.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "proto/inference.pb.h"
#include "services/inference/calls/generator.h"
#include "services/serving/calls/stream_call.h"

namespace hearth {

// About 40,000 tokens, or 10,000 with 20 logprobs each.
inline constexpr size_t kMaxWaitingBytes = size_t{4} << 20;

class GenerateCall final : public StreamCall, public GenerationSink {
 public:
  GenerateCall(grpc::CallbackServerContext* context, Generator* generator, PromptPurpose purpose)
      : StreamCall(context),
        generator_(generator),
        is_prefill_(purpose == PromptPurpose::kPrefill) {}

  // Admits the call and has the pool parse the request and begin it, in the tenant's turn.
  void Start(Admission* admission, const grpc::ByteBuffer* request);

  void OnStarted(const StartedInfo& info, std::optional<uint64_t> seed) override;
  void OnProgress(uint32_t ready_tokens) override;
  void OnPrompt(absl::Span<const SampledToken> tokens, bool is_first) override;
  bool OnTokens(const TokenDelta& delta) override;
  void OnFinished(const FinishedInfo& info, uint32_t prompt_tokens, uint32_t written) override;
  void OnPublished(const PublishOutcome& outcome) override;
  void OnPrefill(const v1::PrefillResponse& message) override;
  void OnEnd(const absl::Status& status) override { End(status); }

 private:
  void OnGone() override;
  // On the pool, while the call is held.
  absl::Status Begin(const GenerationTerms& terms, const grpc::ByteBuffer& request);
  // Returns false if the call has ended because its caller does not read.
  bool Send(const v1::GenerateResponse& message) ABSL_LOCKS_EXCLUDED(mutex_);

  Generator* const generator_;
  const bool is_prefill_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_GENERATE_CALL_H_
