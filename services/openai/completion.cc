#include "services/openai/completion.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/caller_gone.h"
#include "proto/error_reason.h"
#include "services/inference/calls/inference_conversion.h"
#include "services/openai/cache_report.h"
#include "services/openai/held_text.h"
#include "services/openai/http_error.h"
#include "services/openai/token_log.h"
#include "services/rpc/status_conversion.h"

namespace hearth {
namespace {

// Step in which the memory of a growing answer is counted against the HTTP memory budget.
constexpr uint64_t kHoldStepBytes = uint64_t{64} << 10;

// Maximum time that a request with hearth_explain waits for the store. A store answers in
// milliseconds or not at all.
constexpr absl::Duration kExplainTimeout = absl::Seconds(2);

// The current state of one answer to one prompt. A streamed answer stores neither text nor tokens,
// except text that may be the beginning of a tool call.
struct Choice {
  std::string text;
  std::optional<CallReader> calls;  // set for a streamed answer that may have tool calls
  size_t text_bytes = 0;            // bytes of the echoed prompt and the answer
  TokenLog log;
  AnswerEnd end = AnswerEnd::kStop;
  std::string stop_string;  // the stop string that ended the answer; empty: none
};

// The text and the log probabilities of a prompt that the response repeats before each of the
// prompt's answers.
struct Echo {
  std::string text;
  TokenLog log;
  size_t logged_bytes = 0;  // bytes of text of the tokens that were logged so far
};

// Replaces the place in an error about the grammar by the path in the request's body.
absl::Status AtBodyPath(const absl::Status& status, const SchemaPaths& paths) {
  if (!absl::StartsWith(status.message(), "grammar")) return status;
  return absl::Status(status.code(), WithBodyPath(status.message(), paths));
}

class Completion : public std::enable_shared_from_this<Completion> {
 public:
  Completion(Generator* generator, Admission* admission, OpenAiRequest request,
             CompletionTerms terms, std::shared_ptr<HttpAnswer> answer)
      : generator_(generator),
        admission_(admission),
        request_(std::move(request)),
        terms_(std::move(terms)),
        tokenizer_(generator->options().tokenizer),
        format_(terms_.format.get()),
        answer_(std::move(answer)),
        n_(request_.common.n()),
        choices_(request_.prompts.size() * n_),
        echoes_(request_.prompts.size()),
        open_(request_.prompts.size()) {
    for (size_t i = 0; i < open_; ++i) parts_.emplace_back(this, i);
    if (!request_.stream || request_.answer.calls.names.empty()) return;
    for (Choice& choice : choices_) choice.calls.emplace(request_.answer.calls);
  }

  void Start();

 private:
  // Receives the events of one prompt's answers from the Generator.
  struct Part final : GenerationSink {
    Part(Completion* owner, size_t prompt) : owner(owner), prompt(prompt) {}
    void OnStarted(const StartedInfo& info, std::optional<uint64_t> seed) override;
    void OnPrompt(absl::Span<const SampledToken> tokens, bool is_first) override;
    bool OnTokens(const TokenDelta& delta) override;
    void OnComputed(const FinishedInfo& info) override;
    void OnFinished(const FinishedInfo& info, uint32_t prompt_tokens, uint32_t written) override;
    void OnPrefill(const v1::PrefillResponse& message) override;
    void OnEnd(const absl::Status& status) override;

    // Adds tokens that were offered to the store to the usage. A worker may offer tokens that it
    // restored from its own memory. REQUIRES: the owner's mutex is held.
    void AddWritten(uint64_t tokens);

    Completion* const owner;
    const size_t prompt;
    uint64_t computed = 0;  // prompt tokens that were not restored; guarded by the owner's mutex
    // guarded by the owner's mutex; null: the prompt has no running call
    std::unique_ptr<Admission::Call> call;
    std::string traceparent;  // trace header of calls to the store; set before the prompt begins
  };

