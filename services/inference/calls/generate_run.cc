#include "services/inference/calls/generate_run.h"

#include <cassert>
#include <utility>

#include "services/inference/calls/inference_conversion.h"
#include "worker/text/text_stream.h"

namespace hearth {
namespace {

// Shared by the engine's callbacks.
class GenerateRun {
 public:
  GenerateRun(const EngineRequest& request, GenerateOptions options,
              std::shared_ptr<GenerateSink> sink)
      : options_(std::move(options)),
        sink_(std::move(sink)),
        prompt_tokens_(static_cast<uint32_t>(request.token_ids.size())),
        together_(request.searches()),
        pace_(options_.progress_pause) {
    if (options_.tokenizer == nullptr || request.samples > kMaxSamples) return;
    for (uint32_t i = 0; i < request.samples; ++i) {
      texts_.push_back(std::make_unique<TextStream>(options_.tokenizer, options_.stop));
    }
  }

  void OnStarted(const StartedInfo& info) {
    sink_->OnStarted(info);
    v1::GenerateResponse message;
    StartedToProto(info, message.mutable_started());
    sink_->OnMessage(message);
  }

  bool wants_progress() const { return pace_.is_wanted(); }
  void OnProgress(uint32_t ready_tokens) {
    if (!pace_.IsDue()) return;
    v1::GenerateResponse message;
    message.mutable_progress()->set_ready_tokens(ready_tokens);
    sink_->OnMessage(message);
  }

  bool OnToken(const SampledToken& token) {
    if (options_.recent != nullptr && token.sample == 0) options_.recent->Add(token.id);
    v1::GenerateResponse one;
    v1::GenerateResponse& message = together_ ? answer_ : one;
    TokenToProto(token, options_.sampling, message.mutable_token());
    assert(texts_.empty() || token.sample < texts_.size());
    TextStream* text = texts_.empty() ? nullptr : texts_[token.sample].get();
    if (text != nullptr) message.mutable_token()->mutable_text()->append(text->Push(token.id));
    if (!together_ && !sink_->OnMessage(message)) return false;
    return text == nullptr || !text->stopped();
  }

  // Whether an answer of these tokens ends with a stop string.
  bool Stops(absl::Span<const int32_t> ids) const {
    return options_.tokenizer != nullptr &&
           EndsWithStopString(*options_.tokenizer, options_.stop, ids);
  }

  void OnFinished(const FinishedInfo& info) {
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
      sink_->OnMessage(message);
    }
    if (answer_.has_token()) sink_->OnMessage(answer_);
    v1::GenerateResponse message;
    FinishedToProto(info, prompt_tokens_, message.mutable_finished());
    sink_->OnMessage(message);
    if (!options_.wait_published) return sink_->OnEnd(absl::OkStatus());
    if (options_.writes) return;
    PublishOutcome nothing;
    nothing.note = "the request's cache mode does not write";
    OnPublished(nothing);
  }

  void OnError(const absl::Status& status) { sink_->OnEnd(status); }

  void OnPublished(const PublishOutcome& outcome) {
    if (!options_.wait_published) return;
    v1::GenerateResponse message;
    OutcomeToProto(outcome, message.mutable_published());
    sink_->OnMessage(message);
    sink_->OnEnd(absl::OkStatus());
  }

 private:
  const GenerateOptions options_;
  const std::shared_ptr<GenerateSink> sink_;
  const uint32_t prompt_tokens_;
  const bool together_;  // all tokens come at the end, in one message:
  v1::GenerateResponse answer_;
  ProgressPace pace_;
  // Of each sample, in order; none without a tokenizer.
  std::vector<std::unique_ptr<TextStream>> texts_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<EngineRequestHandle>> RunGenerate(
    Engine* engine, EngineRequest request, GenerateOptions options,
    std::shared_ptr<GenerateSink> sink) {
  const auto run = std::make_shared<GenerateRun>(request, std::move(options), std::move(sink));
  EngineCallbacks callbacks;
  callbacks.on_started = [run](const StartedInfo& info) { run->OnStarted(info); };
  if (run->wants_progress()) {
    callbacks.on_progress = [run](uint32_t ready_tokens) { run->OnProgress(ready_tokens); };
  }
  callbacks.on_token = [run](const SampledToken& token) { return run->OnToken(token); };
  callbacks.on_finished = [run](const FinishedInfo& info) { run->OnFinished(info); };
  callbacks.on_error = [run](const absl::Status& status) { run->OnError(status); };
  callbacks.on_published = [run](const PublishOutcome& outcome) { run->OnPublished(outcome); };
  callbacks.stops = [run](absl::Span<const int32_t> ids) { return run->Stops(ids); };
  return engine->Submit(std::move(request), std::move(callbacks));
}

}  // namespace hearth
