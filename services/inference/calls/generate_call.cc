#include "services/inference/calls/generate_call.h"

#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/inference/calls/inference_conversion.h"
#include "services/rpc/slice_wire.h"

namespace hearth {

absl::StatusOr<std::shared_ptr<EngineRequestHandle>> GenerateCall::Submit(EngineRequest request) {
  prompt_tokens_ = static_cast<uint32_t>(request.token_ids.size());
  together_ = request.searches();
  pace_.emplace(options_.progress_pause);
  if (options_.tokenizer != nullptr && request.samples <= kMaxSamples) {
    for (uint32_t i = 0; i < request.samples; ++i) {
      texts_.push_back(std::make_unique<TextStream>(options_.tokenizer, options_.stop));
    }
  }
  const auto self = Shared(this);
  EngineCallbacks callbacks;
  callbacks.on_started = [self](const StartedInfo& info) { self->OnStarted(info); };
  if (pace_->is_wanted()) {
    callbacks.on_progress = [self](uint32_t ready_tokens) { self->OnProgress(ready_tokens); };
  }
  callbacks.on_token = [self](const SampledToken& token) { return self->OnToken(token); };
  callbacks.on_finished = [self](const FinishedInfo& info) { self->OnFinished(info); };
  callbacks.on_error = [self](const absl::Status& status) { self->End(status); };
  callbacks.on_published = [self](const PublishOutcome& outcome) { self->OnPublished(outcome); };
  // Whether an answer of these tokens ends with a stop string.
  callbacks.stops = [self](absl::Span<const int32_t> ids) {
    const GenerateOptions& options = self->options_;
    return options.tokenizer != nullptr &&
           EndsWithStopString(*options.tokenizer, options.stop, ids);
  };
  return engine()->Submit(std::move(request), std::move(callbacks));
}

void GenerateCall::OnStarted(const StartedInfo& info) {
  {
    absl::MutexLock lock(&mutex_);
    if (!ended()) NoteStart(info, call()->note());
  }
  v1::GenerateResponse message;
  StartedToProto(info, message.mutable_started());
  Send(message);
}

void GenerateCall::OnProgress(uint32_t ready_tokens) {
  if (!pace_->IsDue()) return;
  v1::GenerateResponse message;
  message.mutable_progress()->set_ready_tokens(ready_tokens);
  Send(message);
}

bool GenerateCall::OnToken(const SampledToken& token) {
  if (options_.recent != nullptr && token.sample == 0) options_.recent->Add(token.id);
  v1::GenerateResponse one;
  v1::GenerateResponse& message = together_ ? answer_ : one;
  TokenToProto(token, options_.sampling, message.mutable_token());
  assert(texts_.empty() || token.sample < texts_.size());
  TextStream* text = texts_.empty() ? nullptr : texts_[token.sample].get();
  if (text != nullptr) message.mutable_token()->mutable_text()->append(text->Push(token.id));
  if (!together_ && !Send(message)) return false;
  return text == nullptr || !text->stopped();
}

void GenerateCall::OnFinished(const FinishedInfo& info) {
  if (options_.on_finished) options_.on_finished(info);
  for (size_t i = 0; i < texts_.size(); ++i) {
    std::string rest = texts_[i]->Finish();
    if (rest.empty()) continue;
    if (together_) {
      answer_.mutable_token()->mutable_text()->append(rest);
      continue;
    }
    v1::GenerateResponse message;
    message.mutable_token()->set_text(std::move(rest));
    message.mutable_token()->set_sample(static_cast<uint32_t>(i));
    Send(message);
  }
  if (answer_.has_token()) Send(answer_);
  v1::GenerateResponse message;
  FinishedToProto(info, prompt_tokens_, message.mutable_finished());
  Send(message);
  if (!options_.wait_published) return End(absl::OkStatus());
  if (options_.writes) return;
  PublishOutcome nothing;
  nothing.note = "the request's cache mode does not write";
  OnPublished(nothing);
}

void GenerateCall::OnPublished(const PublishOutcome& outcome) {
  if (!options_.wait_published) return;
  v1::GenerateResponse message;
  OutcomeToProto(outcome, message.mutable_published());
  Send(message);
  End(absl::OkStatus());
}

bool GenerateCall::Send(const v1::GenerateResponse& message) {
  grpc::ByteBuffer bytes = MessageBytes(message);
  {
    absl::MutexLock lock(&mutex_);
    if (!ended()) call()->note()->generated += static_cast<uint64_t>(message.token().ids_size());
    PushLocked(std::move(bytes));
    WriteNext();
    if (message.token().ids_size() == 0 || ready_bytes() <= kMaxWaitingBytes) return true;
  }
  End(absl::ResourceExhaustedError(
      absl::StrCat("the caller does not read: ", kMaxWaitingBytes, " bytes wait to be sent")));
  return false;
}

}  // namespace hearth
