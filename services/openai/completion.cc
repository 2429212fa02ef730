#include "services/openai/completion.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "services/openai/held_text.h"
#include "services/rpc/call_metadata.h"
#include "services/rpc/status_conversion.h"
#include "services/serving/json_value.h"

namespace hearth {
namespace {

// Log probabilities are counted in steps of this size.
constexpr uint64_t kHoldStepBytes = uint64_t{64} << 10;

// One answer to one prompt, so far. A stream keeps neither its text nor its tokens.
struct Choice {
  std::string text;
  size_t text_bytes = 0;  // of the prompt's echo and the answer
  TokenLog log;
  const char* finish_reason = nullptr;
};

// A prompt that is given back before each of its answers.
struct Echo {
  std::string text;
  TokenLog log;
  size_t logged_bytes = 0;  // of the text of its tokens so far
};

class CompletionCall : public std::enable_shared_from_this<CompletionCall> {
 public:
  CompletionCall(OpenAiRequest request, CompletionTerms terms, std::shared_ptr<HttpAnswer> answer)
      : request_(std::move(request)),
        terms_(std::move(terms)),
        created_(absl::ToUnixSeconds(absl::Now())),
        answer_(std::move(answer)),
        n_(request_.common.n()),
        choices_(request_.prompts.size() * n_),
        echoes_(request_.prompts.size()) {}

  void Start(v1::Inference::StubInterface* stub);

 private:
  // One prompt's call.
  template <typename Request, typename Response>
  struct Call final : grpc::ClientReadReactor<Response> {
    Call(std::shared_ptr<CompletionCall> owner, size_t prompt)
        : owner(std::move(owner)), prompt(prompt) {}
    void OnReadDone(bool ok) override {
      if (!ok) return;
      owner->Guarded([&] { owner->Take(prompt, response); });
      response.Clear();
      this->StartRead(&response);
    }
    void OnDone(const grpc::Status& status) override {
      const auto self = std::move(owner);
      self->Guarded([&] { self->OnCallDone(FromGrpcStatus(status), context); });  // may free this
    }

    std::shared_ptr<CompletionCall> owner;
    const size_t prompt;
    grpc::ClientContext context;
    Request request;
    Response response;
  };
  using Generation = Call<v1::GenerateRequest, v1::GenerateResponse>;
  using Warming = Call<v1::PrefillRequest, v1::PrefillResponse>;

