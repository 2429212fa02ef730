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
#include "worker/prefix/prefix_cache.h"
#include "worker/text/grammar.h"
#include "worker/text/prompt.h"
#include "worker/text/tokenizer.h"

namespace hearth {

// RequestCancel: cancels a request of the engine, even if the engine gets the request only later.
//
// Thread safety: all methods from any thread, also after the request's end.
class RequestCancel {
 public:
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    is_cancelled_ = true;
    if (handle_ != nullptr) handle_->Cancel();
  }
  // Call when the engine has got the request.
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

// The next tokens of one answer, and their text.
struct TokenDelta {
  absl::Span<const SampledToken> tokens;  // empty: `text` belongs to tokens of earlier events
  bool has_logprobs = false;              // the tokens have log probabilities
  std::string text;                       // whole characters; may be empty
  uint32_t sample = 0;                    // index of the answer among the request's samples
};

// GenerationSink: receives the events of one request of Generate or Prefill. It is a stream over
// gRPC (generate_call.cc), or a part of an answer over HTTP (openai/completion.h).
//
// Events come one at a time, from threads of the engine, which must not be blocked. Their order:
// started, progress and the prompt, tokens, finished, published, end. The end comes once, and early
// if the request fails. Thread safety: cancel() from any thread. Ownership: must live until the
// engine's last event of the request.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;

  // `seed`: draws the tokens; absent: greedy decoding.
  virtual void OnStarted(const StartedInfo& info, std::optional<uint64_t> seed) = 0;
  // `ready_tokens`: number of prompt tokens that are restored or computed by now.
  virtual void OnProgress(uint32_t /*ready_tokens*/) {}
  // `tokens`: the next tokens of the prompt. `is_first`: they begin the prompt, and the first of
  // them has no log probability.
  virtual void OnPrompt(absl::Span<const SampledToken> tokens, bool is_first) = 0;
  // Returns false to end this answer.
  virtual bool OnTokens(const TokenDelta& delta) = 0;
  // `written`: number of prompt tokens that the store lacked, so that they were offered to it.
  virtual void OnFinished(const FinishedInfo& info, uint32_t prompt_tokens, uint32_t written) = 0;
  // Called at the end of each computation, of which Prefill may need several; for the log.
  virtual void OnComputed(const FinishedInfo& /*info*/) {}
  // Called only if the request has wait_published.
  virtual void OnPublished(const PublishOutcome& /*outcome*/) {}
  // Called for Prefill, in place of the events between OnStarted and OnEnd.
  virtual void OnPrefill(const v1::PrefillResponse& message) = 0;
  virtual void OnEnd(const absl::Status& status) = 0;

  // Cancels the request. OnEnd is still called, possibly late.
  RequestCancel* cancel() { return &cancel_; }

 private:
  RequestCancel cancel_;
};

// Sampling values of the operator, for requests that leave them to the server. Absent: not set.
struct DefaultSampling {
  std::optional<float> temperature, top_p;
  std::optional<uint32_t> top_k;
};
// Parses "temperature=0.7,top_k=40,top_p=0.9", or only some of these. kInvalidArgument quotes the
// invalid part.
absl::StatusOr<DefaultSampling> ParseDefaultSampling(const std::string& text);

using ExplainCallback = std::function<void(absl::Status, const v1::ExplainResponse&)>;
// Asks the store what it has for a prompt. Calls `done` once, from any thread, possibly before it
// returns.
using ExplainPrefix =
    std::function<void(PrefixRequest prefix, absl::Time deadline, ExplainCallback done)>;

struct GeneratorOptions {
  const Tokenizer* tokenizer = nullptr;  // null: only token ids are served
  std::string why_no_tokenizer;
  std::string why_no_chats;  // why chats are refused; empty: chats are served
  // The model's own template; null: Gemma's template renders chats.
  const ModelTemplate* chat_template = nullptr;
  bool strict_chats = false;      // overrides the `strict` of requests
  bool generation_config = true;  // whether open_sampling() uses the model's generation_config.json
  DefaultSampling default_sampling;
  // least time between two progress events
  absl::Duration progress_pause = absl::Milliseconds(250);
  // The longest time that the end of an answer waits for the store's publish plan.
  absl::Duration plan_wait = absl::Milliseconds(50);
  std::function<void(const FinishedInfo&)> on_finished;  // for metrics; may be null
  ExplainPrefix explain;                                 // null: the worker runs without a store
};

// The tenant and the ids of a request, and its deadline.
struct GenerationTerms {
  std::string tenant, request_id, traceparent;
  absl::Time deadline = absl::InfiniteFuture();
};

class Generator {
 public:
  Generator(Engine* engine, GeneratorOptions options);

  // REQUIRES, for both methods: called on a thread of pool(). An error refuses the request; the
  // sink then gets no event.
  absl::Status Generate(const GenerationTerms& terms, const v1::GenerateRequest& request,
                        std::shared_ptr<GenerationSink> sink);
  // Computes and publishes a prefix. The sink's end comes when the prefix was published, or could
  // not be.
  absl::Status Prefill(const GenerationTerms& terms, const v1::PrefillRequest& request,
                       std::shared_ptr<GenerationSink> sink);
  // Asks the store what it has for a prompt, until the deadline of `terms`. If Explain returns OK,
  // it calls `done` as ExplainPrefix does. kFailedPrecondition: the worker runs without a store.
  // REQUIRES: called on a thread of pool(). `stopped` as in MakePrompt.
  absl::Status Explain(const GenerationTerms& terms, const v1::PromptInput& input,
                       PromptPurpose purpose, const std::string& adapter,
                       std::function<bool()> stopped, ExplainCallback done) const;
  // REQUIRES: called on a thread of pool(). `stopped`: if it returns true, MakePrompt ends with
  // kCancelled. May be null. `is_count`: the prompt may be longer than the context.
  absl::StatusOr<Prompt> MakePrompt(const v1::PromptInput& input, PromptPurpose purpose,
                                    std::function<bool()> stopped, bool is_count = false) const;
  // Returns the sampling values for requests with `server_defaults`.
  SamplingParams open_sampling() const;
  // REQUIRES: called on a thread of pool(). kFailedPrecondition: the model has no tokenizer, or the
  // worker was built without grammars.
  absl::StatusOr<std::shared_ptr<const Grammar>> CompileGrammar(const v1::Grammar& grammar);

  Engine* engine() const { return engine_; }
  const GeneratorOptions& options() const { return options_; }
  RecentAnswers* recent() { return &recent_; }
  GrammarEngine::Stats grammar_stats() const {
    return grammars_ == nullptr ? GrammarEngine::Stats() : grammars_->stats();
  }
  // The pool that parses requests and makes prompts. Tenants take turns.
  FairPool* pool() { return &pool_; }

 private:
  absl::StatusOr<EngineRequest> RequestFrom(const v1::GenerateRequest& request) const;
  absl::Status AddPrompt(const GenerationTerms& terms, const v1::PromptInput& input,
                         PromptPurpose purpose, GenerationSink* sink, EngineRequest* request) const;

  Engine* const engine_;
  const GeneratorOptions options_;
  const std::unique_ptr<GrammarEngine> grammars_;  // null if the model has no tokenizer
  RecentAnswers recent_;
  FairPool pool_{"prompts"};  // last member: its jobs use the other members
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_GENERATOR_H_
