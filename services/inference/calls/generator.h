// Generator: passes every caller's request to the engine, over gRPC and over HTTP.
//
//   InferenceService -> GenerateCall --+--> Generator -> Engine -> GenerationSink (either call)
//   OpenAiServer -> Completion --------+
//
// It fills in what the request leaves to the server, makes the prompt, and submits the request to
// the engine. The engine's events of the request go to the request's sink.
// Thread safety: all methods from any thread. Ownership: engine and tokenizer must outlive it; it
// must outlive all calls, and be destroyed before the engine.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_GENERATOR_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_GENERATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/inference.pb.h"
#include "services/inference/calls/recent_answers.h"
#include "services/serving/calls/fair_pool.h"
#include "worker/engine/engine.h"
#include "worker/text/prompt.h"
#include "worker/text/tokenizer.h"

namespace hearth {

// RequestCancel: cancels a request of the engine, also if the request is submitted later.
//
// Thread safety: all methods from any thread, also after the request's end.
class RequestCancel {
 public:
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    is_cancelled_ = true;
    if (handle_ != nullptr) handle_->Cancel();
  }
  // Sets the request that the engine has now.
  void Set(std::shared_ptr<EngineRequestHandle> handle) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    handle_ = std::move(handle);
    if (is_cancelled_) handle_->Cancel();
  }
  bool is_cancelled() const ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return is_cancelled_;
  }

 private:
  mutable absl::Mutex mutex_;
  std::shared_ptr<EngineRequestHandle> handle_ ABSL_GUARDED_BY(mutex_);
  bool is_cancelled_ ABSL_GUARDED_BY(mutex_) = false;
};

// The next part of one answer.
struct TokenDelta {
  absl::Span<const SampledToken> tokens;  // empty: only text held back before
  bool has_logprobs = false;              // the tokens have log probabilities
  std::string text;                       // whole characters; may be empty
  uint32_t sample = 0;                    // number of the answer
};

// GenerationSink: receives the answer to one request of Generate or Prefill: a stream over gRPC
// (generate_call.cc), or a part of an answer over HTTP (openai/completion.h).
//
// Events come one at a time, from threads of the engine, which must not be blocked, in this order:
// started, then progress and the prompt, tokens, finished, published, end. The end comes once, and
// early if the request fails. Thread safety: cancel() from any thread. Ownership: kept until the
// engine's last event of the request.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;

  // `seed`: the seed that draws the tokens; absent: greedy.
  virtual void OnStarted(const StartedInfo& info, std::optional<uint64_t> seed) = 0;
  // `ready_tokens`: tokens of the prompt that are restored or computed.
  virtual void OnProgress(uint32_t /*ready_tokens*/) {}
  // The prompt's next tokens. `is_first`: the first token has no log probability.
  virtual void OnPrompt(absl::Span<const SampledToken> tokens, bool is_first) = 0;
  // Returns false to end this answer.
  virtual bool OnTokens(const TokenDelta& delta) = 0;
  // `written`: tokens of the prompt that the store lacked, offered to it.
  virtual void OnFinished(const FinishedInfo& info, uint32_t prompt_tokens, uint32_t written) = 0;
  // Comes only if the request has wait_published.
  virtual void OnPublished(const PublishOutcome& /*outcome*/) {}
  // Prefill has these messages instead of the events between started and end.
  virtual void OnPrefill(const v1::PrefillResponse& message) = 0;
  virtual void OnEnd(const absl::Status& status) = 0;

  // Cancels the request. The end still comes, possibly late.
  RequestCancel* cancel() { return &cancel_; }

 private:
  RequestCancel cancel_;
};

// The operator's values for requests that leave them to the server. Absent: not set.
struct DefaultSampling {
  std::optional<float> temperature, top_p;
  std::optional<uint32_t> top_k;
};
// Parses "temperature=0.7,top_k=40,top_p=0.9", or some of these. kInvalidArgument has the bad word.
absl::StatusOr<DefaultSampling> ParseDefaultSampling(const std::string& text);

struct GeneratorOptions {
  const Tokenizer* tokenizer = nullptr;  // null: only token ids are served, because:
  std::string why_no_tokenizer;
  std::string why_no_chats;       // empty: chats are served
  bool strict_chats = false;      // overrides `strict` of requests
  bool generation_config = true;  // open_sampling() has the values of the model's file
  DefaultSampling default_sampling;
  absl::Duration progress_pause = absl::Milliseconds(250);  // between two progress events
  // The longest time that an answer's end waits for the store's plan.
  absl::Duration plan_wait = absl::Milliseconds(50);
  std::function<void(const FinishedInfo&)> on_finished;  // for metrics; may be null
};

// The caller of a request, and its deadline.
struct GenerationTerms {
  std::string tenant, request_id;
  absl::Time deadline = absl::InfiniteFuture();
};

class Generator {
 public:
  Generator(Engine* engine, GeneratorOptions options);

  // Both methods: REQUIRES: on a thread of pool(). An error is a refusal: the sink gets no event.
  absl::Status Generate(const GenerationTerms& terms, const v1::GenerateRequest& request,
                        std::shared_ptr<GenerationSink> sink);
  // Computes and publishes a prefix. Ends when the prefix was published, or could not be.
  absl::Status Prefill(const GenerationTerms& terms, const v1::PrefillRequest& request,
                       std::shared_ptr<GenerationSink> sink);
  // REQUIRES: on a thread of pool(). `stopped`: true ends it with kCancelled; may be null.
  absl::StatusOr<Prompt> MakePrompt(const v1::PromptInput& input, PromptPurpose purpose,
                                    std::function<bool()> stopped) const;
  // The values for requests with `server_defaults`.
  SamplingParams open_sampling() const;

  Engine* engine() const { return engine_; }
  const GeneratorOptions& options() const { return options_; }
  RecentAnswers* recent() { return &recent_; }
  // Parses requests and makes prompts. Tenants take turns.
  FairPool* pool() { return &pool_; }

 private:
  absl::StatusOr<EngineRequest> RequestFrom(const v1::GenerateRequest& request) const;
  absl::Status AddPrompt(const GenerationTerms& terms, const v1::PromptInput& input,
                         PromptPurpose purpose, GenerationSink* sink, EngineRequest* request) const;

  Engine* const engine_;
  const GeneratorOptions options_;
  RecentAnswers recent_;
  FairPool pool_{"prompts"};  // last: its jobs use the others
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_GENERATOR_H_