  // Runs one step on gRPC's thread. If the step throws, such as for lack of memory, the answer and
  // its calls end.
  template <typename Step>
  void Guarded(const Step& step) {
    try {
      step();
    } catch (...) {
      answer_->Fail();
      CancelAll();
    }
  }
  void Prepare(grpc::ClientContext* context);
  void Take(size_t prompt, const v1::GenerateResponse& message) ABSL_LOCKS_EXCLUDED(mutex_);
  void Take(size_t prompt, const v1::PrefillResponse& message) ABSL_LOCKS_EXCLUDED(mutex_);
  void TakeToken(size_t prompt, const v1::GeneratedToken& token)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakePrompt(size_t prompt, const v1::PromptTokens& tokens)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeEnd(size_t prompt, const v1::Finished& finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnCallDone(const absl::Status& status, const grpc::ClientContext& context)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void CancelAll() ABSL_LOCKS_EXCLUDED(mutex_);
  // The request has failed: the calls of its other prompts end, too.
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // False: there is no memory for the prompts' text.
  bool MakeEchoes() ABSL_LOCKS_EXCLUDED(mutex_);
  // Counts memory that was just allocated; the request fails if there is none left.
  void Count(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void AddTokens(const v1::GeneratedToken& token, size_t text_offset, TokenLog* log) const;
  void AddTokens(const v1::PromptTokens& tokens, Echo* echo, TokenLog* log) const;
  // The JSON of `logprobs`.
  void WriteLogprobs(const std::vector<const TokenLog*>& logs, HeldText* out) const;

  HttpHeaders Headers(const char* type) const;
  // The beginning of the answer's object, up to its choices.
  std::string Envelope() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Json Usage() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginStream() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // An event about one choice. `said`: the JSON of what it adds.
  void SendChunk(size_t index, absl::string_view said, absl::string_view logprobs = "null",
                 const char* finish_reason = nullptr) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendWhole() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void WriteChoice(size_t index, HeldText* out) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::string_view Text(uint32_t id) const {
    return terms_.token_bytes ? terms_.token_bytes(static_cast<int32_t>(id)) : "";
  }

  OpenAiRequest request_;  // Start moves its prompts to the calls
  const CompletionTerms terms_;
  const int64_t created_;
  const std::shared_ptr<HttpAnswer> answer_;
  const size_t n_;  // answers to a prompt

  absl::Mutex mutex_;
  std::vector<std::unique_ptr<Generation>> generations_;
  std::vector<std::unique_ptr<Warming>> warmings_;
  std::vector<Choice> choices_ ABSL_GUARDED_BY(mutex_);
  std::vector<Echo> echoes_ ABSL_GUARDED_BY(mutex_);  // of each prompt
  uint64_t uncounted_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t open_ ABSL_GUARDED_BY(mutex_) = 0;
  bool streaming_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<uint64_t> seed_ ABSL_GUARDED_BY(mutex_);  // of the last prompt that began
  absl::Status failed_ ABSL_GUARDED_BY(mutex_);           // the first to fail
  uint32_t retry_after_ms_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t prompt_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t cached_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t written_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t generated_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
};

void CompletionCall::Prepare(grpc::ClientContext* context) {
  SendToken(terms_.token, context);
  SendRequestId(terms_.request_id, context);
}

bool CompletionCall::MakeEchoes() {
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; request_.echo && i < echoes_.size(); ++i) {
    const v1::PromptInput& prompt = request_.prompts[i];
    uint64_t bytes = prompt.text().size();
    for (const uint32_t id : prompt.token_ids().ids()) bytes += Text(id).size();
    if (!answer_->Hold(bytes)) return false;
    std::string& text = echoes_[i].text;
    text.reserve(bytes);
    text = prompt.text();
    for (const uint32_t id : prompt.token_ids().ids()) absl::StrAppend(&text, Text(id));
    for (size_t s = 0; s < n_; ++s) choices_[i * n_ + s].text_bytes = text.size();
  }
  return true;
}

void CompletionCall::Start(v1::Inference::StubInterface* stub) {
  if (!MakeEchoes()) {
    return SendError(NoAnswerMemory(), 0, Headers("application/json"), answer_.get());
  }
  {
    absl::MutexLock lock(&mutex_);
    open_ = request_.prompts.size();
  }
  const auto self = shared_from_this();
  const uint64_t request_bytes = request_.bytes();
  for (size_t i = 0; i < request_.prompts.size(); ++i) {
    v1::PromptInput prompt = std::move(request_.prompts[i]);
    if (request_.prewarm) {
      warmings_.push_back(std::make_unique<Warming>(self, i));
      Warming* call = warmings_.back().get();
      *call->request.mutable_prompt() = std::move(prompt);
      call->request.set_ttl_s(request_.ttl_s);
      call->request.set_keep_s(request_.common.keep_s());
      call->request.set_priority(request_.common.priority());
      call->request.set_adapter(terms_.adapter);
      Prepare(&call->context);
      stub->async()->Prefill(&call->context, &call->request, call);
    } else {
      generations_.push_back(std::make_unique<Generation>(self, i));
      Generation* call = generations_.back().get();
      call->request = request_.common;
      *call->request.mutable_prompt() = std::move(prompt);
      call->request.set_adapter(terms_.adapter);
      Prepare(&call->context);
      stub->async()->Generate(&call->context, &call->request, call);
    }
  }
  const uint64_t moved_bytes = request_bytes - request_.bytes();
  // Not before: a hang-up cancels all calls that exist.
  answer_->OnGone([weak = weak_from_this()] {
    if (const auto call = weak.lock()) call->CancelAll();
  });
  const auto start = [](const auto& call) {
    call->StartRead(&call->response);
    call->StartCall();
    // It was serialized, and its prompt may have megabytes.
    std::decay_t<decltype(call->request)>().Swap(&call->request);
  };
  for (const auto& call : generations_) start(call);
  for (const auto& call : warmings_) start(call);
  answer_->Release(moved_bytes);  // the prompts went with the calls
}

void CompletionCall::CancelAll() {
  for (const auto& call : generations_) call->context.TryCancel();
  for (const auto& call : warmings_) call->context.TryCancel();
}

void CompletionCall::Take(size_t prompt, const v1::GenerateResponse& message) {
  absl::MutexLock lock(&mutex_);
  if (message.has_started()) {
    prompt_tokens_ += message.started().prompt_tokens();
    cached_tokens_ += message.started().cached_tokens();
    if (message.started().has_seed()) seed_ = message.started().seed();
    if (request_.stream) BeginStream();
  } else if (message.has_token()) {
    TakeToken(prompt, message.token());
  } else if (message.has_prompt()) {
    TakePrompt(prompt, message.prompt());
  } else if (message.has_finished()) {
    TakeEnd(prompt, message.finished());
  }
}

void CompletionCall::Take(size_t, const v1::PrefillResponse& message) {
  absl::MutexLock lock(&mutex_);
  prompt_tokens_ += message.prompt_tokens();
  cached_tokens_ += message.cached_tokens();
  written_tokens_ += message.cache_write_tokens();
}

void CompletionCall::Fail(const absl::Status& status) {
  mutex_.AssertHeld();
  if (!failed_.ok()) return;
  failed_ = status;
  for (const auto& call : generations_) call->context.TryCancel();
  for (const auto& call : warmings_) call->context.TryCancel();
}

void CompletionCall::Count(uint64_t bytes) {
  mutex_.AssertHeld();
  uncounted_bytes_ += bytes;
  if (uncounted_bytes_ < kHoldStepBytes || !failed_.ok()) return;
  if (!answer_->Hold(std::exchange(uncounted_bytes_, 0))) Fail(NoAnswerMemory());
}

void CompletionCall::AddTokens(const v1::PromptTokens& tokens, Echo* echo, TokenLog* log) const {
  for (const v1::PromptTokens::Token& token : tokens.tokens()) {
    const size_t offset = std::min(echo->logged_bytes, echo->text.size());
    if (token.has_logprob()) {
      v1::TokenLogprob one;
      one.set_id(token.id());
      one.set_logprob(token.logprob());
      log->Add(one, token.top(), offset);
    } else {
      log->AddFirst(static_cast<int32_t>(token.id()), offset);
    }
    echo->logged_bytes += Text(token.id()).size();
  }
}

void CompletionCall::AddTokens(const v1::GeneratedToken& token, size_t text_offset,
                               TokenLog* log) const {
  const TokenLog::Top none;
  for (int i = 0; i < token.logprobs_size(); ++i) {
    const bool is_last = i + 1 == token.logprobs_size();
    log->Add(token.logprobs(i), is_last ? token.top() : none, text_offset);
  }
}

void CompletionCall::WriteLogprobs(const std::vector<const TokenLog*>& logs, HeldText* out) const {
  if (!request_.is_chat) return WriteFlat(logs, terms_.token_bytes, out);
  out->Append("{\"content\":[");
  for (const TokenLog* const log : logs) log->WriteContent(terms_.token_bytes, out);
  out->Append("],\"refusal\":null}");
}

// The prompt's tokens come before the answer's, for all answers to it at once.
void CompletionCall::TakePrompt(size_t prompt, const v1::PromptTokens& tokens) {
  mutex_.AssertHeld();
  Echo& echo = echoes_[prompt];
  if (!streaming_) {
    const uint64_t before = echo.log.bytes();
    AddTokens(tokens, &echo, &echo.log);
    return Count(echo.log.bytes() - before);
  }
  TokenLog log;
  AddTokens(tokens, &echo, &log);
  HeldText logprobs;
  WriteLogprobs({&log}, &logprobs);
  const std::string text = logprobs.Take();
  for (size_t s = 0; s < n_; ++s) SendChunk(prompt * n_ + s, "\"\"", text);
}

void CompletionCall::TakeToken(size_t prompt, const v1::GeneratedToken& token) {
  mutex_.AssertHeld();
  if (request_.only_echo) return;
  const size_t index = prompt * n_ + token.sample();
  if (index >= choices_.size()) return;
  Choice& choice = choices_[index];
  const size_t offset = choice.text_bytes;
  choice.text_bytes += token.text().size();
  if (!streaming_) {
    const uint64_t before = choice.text.capacity() + choice.log.bytes();
    choice.text += token.text();
    if (request_.logprobs) AddTokens(token, offset, &choice.log);
    return Count(choice.text.capacity() + choice.log.bytes() - before);
  }
  const bool has_logprobs = request_.logprobs && token.logprobs_size() > 0;
  if (token.text().empty() && !has_logprobs) return;
  HeldText logprobs;
  if (has_logprobs) {
    TokenLog log;
    AddTokens(token, offset, &log);
    WriteLogprobs({&log}, &logprobs);
  } else {
    logprobs.Append("null");
  }
  std::string said = request_.is_chat ? "{\"content\":" : "";
  AppendJsonString(token.text(), &said);
  if (request_.is_chat) said += "}";
  SendChunk(index, said, logprobs.Take());
}

void CompletionCall::TakeEnd(size_t prompt, const v1::Finished& finished) {
  mutex_.AssertHeld();
  if (!request_.only_echo) generated_tokens_ += finished.generated_tokens();
  written_tokens_ += finished.cache_write_tokens();
  for (size_t s = 0; s < n_; ++s) {
    const size_t index = prompt * n_ + s;
    const bool is_known = static_cast<int>(s) < finished.samples_size();
    const v1::FinishReason reason =
        is_known ? finished.samples(static_cast<int>(s)).reason() : finished.reason();
    const bool is_cut = reason == v1::FINISH_REASON_LENGTH || request_.only_echo;
    choices_[index].finish_reason = is_cut ? "length" : "stop";
    if (!streaming_) continue;
    SendChunk(index, request_.is_chat ? "{}" : "\"\"", "null", choices_[index].finish_reason);
  }
}

void CompletionCall::OnCallDone(const absl::Status& status, const grpc::ClientContext& context) {
  absl::MutexLock lock(&mutex_);
  if (!status.ok() && failed_.ok()) {
    const auto& trailing = context.GetServerTrailingMetadata();
    const auto hint = trailing.find(kRetryAfterMsKey);
    if (hint != trailing.end()) {
      const std::string text(hint->second.data(), hint->second.size());
      if (!absl::SimpleAtoi(text, &retry_after_ms_)) retry_after_ms_ = 0;
    }
    // The call computes a token that an echo alone does not show.
    const bool is_full =
        request_.only_echo && absl::StartsWith(status.message(), "max_new_tokens: ");
    Fail(is_full ? absl::InvalidArgumentError(
                       "prompt: fills the model's context, but max_tokens 0 needs room for one "
                       "token; send one token less")
                 : status);
  }
  if (--open_ == 0) End();
}

HttpHeaders CompletionCall::Headers(const char* type) const {
  HttpHeaders headers = terms_.headers;
  headers.insert(headers.end(), {{"Content-Type", type},
                                 {"Cache-Control", "no-store"},
                                 {"X-Content-Type-Options", "nosniff"},
                                 {"X-Request-Id", terms_.request_id}});
  return headers;
}

std::string CompletionCall::Envelope() const {
  const char* const chat = request_.stream ? "chat.completion.chunk" : "chat.completion";
  Json made = {{"id", terms_.id},
               {"object", request_.is_chat ? chat : "text_completion"},
               {"created", created_},
               {"model", terms_.model}};
  if (!request_.cache_key.empty()) made["prompt_cache_key"] = request_.cache_key;
  if (seed_.has_value()) made["seed"] = *seed_;
  std::string text = JsonLine(made);
  text.back() = ',';
  return text;
}

void CompletionCall::SendChunk(size_t index, absl::string_view said, absl::string_view logprobs,
                               const char* finish_reason) {
  mutex_.AssertHeld();
  const std::string finish =
      finish_reason == nullptr ? "null" : absl::StrCat("\"", finish_reason, "\"");
  answer_->Write(absl::StrCat("data: ", Envelope(), "\"choices\":[{\"index\":", index,
                              request_.is_chat ? ",\"delta\":" : ",\"text\":", said,
                              ",\"logprobs\":", logprobs, ",\"finish_reason\":", finish, "}]",
                              request_.include_usage ? ",\"usage\":null" : "", "}\n\n"));
}

Json CompletionCall::Usage() const {
  return {{"prompt_tokens", prompt_tokens_},
          {"completion_tokens", generated_tokens_},
          {"total_tokens", prompt_tokens_ + generated_tokens_},
          {"prompt_tokens_details",
           {{"cached_tokens", cached_tokens_}, {"cache_write_tokens", written_tokens_}}}};
}

void CompletionCall::BeginStream() {
  mutex_.AssertHeld();
  if (std::exchange(streaming_, true)) return;
  answer_->Begin(200, Headers("text/event-stream; charset=utf-8"), ": waiting\n\n");
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (request_.is_chat) {
      SendChunk(i, R"({"role":"assistant","content":""})");
    } else if (request_.echo) {
      std::string text;
      AppendJsonString(echoes_[i / n_].text, &text);
      SendChunk(i, text);
    }
  }
}

void CompletionCall::End() {
  mutex_.AssertHeld();
  if (!streaming_) {
    return failed_.ok()
               ? SendWhole()
               : SendError(failed_, retry_after_ms_, Headers("application/json"), answer_.get());
  }
  if (!failed_.ok()) {
    const int status = HttpStatusOf(failed_.code());
    answer_->Write(absl::StrCat("data: ", HttpErrorBody(status, failed_.message()), "\n\n"));
  } else if (request_.include_usage) {
    answer_->Write(absl::StrCat("data: ", Envelope(),
                                "\"choices\":[],\"usage\":", JsonLine(Usage()), "}\n\n"));
  }
  answer_->Write("data: [DONE]\n\n");
  answer_->End();
}

void CompletionCall::WriteChoice(size_t index, HeldText* out) const {
  const Choice& choice = choices_[index];
  const Echo& echo = echoes_[index / n_];
  const char* const reason = choice.finish_reason == nullptr ? "stop" : choice.finish_reason;
  out->Append(absl::StrCat("{\"index\":", index, ",\"finish_reason\":\"", reason, "\","));
  if (request_.is_chat) {
    out->Append("\"message\":{\"role\":\"assistant\",\"content\":");
    out->AppendString(choice.text);
    out->Append(",\"refusal\":null}");
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

void CompletionCall::SendWhole() {
  mutex_.AssertHeld();
  HeldText out(answer_.get());
  out.Append(Envelope());
  out.Append("\"choices\":[");
  for (size_t i = 0; i < choices_.size() && out.fits(); ++i) {
    if (i > 0) out.Append(",");
    WriteChoice(i, &out);
    choices_[i] = Choice();
  }
  out.Append(absl::StrCat("],\"usage\":", JsonLine(Usage()), "}"));
  if (!out.fits()) {
    return SendError(NoAnswerMemory(), 0, Headers("application/json"), answer_.get());
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
    // A deadline is the server's own, so the caller may try again.
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDeadlineExceeded:
      return 503;
    default:
      return 500;
  }
}

void Complete(v1::Inference::StubInterface* stub, OpenAiRequest request, CompletionTerms terms,
              std::shared_ptr<HttpAnswer> answer) {
  std::make_shared<CompletionCall>(std::move(request), std::move(terms), std::move(answer))
      ->Start(stub);
}

void SendError(const absl::Status& status, uint32_t retry_after_ms, const HttpHeaders& headers,
               HttpAnswer* answer) {
  const int http = HttpStatusOf(status.code());
  HttpHeaders all = headers;
  if (retry_after_ms > 0) {
    all.emplace_back("Retry-After-Ms", absl::StrCat(retry_after_ms));
    all.emplace_back("Retry-After", absl::StrCat((retry_after_ms + 999) / 1000));
  }
  if (http == 401) all.emplace_back("WWW-Authenticate", "Bearer");
  absl::string_view message = status.message();
  absl::ConsumePrefix(&message, "sampling.");  // fields of the body itself, here
  answer->Send(http, all, HttpErrorBody(http, message, FieldOf(message)));
}

}  // namespace hearth
