#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/inference.pb.h"
#include "services/inference/calls/inference_calls.h"
#include "services/inference/calls/inference_conversion.h"
#include "services/rpc/slice_wire.h"
#include "services/serving/calls/stream_call.h"

namespace hearth {
namespace {

// Maximum number of bytes that wait for a caller that does not read: about 40,000 tokens, or 10,000
// with 20 log probabilities each.
constexpr size_t kMaxWaitingBytes = size_t{4} << 20;

// A stream of Generate or Prefill, and the sink of its request.
//
// Thread safety: stream_call.h. Ownership: shared by gRPC (until OnDone), a job of the Generator's
// pool, and the engine's callbacks.
// Invariants: (1) when a call is cancelled or expires, its request is cancelled at once; (2) at
// most kMaxWaitingBytes wait for a caller that does not read; one more token ends the call with
// kResourceExhausted.
class GenerateCall final : public StreamCall, public GenerationSink {
 public:
  GenerateCall(grpc::CallbackServerContext* context, Generator* generator, PromptPurpose purpose)
      : StreamCall(context),
        generator_(generator),
        is_prefill_(purpose == PromptPurpose::kPrefill) {}

  // Admits the call. The pool later parses the request and begins it, in the tenant's turn.
  void Start(Admission* admission, const grpc::ByteBuffer* request) {
    const uint64_t bytes = request->Length();
    const absl::StatusOr<Identity> caller =
        Enter(admission, is_prefill_ ? "Prefill" : "Generate", bytes);
    if (!caller.ok()) return End(caller.status());
    const CallNote& note = *call()->note();
    const GenerationTerms terms{caller->tenant, note.request_id, note.span.Traceparent(),
                                absl::FromChrono(context_->deadline())};
    Delegate([&] {
      const auto job = [self = Shared(this), terms, message = TakeRequest(request)] {
        if (const absl::Status begun = self->Begin(terms, message); !begun.ok()) self->End(begun);
        absl::MutexLock lock(&self->mutex_);
        self->Release();
      };
      return generator_->pool()->SubmitRequest(caller->tenant, bytes, job);
    });
  }

  void OnStarted(const StartedInfo& info, std::optional<uint64_t> seed) override {
    {
      absl::MutexLock lock(&mutex_);
      if (!ended()) NoteStart(info, call()->note());
    }
    if (is_prefill_) return;
    v1::GenerateResponse message;
    StartedToProto(info, message.mutable_started());
    if (seed.has_value()) message.mutable_started()->set_seed(*seed);
    Send(message);
  }

  void OnProgress(uint32_t ready_tokens) override {
    v1::GenerateResponse message;
    message.mutable_progress()->set_ready_tokens(ready_tokens);
    Send(message);
  }

  void OnPrompt(absl::Span<const SampledToken> tokens, bool is_first) override {
    v1::GenerateResponse message;
    PromptToProto(tokens, is_first, message.mutable_prompt());
    Send(message);
  }

  bool OnTokens(const TokenDelta& delta) override {
    v1::GenerateResponse message;
    TokensToProto(delta, message.mutable_token());
    return Send(message);
  }

  void OnComputed(const FinishedInfo& info) override {
    absl::MutexLock lock(&mutex_);
    if (!ended()) NoteFinish(info, call()->seconds() * 1e3, &call()->note()->times);
  }

  void OnFinished(const FinishedInfo& info, uint32_t prompt_tokens, uint32_t written) override {
    v1::GenerateResponse message;
    FinishedToProto(info, prompt_tokens, message.mutable_finished());
    message.mutable_finished()->set_cache_write_tokens(written);
    Send(message);
  }

  void OnPublished(const PublishOutcome& outcome) override {
    v1::GenerateResponse message;
    OutcomeToProto(outcome, message.mutable_published());
    Send(message);
  }

  void OnPrefill(const v1::PrefillResponse& message) override { Push(MessageBytes(message)); }

  void OnEnd(const absl::Status& status) override { End(status); }

 private:
  void OnGone() override {
    cancel()->Cancel();
    StreamCall::OnGone();
  }

  // Runs on the pool. The job holds the call meanwhile.
  absl::Status Begin(const GenerationTerms& terms, const grpc::ByteBuffer& request) {
    if (is_prefill_) {
      v1::PrefillRequest parsed;
      const absl::Status read = ParseAwaited(*context_, request, &parsed);
      return read.ok() ? generator_->Prefill(terms, parsed, Shared(this)) : read;
    }
    v1::GenerateRequest parsed;
    const absl::Status read = ParseAwaited(*context_, request, &parsed);
    return read.ok() ? generator_->Generate(terms, parsed, Shared(this)) : read;
  }

  // Returns false if the call has ended because its caller does not read.
  bool Send(const v1::GenerateResponse& message) ABSL_LOCKS_EXCLUDED(mutex_) {
    grpc::ByteBuffer bytes = MessageBytes(message);
    {
      absl::MutexLock lock(&mutex_);
      if (!ended()) call()->note()->generated += static_cast<uint64_t>(message.token().ids_size());
      PushLocked(std::move(bytes));
      WriteNext();
      const bool may_wait = message.token().ids_size() == 0 && !message.has_prompt();
      if (may_wait || ready_bytes() <= kMaxWaitingBytes) return true;
    }
    End(absl::ResourceExhaustedError(
        absl::StrCat("the caller does not read: more than ", kMaxWaitingBytes, " unread bytes")));
    cancel()->Cancel();
    return false;
  }

  Generator* const generator_;
  const bool is_prefill_;
};

}  // namespace

ByteStream* StartGenerate(Generator* generator, Admission* admission, PromptPurpose purpose,
                          grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  const auto call = std::make_shared<GenerateCall>(context, generator, purpose);
  call->Start(admission, request);
  return call.get();
}

}  // namespace hearth
