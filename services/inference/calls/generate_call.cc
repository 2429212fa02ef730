#include "services/inference/calls/generate_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/inference/calls/inference_conversion.h"
#include "services/rpc/slice_wire.h"

namespace hearth {

void GenerateCall::Start(Admission* admission, const grpc::ByteBuffer* request) {
  const uint64_t bytes = request->Length();
  const absl::StatusOr<Identity> caller =
      Enter(admission, is_prefill_ ? "Prefill" : "Generate", bytes);
  if (!caller.ok()) return End(caller.status());
  const GenerationTerms terms{caller->tenant, call()->note()->request_id,
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

absl::Status GenerateCall::Begin(const GenerationTerms& terms, const grpc::ByteBuffer& request) {
  if (is_prefill_) {
    v1::PrefillRequest parsed;
    const absl::Status read = ParseAwaited(*context_, request, &parsed);
    return read.ok() ? generator_->Prefill(terms, parsed, Shared(this)) : read;
  }
  v1::GenerateRequest parsed;
  const absl::Status read = ParseAwaited(*context_, request, &parsed);
  return read.ok() ? generator_->Generate(terms, parsed, Shared(this)) : read;
}

void GenerateCall::OnGone() {
  cancel()->Cancel();
  StreamCall::OnGone();
}

void GenerateCall::OnStarted(const StartedInfo& info, std::optional<uint64_t> seed) {
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

void GenerateCall::OnProgress(uint32_t ready_tokens) {
  v1::GenerateResponse message;
  message.mutable_progress()->set_ready_tokens(ready_tokens);
  Send(message);
}

void GenerateCall::OnPrompt(absl::Span<const SampledToken> tokens, bool is_first) {
  v1::GenerateResponse message;
  PromptToProto(tokens, is_first, message.mutable_prompt());
  Send(message);
}

bool GenerateCall::OnTokens(const TokenDelta& delta) {
  v1::GenerateResponse message;
  TokensToProto(delta, message.mutable_token());
  return Send(message);
}

void GenerateCall::OnFinished(const FinishedInfo& info, uint32_t prompt_tokens, uint32_t written) {
  v1::GenerateResponse message;
  FinishedToProto(info, prompt_tokens, message.mutable_finished());
  message.mutable_finished()->set_cache_write_tokens(written);
  Send(message);
}

void GenerateCall::OnPublished(const PublishOutcome& outcome) {
  v1::GenerateResponse message;
  OutcomeToProto(outcome, message.mutable_published());
  Send(message);
}

void GenerateCall::OnPrefill(const v1::PrefillResponse& message) { Push(MessageBytes(message)); }

bool GenerateCall::Send(const v1::GenerateResponse& message) {
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
      absl::StrCat("the caller does not read: ", kMaxWaitingBytes, " bytes wait to be sent")));
  cancel()->Cancel();
  return false;
}

}  // namespace hearth
