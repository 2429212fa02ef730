#include "services/openai/completion.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "proto/caller_gone.h"
#include "proto/error_reason.h"
#include "services/inference/calls/inference_conversion.h"
#include "services/openai/held_text.h"
#include "services/openai/token_log.h"
#include "services/rpc/status_conversion.h"
#include "services/serving/json_value.h"

namespace hearth {
namespace {

// Step in which the memory of a growing answer is counted against the HTTP memory budget.
constexpr uint64_t kHoldStepBytes = uint64_t{64} << 10;

// The current state of one answer to one prompt. A streamed answer stores neither text nor tokens,
// except text that may be the beginning of a tool call.
struct Choice {
  std::string text;
  std::optional<CallReader> calls;  // set for a streamed answer that may have tool calls
  size_t text_bytes = 0;            // bytes of the echoed prompt and the answer
  TokenLog log;
  const char* finish_reason = nullptr;
};

// The text and the log probabilities of a prompt that the response repeats before each of the
// prompt's answers.
struct Echo {
  std::string text;
  TokenLog log;
  size_t logged_bytes = 0;  // bytes of text of the tokens that were logged so far
};

// If a message begins with a field path of the gRPC API, replaces it by the field's path in the
// JSON body.
std::string WithBodyFieldPath(absl::string_view message) {
  constexpr std::pair<absl::string_view, absl::string_view> kPaths[] = {
      {"sampling.", ""}, {"chat.", ""}, {"chat: ", "messages: "}, {"max_new_tokens", "max_tokens"}};
  constexpr absl::string_view kParts = "].parts[";
  std::string said(message);
  for (const auto& [own, of_body] : kPaths) {
    if (!absl::StartsWith(said, own)) continue;
    said.replace(0, own.size(), of_body.data(), of_body.size());
    break;
  }
  const size_t parts = said.find(kParts.data());
  if (parts < said.find(": ")) said.replace(parts, kParts.size(), "].content[");
  return said;
}

// Replaces the place in an error about the grammar by the path in the request's body.
absl::Status AtBodyPath(const absl::Status& status, const SchemaPaths& paths) {
  if (!absl::StartsWith(status.message(), "grammar")) return status;
  return absl::Status(status.code(), WithBodyPath(status.message(), paths));
}

std::string ErrorBody(const absl::Status& status) {
  const int http = HttpStatusOf(status.code());
  const std::string message = WithBodyFieldPath(status.message());
  const bool is_about_field = http == 400 || http == 404;
  return HttpErrorBody(http, message, is_about_field ? FieldOf(message) : "", ReasonOf(status));
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
        created_(absl::ToUnixSeconds(absl::Now())),
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
    void OnFinished(const FinishedInfo& info, uint32_t prompt_tokens, uint32_t written) override;
    void OnPrefill(const v1::PrefillResponse& message) override;
    void OnEnd(const absl::Status& status) override;

    Completion* const owner;
    const size_t prompt;
    // guarded by the owner's mutex; null: the prompt has no running call
    std::unique_ptr<Admission::Call> call;
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
  // Submits a prompt to the Generator. Runs on the thread pool.
  absl::Status Begin(Part* part, const std::string& tenant);
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
  // Writes the JSON value of the response field `logprobs`.
  void WriteLogprobs(const std::vector<const TokenLog*>& logs, HeldText* out) const;

  HttpHeaders Headers(const char* type) const;
  // Returns the start of the response's JSON object, up to "choices".
  std::string Envelope(std::optional<uint64_t> seed) const;
  Json Usage() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Starts a streamed response. HttpAnswer delays the headers until the caller has waited for a
  // while, so that an early error can still be sent with its HTTP status.
  void BeginAnswer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginStream() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends events about the text and call pieces of one answer. `logprobs`: JSON of the log
  // probabilities of all pieces together.
  void SendPieces(size_t index, const std::vector<CallPiece>& pieces, absl::string_view logprobs)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends a streamed event about one answer. `said`: JSON of the text or delta to add.
  void SendChunk(size_t index, absl::string_view said, absl::string_view logprobs = "null",
                 const char* finish_reason = nullptr) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Ends the stream. `last`: JSON of a last event; empty: no such event.
  void EndStream(const std::string& last) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Fails the whole HTTP request with `status`, and cancels its prompts that are still running.
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Finish() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sends a response that is not streamed. Runs on the thread pool, because its time is
  // proportional to the size of the response.
  void SendWhole() ABSL_LOCKS_EXCLUDED(mutex_);
  void WriteChoice(size_t index, const Choice& choice, const Echo& echo, HeldText* out) const;
  // Writes the message of a chat answer. `text`: the answer without its calls.
  void WriteMessage(size_t index, absl::string_view text, const ReadAnswer& answer,
                    HeldText* out) const;

  Generator* const generator_;
  Admission* const admission_;
  OpenAiRequest request_;  // the parsed request; the job of each prompt moves that prompt out
  const CompletionTerms terms_;
  const Tokenizer* const tokenizer_;  // null: the model has no tokenizer
  const int64_t created_;
  const std::shared_ptr<HttpAnswer> answer_;
  const size_t n_;          // number of answers per prompt
  std::deque<Part> parts_;  // one Part per prompt

  absl::Mutex mutex_;
  std::vector<Choice> choices_ ABSL_GUARDED_BY(mutex_);
  std::vector<Echo> echoes_ ABSL_GUARDED_BY(mutex_);  // one Echo per prompt
  uint64_t uncounted_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t open_ ABSL_GUARDED_BY(mutex_);  // number of prompts that have not ended
  // the response has ended, and later events are ignored
  bool is_over_ ABSL_GUARDED_BY(mutex_) = false;
  bool streaming_ ABSL_GUARDED_BY(mutex_) = false;
  std::string tenant_ ABSL_GUARDED_BY(mutex_);
  // The call of the prompt that ended last. A drain waits for running calls, so this call is kept
  // until the response is sent.
  std::unique_ptr<Admission::Call> last_call_ ABSL_GUARDED_BY(mutex_);
  // the start of each streamed event; set when the first prompt starts
  std::string envelope_ ABSL_GUARDED_BY(mutex_);
  uint64_t prompt_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t cached_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t written_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t generated_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
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
  if (!MakeEchoes()) {
    return SendError(NoAnswerMemory(), Headers("application/json"), answer_.get());
  }
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
      request_.prewarm ? "Prefill" : "Generate", terms_.credentials, terms_.request_id, &call);
  if (caller.ok()) {
    call->EndBy([weak = weak_from_this()](EndReason reason, const absl::Status& why) {
      const auto self = weak.lock();
      if (self != nullptr && reason != EndReason::kDrain) self->Guarded([&] { self->Fail(why); });
    });
  }
  const bool is_on = Guarded([&] {
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
  v1::PromptInput prompt = std::move(request_.prompts[part->prompt]);
  const uint64_t bytes = prompt.SpaceUsedLong();
  const GenerationTerms terms{tenant, terms_.request_id};
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
    NoteStart(info, call->note());
    owner->prompt_tokens_ += info.prompt_tokens;
    owner->cached_tokens_ += info.cached_tokens;
    if (owner->envelope_.empty()) owner->envelope_ = owner->Envelope(seed);
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

void Completion::Part::OnPrefill(const v1::PrefillResponse& message) {
  owner->Guarded([&] { owner->written_tokens_ += message.cache_write_tokens(); });
}

void Completion::Part::OnEnd(const absl::Status& status) {
  owner->Guarded([&] { owner->EndPart(this, status); });
}

void Completion::Part::OnFinished(const FinishedInfo& info, uint32_t, uint32_t written) {
  owner->Guarded([&] {
    const OpenAiRequest& request = owner->request_;
    owner->written_tokens_ += written;
    if (!request.only_echo) owner->generated_tokens_ += info.generated_tokens;
    for (size_t s = 0; s < owner->n_; ++s) {
      const size_t index = prompt * owner->n_ + s;
      const FinishReason reason = s < info.samples.size() ? info.samples[s].reason : info.reason;
      const bool is_cut = reason == FinishReason::kLength || request.only_echo;
      Choice& choice = owner->choices_[index];
      const bool calls = choice.calls.has_value() && owner->EndCalls(index);
      const char* const said = is_cut ? "length" : calls ? "tool_calls" : "stop";
      choice.finish_reason = said;
      if (owner->streaming_) owner->SendChunk(index, request.is_chat ? "{}" : "\"\"", "null", said);
    }
  });
}

void Completion::Count(uint64_t bytes) {
  mutex_.AssertHeld();
  uncounted_bytes_ += bytes;
  if (uncounted_bytes_ < kHoldStepBytes) return;
  if (!answer_->Hold(std::exchange(uncounted_bytes_, 0))) Fail(NoAnswerMemory());
}

void Completion::WriteLogprobs(const std::vector<const TokenLog*>& logs, HeldText* out) const {
  if (!request_.is_chat) return WriteFlat(logs, tokenizer_, out);
  out->Append("{\"content\":[");
  for (const TokenLog* const log : logs) log->WriteContent(tokenizer_, out);
  out->Append("],\"refusal\":null}");
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
  if (!streaming_) return Count(log.bytes() - before);
  HeldText logprobs;
  WriteLogprobs({&log}, &logprobs);
  const std::string text = logprobs.Take();
  for (size_t s = 0; s < n_; ++s) SendChunk(prompt * n_ + s, "\"\"", text);
}

void Completion::AddTokens(size_t index, const TokenDelta& delta) {
  mutex_.AssertHeld();
  Choice& choice = choices_[index];
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
    return Count(choice.text.capacity() + choice.log.bytes() - before);
  }
  if (delta.text.empty() && !has_logprobs) return;
  HeldText logprobs;
  if (has_logprobs) {
    TokenLog log;
    add_to(&log);
    WriteLogprobs({&log}, &logprobs);
  } else {
    logprobs.Append("null");
  }
  if (choice.calls.has_value()) {
    std::vector<CallPiece> pieces;
    choice.calls->Push(delta.text, &pieces);
    if (pieces.empty() && has_logprobs) return SendChunk(index, "{}", logprobs.Take());
    return SendPieces(index, pieces, logprobs.Take());
  }
  std::string said = request_.is_chat ? "{\"content\":" : "";
  AppendJsonString(delta.text, &said);
  if (request_.is_chat) said += "}";
  SendChunk(index, said, logprobs.Take());
}

bool Completion::EndCalls(size_t index) {
  mutex_.AssertHeld();
  CallReader& reader = *choices_[index].calls;
  std::vector<CallPiece> pieces;
  reader.Finish(&pieces);
  SendPieces(index, pieces, "null");
  return reader.calls() > 0 && !reader.is_cut();
}

void Completion::EndPart(Part* part, const absl::Status& status) {
  mutex_.AssertHeld();
  std::unique_ptr<Admission::Call> call = std::move(part->call);
  if (call != nullptr) call->Finish(status).IgnoreError();
  if (status.ok()) {
    if (--open_ > 0) return;
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
                                 {"X-Content-Type-Options", "nosniff"},
                                 {"X-Request-Id", terms_.request_id}});
  return headers;
}

std::string Completion::Envelope(std::optional<uint64_t> seed) const {
  const char* const chat = request_.stream ? "chat.completion.chunk" : "chat.completion";
  Json made = {{"id", terms_.id},
               {"object", request_.is_chat ? chat : "text_completion"},
               {"created", created_},
               {"model", terms_.model}};
  if (!request_.cache_key.empty()) made["prompt_cache_key"] = request_.cache_key;
  if (seed.has_value()) made["seed"] = *seed;
  std::string text = JsonLine(made);
  text.back() = ',';
  return text;
}

void Completion::SendPieces(size_t index, const std::vector<CallPiece>& pieces,
                            absl::string_view logprobs) {
  mutex_.AssertHeld();
  for (const CallPiece& piece : pieces) {
    std::string said;
    if (piece.kind == CallPiece::kText) {
      said = "{\"content\":";
      AppendJsonString(piece.text, &said);
    } else if (piece.kind == CallPiece::kName) {
      said = absl::StrCat("{\"tool_calls\":[{\"index\":", piece.call, ",\"id\":\"",
                          CallId(terms_.request_id, request_.earlier_calls, index, piece.call),
                          "\",\"type\":\"function\",\"function\":{\"name\":\"", piece.text,
                          "\",\"arguments\":\"\"}}]");
    } else {
      said =
          absl::StrCat("{\"tool_calls\":[{\"index\":", piece.call, ",\"function\":{\"arguments\":");
      AppendJsonString(piece.text, &said);
      said += "}}]";
    }
    SendChunk(index, said + "}", logprobs);
    logprobs = "null";
  }
}

void Completion::SendChunk(size_t index, absl::string_view said, absl::string_view logprobs,
                           const char* finish_reason) {
  mutex_.AssertHeld();
  const std::string finish =
      finish_reason == nullptr ? "null" : absl::StrCat("\"", finish_reason, "\"");
  answer_->Write(absl::StrCat("data: ", envelope_, "\"choices\":[{\"index\":", index,
                              request_.is_chat ? ",\"delta\":" : ",\"text\":", said,
                              ",\"logprobs\":", logprobs, ",\"finish_reason\":", finish, "}]",
                              request_.include_usage ? ",\"usage\":null" : "", "}\n\n"));
}

Json Completion::Usage() const {
  return {{"prompt_tokens", prompt_tokens_},
          {"completion_tokens", generated_tokens_},
          {"total_tokens", prompt_tokens_ + generated_tokens_},
          {"prompt_tokens_details",
           {{"cached_tokens", cached_tokens_}, {"cache_write_tokens", written_tokens_}}}};
}

void Completion::BeginAnswer() {
  mutex_.AssertHeld();
  if (!request_.stream || request_.prewarm) return;
  answer_->Begin(200, Headers("text/event-stream; charset=utf-8"), ": waiting\n\n");
}

void Completion::BeginStream() {
  mutex_.AssertHeld();
  if (std::exchange(streaming_, true)) return;
  BeginAnswer();
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (request_.is_chat) {
      // As in OpenAI's API: no content if the answer may begin with calls.
      SendChunk(i, choices_[i].calls.has_value() ? R"({"role":"assistant","content":null})"
                                                 : R"({"role":"assistant","content":""})");
    } else if (request_.echo) {
      std::string text;
      AppendJsonString(echoes_[i / n_].text, &text);
      SendChunk(i, text);
    }
  }
}

void Completion::EndStream(const std::string& last) {
  mutex_.AssertHeld();
  if (!last.empty()) answer_->Write(absl::StrCat("data: ", last, "\n\n"));
  answer_->Write("data: [DONE]\n\n");
  answer_->End();
}

void Completion::Fail(const absl::Status& status) {
  mutex_.AssertHeld();
  Abandon(status);
  if (answer_->TakeBack()) return SendError(status, Headers("application/json"), answer_.get());
  EndStream(ErrorBody(status));
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
  EndStream(request_.include_usage
                ? absl::StrCat(envelope_, "\"choices\":[],\"usage\":", JsonLine(Usage()), "}")
                : "");
  last_call_.reset();
}

void Completion::WriteMessage(size_t index, absl::string_view text, const ReadAnswer& answer,
                              HeldText* out) const {
  out->Append("\"message\":{\"role\":\"assistant\",\"content\":");
  if (answer.calls.empty() || !text.empty()) {
    out->AppendString(text);
  } else {
    out->Append("null");
  }
  for (size_t i = 0; i < answer.calls.size(); ++i) {
    out->Append(absl::StrCat(i == 0 ? ",\"tool_calls\":[" : ",", "{\"id\":\"",
                             CallId(terms_.request_id, request_.earlier_calls, index, i),
                             "\",\"type\":\"function\",\"function\":{\"name\":\"",
                             answer.calls[i].name, "\",\"arguments\":"));
    out->AppendString(answer.calls[i].arguments);
    out->Append("}}");
  }
  out->Append(answer.calls.empty() ? ",\"refusal\":null}" : "],\"refusal\":null}");
}

void Completion::WriteChoice(size_t index, const Choice& choice, const Echo& echo,
                             HeldText* out) const {
  const bool may_call = !request_.answer.calls.names.empty();
  ReadAnswer answer;
  if (may_call && out->Hold(choice.text.size()))
    answer = ReadCalls(request_.answer.calls, choice.text);
  const char* const said = choice.finish_reason == nullptr ? "stop" : choice.finish_reason;
  const bool calls = !answer.calls.empty() && !answer.is_cut && absl::string_view(said) == "stop";
  out->Append(absl::StrCat("{\"index\":", index, ",\"finish_reason\":\"",
                           calls ? "tool_calls" : said, "\","));
  if (request_.is_chat) {
    WriteMessage(index, may_call ? answer.text : choice.text, answer, out);
  } else {
    out->Append("\"text\":");
    out->AppendString(echo.text.empty() ? choice.text : echo.text + choice.text);
  }
  out->Append(",\"logprobs\":");
  if (request_.logprobs) {
    WriteLogprobs(request_.is_chat ? std::vector<const TokenLog*>{&choice.log}
                                   : std::vector<const TokenLog*>{&echo.log, &choice.log},
                  out);
  } else {
    out->Append("null");
  }
  out->Append("}");
}

void Completion::SendWhole() {
  HeldText out(answer_.get());
  std::vector<Choice> choices;
  std::vector<Echo> echoes;
  std::string usage;
  {
    absl::MutexLock lock(&mutex_);
    out.Append(envelope_);
    choices.swap(choices_);
    echoes.swap(echoes_);
    usage = JsonLine(Usage());
  }
  out.Append("\"choices\":[");
  for (size_t i = 0; i < choices.size() && out.fits(); ++i) {
    if (i > 0) out.Append(",");
    WriteChoice(i, choices[i], echoes[i / n_], &out);
    choices[i] = Choice();
  }
  out.Append(absl::StrCat("],\"usage\":", usage, "}"));
  if (!out.fits()) {
    return SendError(NoAnswerMemory(), Headers("application/json"), answer_.get());
  }
  out.Send(Headers("application/json"));
}

}  // namespace

int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    // The server sets the deadline, not the caller. So the status says that the caller may retry.
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDeadlineExceeded:
      return 503;
    default:
      return 500;
  }
}

void Complete(Generator* generator, Admission* admission, OpenAiRequest request,
              CompletionTerms terms, std::shared_ptr<HttpAnswer> answer) {
  std::make_shared<Completion>(generator, admission, std::move(request), std::move(terms),
                               std::move(answer))
      ->Start();
}

void SendError(const absl::Status& status, HttpHeaders headers, HttpAnswer* answer) {
  const int http = HttpStatusOf(status.code());
  if (http == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
  answer->Send(http, headers, ErrorBody(status));
}

}  // namespace hearth