  // Runs `step`. If it throws an exception, for example std::bad_alloc, the HTTP request fails.
  template <typename Step>
  void Try(const Step& step) ABSL_LOCKS_EXCLUDED(mutex_) {
    try {
      step();
    } catch (...) {
      answer_->Fail();
      Cancel();
    }
  }
  // Runs `step` with the mutex held. If the response has ended, does not run `step` and returns
  // false.
  template <typename Step>
  bool Guarded(const Step& step) ABSL_LOCKS_EXCLUDED(mutex_) {
    bool is_on = false;
    Try([&] {
      absl::MutexLock lock(&mutex_);
      if (!is_over_) step();
      is_on = !is_over_;
    });
    return is_on;
  }
  void StartPart(Part* part) ABSL_LOCKS_EXCLUDED(mutex_);
  // Begins the work for a prompt. Runs on the thread pool.
  absl::Status Begin(Part* part, const std::string& tenant);
  // Asks the store about the prompt, and submits the prompt afterwards. Runs on the thread pool.
  void Explain(Part* part, const std::string& tenant) ABSL_LOCKS_EXCLUDED(mutex_);
  // Submits a prompt to the Generator. Runs on the thread pool.
  absl::Status Submit(Part* part, const std::string& tenant);
  void Cancel() ABSL_LOCKS_EXCLUDED(mutex_);
  // Cancels all prompts and frees the collected answers. The engine keeps this object alive until
  // it has delivered its last event.
  void Abandon(const absl::Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Builds the text of the prompts to echo. Returns false if it does not fit into the HTTP memory
  // budget.
  bool MakeEchoes() ABSL_LOCKS_EXCLUDED(mutex_);

  void AddPrompt(size_t prompt, absl::Span<const SampledToken> tokens, bool is_first)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddTokens(size_t index, const TokenDelta& delta) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the calls of a streamed answer: sends the text that is still held back. Returns whether
  // the answer has calls, all with complete arguments.
  bool EndCalls(size_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndPart(Part* part, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Counts newly allocated memory against the HTTP memory budget. If the budget is exhausted, the
  // request fails.
  void Count(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Calls Count for the memory that the format has newly allocated.
  void CountFormat() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  HttpHeaders Headers(const char* type) const;
  // Sends events that `write` appends to its argument.
  template <typename Write>
  void Send(const Write& write) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::string events;
    write(&events);
    if (!events.empty()) answer_->Write(events);
  }
  // Sends pieces of a streamed answer. `log`: log probabilities of all pieces together; may be
  // null.
  void SendPieces(size_t index, absl::Span<const CallPiece> pieces, const TokenLog* log)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts a streamed response. HttpAnswer delays the headers until the caller has waited for a
  // while, so that an early error can still be sent with its HTTP status.
  void BeginAnswer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginStream() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendError(const absl::Status& status) const;
  // Fails the whole HTTP request with `status`, and cancels its prompts that are still running.
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends a response that is not streamed. Runs on the thread pool, because its time is
  // proportional to the size of the response.
  void SendWhole() ABSL_LOCKS_EXCLUDED(mutex_);
  void WriteAnswer(size_t index, Choice choice, const Echo& echo, HeldText* out);

  Generator* const generator_;
  Admission* const admission_;
  OpenAiRequest request_;  // the parsed request; the job of each prompt moves that prompt out
  const CompletionTerms terms_;
  const Tokenizer* const tokenizer_;  // null: the model has no tokenizer
  // Used with the mutex held; after the last event of all prompts, only by SendWhole.
  ApiFormat* const format_;
  const std::shared_ptr<HttpAnswer> answer_;
  const size_t n_;          // number of answers per prompt
  std::deque<Part> parts_;  // one Part per prompt

  absl::Mutex mutex_;
  std::vector<Choice> choices_ ABSL_GUARDED_BY(mutex_);
  std::vector<Echo> echoes_ ABSL_GUARDED_BY(mutex_);  // one Echo per prompt
  uint64_t uncounted_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t format_bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // counted bytes of the format
  size_t open_ ABSL_GUARDED_BY(mutex_);                // number of prompts that have not ended
  // the response has ended, and later events are ignored
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  bool streaming_ ABSL_GUARDED_BY(mutex_) = false;
  std::string tenant_ ABSL_GUARDED_BY(mutex_);
  // The call of the prompt that ended last. A drain waits for running calls, so this call is kept
  // until the response is sent.
  std::unique_ptr<Admission::Call> last_call_ ABSL_GUARDED_BY(mutex_);
  // The seed of the sampling; set when the first prompt starts.
  std::optional<uint64_t> seed_ ABSL_GUARDED_BY(mutex_);
  AnswerUsage usage_ ABSL_GUARDED_BY(mutex_);
  // For a request with hearth_explain: what the store had before the request ran.
  absl::StatusOr<v1::ExplainResponse> explained_ ABSL_GUARDED_BY(mutex_);
};

bool Completion::MakeEchoes() {
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; request_.echo && i < echoes_.size(); ++i) {
    const v1::PromptInput& prompt = request_.prompts[i];
    uint64_t bytes = prompt.text().size();
    const auto& ids = prompt.token_ids().ids();
    for (const uint32_t id : ids) bytes += TokenText(tokenizer_, id).size();
    if (!answer_->Hold(bytes)) return false;
    std::string& text = echoes_[i].text;
    text.reserve(bytes);
    text = prompt.text();
    for (const uint32_t id : ids) absl::StrAppend(&text, TokenText(tokenizer_, id));
    for (size_t s = 0; s < n_; ++s) choices_[i * n_ + s].text_bytes = text.size();
  }
  return true;
}

void Completion::Start() {
  if (!MakeEchoes()) return SendError(NoAnswerMemory());
  answer_->OnGone([weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Cancel();
  });
  Try([&] {
    for (Part& part : parts_) StartPart(&part);
  });
}

void Completion::StartPart(Part* part) {
  if (part->cancel()->is_cancelled()) return;
  std::unique_ptr<Admission::Call> call;
  const absl::StatusOr<Identity> caller = admission_->Enter(
      request_.prewarm ? "Prefill" : "Generate", terms_.credentials, terms_.ids, &call);
  if (caller.ok()) {
    call->EndBy([weak = weak_from_this()](EndReason reason, const absl::Status& why) {
      const auto self = weak.lock();
      if (self != nullptr && reason != EndReason::kDrain) self->Guarded([&] { self->Fail(why); });
    });
  }
  const bool is_on = Guarded([&] {
    part->traceparent = call == nullptr ? "" : call->note()->span.Traceparent();
    part->call = std::move(call);
    if (!caller.ok()) return EndPart(part, caller.status());
    tenant_ = caller->tenant;
  });
  if (!is_on) {
    if (call != nullptr) call->Finish(CallerGone()).IgnoreError();
    return;
  }
  const uint64_t bytes =
      request_.common.ByteSizeLong() + request_.prompts[part->prompt].ByteSizeLong();
  const auto job = [self = shared_from_this(), part, tenant = caller->tenant] {
    self->Try([&] {
      const absl::Status begun =
          part->cancel()->is_cancelled() ? CallerGone() : self->Begin(part, tenant);
      if (!begun.ok()) return part->OnEnd(begun);
      self->Guarded([&] { self->BeginAnswer(); });
    });
  };
  const absl::Status accepted = generator_->pool()->SubmitRequest(caller->tenant, bytes, job);
  if (!accepted.ok()) part->OnEnd(accepted);
}

absl::Status Completion::Begin(Part* part, const std::string& tenant) {
  if (!request_.explain) return Submit(part, tenant);
  Explain(part, tenant);
  return absl::OkStatus();
}

// The store is asked before the request runs, because the request may publish its prompt. If the
// store does not answer, the request runs all the same.
void Completion::Explain(Part* part, const std::string& tenant) {
  const auto submit = [self = shared_from_this(), part, tenant] {
    self->Try([&] {
      const absl::Status begun =
          part->cancel()->is_cancelled() ? CallerGone() : self->Submit(part, tenant);
      if (!begun.ok()) part->OnEnd(begun);
    });
  };
  const auto done = [self = shared_from_this(), tenant, submit](
                        const absl::Status& status, const v1::ExplainResponse& response) {
    self->Guarded([&] {
      const bool is_silent = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
      if (status.ok()) {
        self->explained_ = response;
      } else {
        self->explained_ = is_silent ? absl::UnavailableError("the store did not answer") : status;
      }
      self->Count(response.SpaceUsedLong());
      if (!self->is_over_) self->generator_->pool()->Continue(tenant, submit);
    });
  };
  const GenerationTerms terms{tenant, terms_.ids.request_id, part->traceparent,
                              absl::Now() + kExplainTimeout};
  const absl::Status asked = generator_->Explain(
      terms, request_.prompts[part->prompt],
      request_.prewarm ? PromptPurpose::kPrefill : PromptPurpose::kGenerate, terms_.adapter,
      [part] { return part->cancel()->is_cancelled(); }, done);
  if (!asked.ok()) done(asked, v1::ExplainResponse());
}

absl::Status Completion::Submit(Part* part, const std::string& tenant) {
  v1::PromptInput prompt = std::move(request_.prompts[part->prompt]);
  const uint64_t bytes = prompt.SpaceUsedLong();
  const GenerationTerms terms{tenant, terms_.ids.request_id, part->traceparent};
  const std::shared_ptr<GenerationSink> sink(shared_from_this(), part);
  absl::Status begun;
  if (request_.prewarm) {
    v1::PrefillRequest request;
    *request.mutable_prompt() = std::move(prompt);
    request.set_ttl_s(request_.common.ttl_s());
    request.set_keep_s(request_.common.keep_s());
    request.set_priority(request_.common.priority());
    request.set_adapter(terms_.adapter);
    begun = generator_->Prefill(terms, request, sink);
  } else {
    if (request_.answer.strict.has_value()) {
      const auto strict = generator_->CompileGrammar(*request_.answer.strict);
      if (!strict.ok()) return AtBodyPath(strict.status(), request_.answer.strict_paths);
    }
    v1::GenerateRequest request = request_.common;
    *request.mutable_prompt() = std::move(prompt);
    request.set_adapter(terms_.adapter);
    begun = generator_->Generate(terms, request, sink);
  }
  answer_->Release(bytes);
  return begun;
}

void Completion::Cancel() {
  absl::MutexLock lock(&mutex_);
  Abandon(CallerGone());
}

void Completion::Abandon(const absl::Status& why) {
  mutex_.AssertHeld();
  is_over_ = true;
  std::vector<Choice>().swap(choices_);
  std::vector<Echo>().swap(echoes_);
  last_call_.reset();
  for (Part& part : parts_) {
    part.cancel()->Cancel();
    if (part.call != nullptr) part.call->Finish(why).IgnoreError();
    part.call.reset();
  }
}

void Completion::Part::OnStarted(const StartedInfo& info, std::optional<uint64_t> seed) {
  owner->Guarded([&] {
    assert(call != nullptr);  // EndPart() and Abandon() end the response
    NoteStart(info, call->note());
    assert(info.cached_tokens <= info.prompt_tokens);
    computed = info.prompt_tokens - info.cached_tokens;
    owner->usage_.prompt_tokens += info.prompt_tokens;
    owner->usage_.cached_tokens += info.cached_tokens;
    if (!owner->seed_.has_value()) owner->seed_ = seed;
    if (owner->request_.explain) owner->usage_.cache = CacheReport(owner->explained_, info);
    if (owner->request_.stream && !owner->request_.prewarm) owner->BeginStream();
  });
}

void Completion::Part::OnPrompt(absl::Span<const SampledToken> tokens, bool is_first) {
  owner->Guarded([&] { owner->AddPrompt(prompt, tokens, is_first); });
}

bool Completion::Part::OnTokens(const TokenDelta& delta) {
  owner->Guarded([&] {
    call->note()->generated += delta.tokens.size();
    const size_t index = prompt * owner->n_ + delta.sample;
    if (!owner->request_.only_echo && delta.sample < owner->n_) owner->AddTokens(index, delta);
  });
  return true;  // never cancels here: OnGone cancels the request if the caller disconnects
}

void Completion::Part::AddWritten(uint64_t tokens) {
  owner->mutex_.AssertHeld();
  owner->usage_.written_tokens += std::min(tokens, computed);
}

void Completion::Part::OnPrefill(const v1::PrefillResponse& message) {
  owner->Guarded([&] { AddWritten(message.cache_write_tokens()); });
}

void Completion::Part::OnEnd(const absl::Status& status) {
  owner->Guarded([&] { owner->EndPart(this, status); });
}

void Completion::Part::OnComputed(const FinishedInfo& info) {
  owner->Guarded([&] { NoteFinish(info, call->seconds() * 1e3, &call->note()->times); });
}

void Completion::Part::OnFinished(const FinishedInfo& info, uint32_t, uint32_t written) {
  owner->Guarded([&] {
    const OpenAiRequest& request = owner->request_;
    AddWritten(written);
    if (!request.only_echo) owner->usage_.generated_tokens += info.generated_tokens;
    for (size_t s = 0; s < owner->n_; ++s) {
      const size_t index = prompt * owner->n_ + s;
      assert(index < owner->choices_.size());
      const FinishReason reason = s < info.samples.size() ? info.samples[s].reason : info.reason;
      const bool is_cut = reason == FinishReason::kLength || request.only_echo;
      Choice& choice = owner->choices_[index];
      const bool calls = choice.calls.has_value() && owner->EndCalls(index);
      if (s < info.samples.size()) choice.stop_string = info.samples[s].stop_string;
      choice.end = is_cut                       ? AnswerEnd::kLength
                   : calls                      ? AnswerEnd::kToolCalls
                   : choice.stop_string.empty() ? AnswerEnd::kStop
                                                : AnswerEnd::kStopString;
      if (!owner->streaming_) continue;
      owner->Send([&](std::string* out) {
        owner->format_->EndAnswer(index, choice.end, choice.stop_string, out);
      });
    }
    owner->CountFormat();
  });
}

void Completion::Count(uint64_t bytes) {
  mutex_.AssertHeld();
  uncounted_bytes_ += bytes;
  if (uncounted_bytes_ < kHoldStepBytes) return;
  if (!answer_->Hold(std::exchange(uncounted_bytes_, 0))) Fail(NoAnswerMemory());
}

void Completion::CountFormat() {
  const uint64_t bytes = format_->bytes();
  assert(bytes >= format_bytes_);  // the format never counts less
  Count(bytes - std::exchange(format_bytes_, bytes));
}

// Logs tokens of a prompt, for all answers to this prompt. The engine reports prompt tokens before
// answer tokens.
void Completion::AddPrompt(size_t prompt, absl::Span<const SampledToken> tokens, bool is_first) {
  mutex_.AssertHeld();
  Echo& echo = echoes_[prompt];
  TokenLog next;
  TokenLog& log = streaming_ ? next : echo.log;
  const uint64_t before = log.bytes();
  for (const SampledToken& token : tokens) {
    log.Add(token, std::min(echo.logged_bytes, echo.text.size()), !std::exchange(is_first, false));
    echo.logged_bytes += TokenText(tokenizer_, token.id).size();
  }
  assert(log.bytes() >= before);
  if (!streaming_) return Count(log.bytes() - before);
  for (size_t s = 0; s < n_; ++s) SendPieces(prompt * n_ + s, {}, &log);
}

void Completion::AddTokens(size_t index, const TokenDelta& delta) {
  mutex_.AssertHeld();
  Choice& choice = choices_[index];
  assert(choices_.size() == n_ * parts_.size() && !is_over_);
  const size_t offset = choice.text_bytes;
  choice.text_bytes += delta.text.size();
  const bool has_logprobs = request_.logprobs && !delta.tokens.empty();
  const auto add_to = [&](TokenLog* log) {
    for (const SampledToken& token : delta.tokens) log->Add(token, offset);
  };
  if (!streaming_) {
    const uint64_t before = choice.text.capacity() + choice.log.bytes();
    choice.text += delta.text;
    if (has_logprobs) add_to(&choice.log);
    assert(choice.text.capacity() + choice.log.bytes() >= before);
    return Count(choice.text.capacity() + choice.log.bytes() - before);
  }
  if (delta.text.empty() && !has_logprobs) return;
  TokenLog log;
  if (has_logprobs) add_to(&log);
  std::vector<CallPiece> pieces;
  if (choice.calls.has_value()) {
    choice.calls->Push(delta.text, &pieces);
  } else {
    pieces.push_back({CallPiece::kText, 0, delta.text});
  }
  SendPieces(index, pieces, has_logprobs ? &log : nullptr);
  CountFormat();
}

bool Completion::EndCalls(size_t index) {
  mutex_.AssertHeld();
  assert(choices_[index].calls.has_value());
  CallReader& reader = *choices_[index].calls;
  std::vector<CallPiece> pieces;
  reader.Finish(&pieces);
  SendPieces(index, pieces, nullptr);
  return reader.calls() > 0 && !reader.is_cut();
}

void Completion::EndPart(Part* part, const absl::Status& status) {
  mutex_.AssertHeld();
  std::unique_ptr<Admission::Call> call = std::move(part->call);
  if (call != nullptr) call->Finish(status).IgnoreError();
  if (status.ok()) {
    assert(open_ > 0);
    if (--open_ > 0) return;
    assert(last_call_ == nullptr);
    last_call_ = std::move(call);
    return Finish();
  }
  // Even if max_tokens is 0, the engine generates one token, so the prompt must be shorter than the
  // context.
  const bool is_full = request_.only_echo && absl::StartsWith(status.message(), "max_new_tokens: ");
  Fail(is_full ? WithReason(absl::InvalidArgumentError(
                                "prompt: fills the model's context, but max_tokens 0 needs room "
                                "for one token; shorten it by one token"),
                            kContextLengthExceeded)
               : AtBodyPath(status, request_.answer.paths));
}

HttpHeaders Completion::Headers(const char* type) const {
  HttpHeaders headers = terms_.headers;
  headers.insert(headers.end(), {{"Content-Type", type},
                                 {"Cache-Control", "no-store"},
                                 {"X-Content-Type-Options", "nosniff"}});
  return headers;
}

void Completion::SendPieces(size_t index, absl::Span<const CallPiece> pieces, const TokenLog* log) {
  mutex_.AssertHeld();
  Send([&](std::string* out) { format_->AddPieces(index, pieces, log, out); });
}

void Completion::BeginAnswer() {
  mutex_.AssertHeld();
  if (!request_.stream || request_.prewarm) return;
  answer_->Begin(200, Headers("text/event-stream; charset=utf-8"), std::string(format_->Waiting()));
}

void Completion::BeginStream() {
  mutex_.AssertHeld();
  if (std::exchange(streaming_, true)) return;
  BeginAnswer();
  Send([&](std::string* out) { format_->Begin(seed_, usage_, out); });
  for (size_t i = 0; request_.echo && i < choices_.size(); ++i) {
    const CallPiece echo{CallPiece::kText, 0, echoes_[i / n_].text};
    SendPieces(i, {&echo, 1}, nullptr);
  }
}

void Completion::SendError(const absl::Status& status) const {
  hearth::SendError(status, Headers("application/json"), format_->ErrorBody(status), answer_.get());
}

void Completion::Fail(const absl::Status& status) {
  mutex_.AssertHeld();
  Abandon(status);
  if (answer_->TakeBack()) return SendError(status);
  Send([&](std::string* out) { format_->Fail(status, out); });
  answer_->End();
}

void Completion::Finish() {
  mutex_.AssertHeld();
  is_over_ = true;
  if (!streaming_) {
    return generator_->pool()->Continue(tenant_, [self = shared_from_this()] {
      self->Try([&] { self->SendWhole(); });
      absl::MutexLock lock(&self->mutex_);
      self->last_call_.reset();
    });
  }
  Send([&](std::string* out) { format_->End(usage_, out); });
  answer_->End();
  last_call_.reset();
}

void Completion::WriteAnswer(size_t index, Choice choice, const Echo& echo, HeldText* out) {
  WholeAnswer answer;
  if (request_.answer.calls.names.empty()) {
    answer.read.text = std::move(choice.text);
  } else if (out->Hold(choice.text.size())) {
    answer.read = ReadCalls(request_.answer.calls, choice.text);
  }
  answer.read.text.insert(0, echo.text);
  const bool calls = !answer.read.calls.empty() && !answer.read.is_cut;
  answer.end = calls && choice.end != AnswerEnd::kLength ? AnswerEnd::kToolCalls : choice.end;
  answer.stop_string = std::move(choice.stop_string);
  answer.echo = &echo.log;
  if (request_.logprobs) answer.log = &choice.log;
  format_->WriteAnswer(index, answer, out);
}

void Completion::SendWhole() {
  HeldText out(answer_.get());
  std::vector<Choice> choices;
  std::vector<Echo> echoes;
  AnswerUsage usage;
  {
    absl::MutexLock lock(&mutex_);
    format_->BeginWhole(seed_, &out);
    choices.swap(choices_);
    echoes.swap(echoes_);
    usage = usage_;
  }
  for (size_t i = 0; i < choices.size() && out.fits(); ++i) {
    WriteAnswer(i, std::exchange(choices[i], Choice()), echoes[i / n_], &out);
  }
  format_->EndWhole(usage, &out);
  if (!out.fits()) return SendError(NoAnswerMemory());
  out.Send(Headers("application/json"));
}

}  // namespace

void Complete(Generator* generator, Admission* admission, OpenAiRequest request,
              CompletionTerms terms, std::shared_ptr<HttpAnswer> answer) {
  std::make_shared<Completion>(generator, admission, std::move(request), std::move(terms),
                               std::move(answer))
      ->Start();
}

}  // namespace hearth
