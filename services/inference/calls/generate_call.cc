#include "services/inference/calls/generate_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "services/inference/calls/inference_conversion.h"

namespace hearth {

void GenerateCall::Start(FairPool* pool, const std::string& tenant, uint64_t bytes, Make make,
                         Engine* engine) {
  {
    absl::MutexLock lock(&mutex_);
    Hold();
  }
  const std::shared_ptr<GenerateCall> self = Shared(this);
  PrepareRequest(
      pool, tenant, bytes, [self, make = std::move(make)] { return make(&self->options_); },
      [self, engine](absl::StatusOr<EngineRequest> prepared) {
        self->Prepared(engine, std::move(prepared));
      });
}

void GenerateCall::Prepared(Engine* engine, absl::StatusOr<EngineRequest> prepared) {
  if (prepared.ok()) {
    Submit(engine, *std::move(prepared));
  } else {
    End(prepared.status());
  }
  absl::MutexLock lock(&mutex_);
  Release();
}

void GenerateCall::Submit(Engine* engine, EngineRequest request) {
  prompt_tokens_ = request.token_ids.size();
  if (options_.tokenizer != nullptr && request.samples <= kMaxSamples) {
    for (uint32_t i = 0; i < request.samples; ++i) {
      texts_.push_back(std::make_unique<TextStream>(options_.tokenizer, options_.stop));
    }
  }
  auto handle = engine->Submit(std::move(request), Callbacks());
  if (!handle.ok()) return End(handle.status());
  absl::MutexLock lock(&mutex_);
  handle_ = *std::move(handle);
  if (cancelled_) handle_->Cancel();
}

EngineCallbacks GenerateCall::Callbacks() {
  const std::shared_ptr<GenerateCall> self = Shared(this);
  EngineCallbacks callbacks;
  callbacks.on_started = [self](const StartedInfo& info) {
    v1::GenerateResponse message;
    StartedToProto(info, message.mutable_started());
    self->Note(info);
    self->Send(message);
  };
  callbacks.on_token = [self](const SampledToken& token) { return self->OnToken(token); };
  callbacks.on_finished = [self](const FinishedInfo& info) { self->OnFinished(info); };
  callbacks.on_error = [self](const absl::Status& status) { self->End(status); };
  callbacks.on_published = [self](const PublishOutcome& outcome) { self->OnPublished(outcome); };
  return callbacks;
}

bool GenerateCall::OnToken(const SampledToken& token) {
  CountToken();
  v1::GenerateResponse message;
  TokenToProto(token, options_.sampling, message.mutable_token());
  TextStream* text = texts_.empty() ? nullptr : texts_[token.sample].get();
  if (text != nullptr) message.mutable_token()->set_text(text->Push(token.id));
  Send(message);
  if (CallerReads()) return text == nullptr || !text->stopped();
  End(absl::ResourceExhaustedError(
      absl::StrCat("the caller does not read: ", kMaxWaitingBytes, " bytes wait to be sent")));
  return false;
}

void GenerateCall::CountToken() {
  absl::MutexLock lock(&mutex_);
  if (!ended()) ++call()->note()->generated;
}

bool GenerateCall::CallerReads() {
  absl::MutexLock lock(&mutex_);
  return ready_bytes() <= kMaxWaitingBytes;
}

void GenerateCall::OnFinished(const FinishedInfo& info) {
  if (options_.on_finished) options_.on_finished(info);
  for (size_t i = 0; i < texts_.size(); ++i) {
    std::string rest = texts_[i]->Finish();
    if (rest.empty()) continue;
    v1::GenerateResponse message;
    message.mutable_token()->set_text(std::move(rest));
    message.mutable_token()->set_sample(static_cast<uint32_t>(i));
    Send(message);
  }
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

void GenerateCall::Note(const StartedInfo& info) {
  absl::MutexLock lock(&mutex_);
  if (!ended()) NoteStart(info, call()->note());
}

void GenerateCall::OnGone() {
  std::shared_ptr<EngineRequestHandle> handle;
  {
    absl::MutexLock lock(&mutex_);
    cancelled_ = true;
    handle = handle_;
  }
  if (handle != nullptr) handle->Cancel();
  StreamCall::OnGone();
}

}  // namespace hearth
