#include "services/openai/completion.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "services/rpc/call_metadata.h"
#include "services/rpc/status_conversion.h"

namespace hearth {
namespace {

using nlohmann::json;

int HttpStatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kCancelled:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

// One answer to one prompt, so far.
struct Choice {
  std::string text;
  json content = json::array();  // logprobs, of chats
  json tokens = json::array(), token_logprobs = json::array(), top_logprobs = json::array(),
       text_offset = json::array();  // of completions
  size_t told_bytes = 0;             // of its prompt's tokens
  const char* finish_reason = nullptr;
};

class CompletionCall : public std::enable_shared_from_this<CompletionCall> {
 public:
  CompletionCall(OpenAiRequest request, CompletionTerms terms, std::shared_ptr<HttpAnswer> answer)
      : request_(std::move(request)),
        terms_(std::move(terms)),
        created_(absl::ToUnixSeconds(absl::Now())),
        answer_(std::move(answer)),
        n_(request_.generations[0].n()),
        choices_(request_.generations.size() * n_) {
    for (size_t i = 0; request_.echo && i < choices_.size(); ++i) {
      choices_[i].text = request_.prompts[i / n_];
      if (!choices_[i].text.empty()) continue;
      for (const uint32_t id : request_.generations[i / n_].prompt().token_ids().ids()) {
        choices_[i].text += Text(static_cast<int32_t>(id));
      }
    }
  }

  void Start(v1::Inference::StubInterface* stub);

 private:
  // One prompt's call.
  template <typename Request, typename Response>
  struct Call final : grpc::ClientReadReactor<Response> {
    Call(std::shared_ptr<CompletionCall> owner, size_t prompt)
        : owner(std::move(owner)), prompt(prompt) {}
    void OnReadDone(bool ok) override {
      if (!ok) return;
      owner->Take(prompt, response);
      response.Clear();
      this->StartRead(&response);
    }
    void OnDone(const grpc::Status& status) override {
      const auto self = std::move(owner);
      self->OnCallDone(FromGrpcStatus(status), context);  // may be the end of this
    }

    std::shared_ptr<CompletionCall> owner;
    const size_t prompt;
    grpc::ClientContext context;
    Request request;
    Response response;
  };
  using Generation = Call<v1::GenerateRequest, v1::GenerateResponse>;
  using Warming = Call<v1::PrefillRequest, v1::PrefillResponse>;

  void Prepare(grpc::ClientContext* context);
  void Take(size_t prompt, const v1::GenerateResponse& message) ABSL_LOCKS_EXCLUDED(mutex_);
  void Take(size_t prompt, const v1::PrefillResponse& message) ABSL_LOCKS_EXCLUDED(mutex_);
  void TakeToken(size_t prompt, const v1::GeneratedToken& token)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakePrompt(size_t prompt, const v1::PromptTokens& tokens)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void TakeEnd(size_t prompt, const v1::Finished& finished) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  json TopMap(const google::protobuf::RepeatedPtrField<v1::TokenLogprob>& top) const;
  json TakeLogprobs(const v1::GeneratedToken& token, Choice* choice) const;
  void OnCallDone(const absl::Status& status, const grpc::ClientContext& context)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void CancelAll() ABSL_LOCKS_EXCLUDED(mutex_);

  HttpHeaders Headers(const char* type) const;
  json Envelope(const char* chat, const char* completion) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  json Chunk(size_t choice) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  json Usage() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginStream() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SendEvent(const json& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Text(int32_t id) const {
    return terms_.token_bytes ? std::string(terms_.token_bytes(id)) : "";
  }

  const OpenAiRequest request_;
  const CompletionTerms terms_;
  const int64_t created_;
  const std::shared_ptr<HttpAnswer> answer_;
  const size_t n_;  // answers to a prompt

  absl::Mutex mutex_;
  std::vector<std::unique_ptr<Generation>> generations_;
  std::vector<std::unique_ptr<Warming>> warmings_;
  std::vector<Choice> choices_ ABSL_GUARDED_BY(mutex_);
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
  if (!terms_.token.empty()) context->AddMetadata("authorization", "Bearer " + terms_.token);
  SendRequestId(terms_.request_id, context);
}

void CompletionCall::Start(v1::Inference::StubInterface* stub) {
  {
    absl::MutexLock lock(&mutex_);
    open_ = request_.generations.size();
  }
  const auto self = shared_from_this();
  for (size_t i = 0; i < request_.generations.size(); ++i) {
    const v1::GenerateRequest& asked = request_.generations[i];
    if (request_.prewarm) {
      warmings_.push_back(std::make_unique<Warming>(self, i));
      Warming* call = warmings_.back().get();
      *call->request.mutable_prompt() = asked.prompt();
      call->request.set_ttl_s(request_.ttl_s);
      call->request.set_keep_s(asked.keep_s());
      call->request.set_priority(asked.priority());
      call->request.set_adapter(terms_.adapter);
      Prepare(&call->context);
      stub->async()->Prefill(&call->context, &call->request, call);
    } else {
      generations_.push_back(std::make_unique<Generation>(self, i));
      Generation* call = generations_.back().get();
      call->request = asked;
      call->request.set_adapter(terms_.adapter);
      Prepare(&call->context);
      stub->async()->Generate(&call->context, &call->request, call);
    }
  }
  // Not before: a hang-up cancels all that there are.
  answer_->OnGone([weak = weak_from_this()] {
    if (const auto call = weak.lock()) call->CancelAll();
  });
  for (const auto& call : generations_) {
    call->StartRead(&call->response);
    call->StartCall();
  }
  for (const auto& call : warmings_) {
    call->StartRead(&call->response);
    call->StartCall();
  }
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

// Of an echo with logprobs: the prompt's tokens come before the answer's.
void CompletionCall::TakePrompt(size_t prompt, const v1::PromptTokens& tokens) {
  mutex_.AssertHeld();
  for (size_t s = 0; s < n_; ++s) {
    Choice& choice = choices_[prompt * n_ + s];
    const size_t first = choice.tokens.size();
    for (const v1::PromptTokens::Token& token : tokens.tokens()) {
      const std::string text = Text(static_cast<int32_t>(token.id()));
      choice.tokens.push_back(text);
      choice.token_logprobs.push_back(token.has_logprob() ? json(token.logprob()) : json());
      choice.top_logprobs.push_back(token.has_logprob() ? TopMap(token.top()) : json());
      choice.text_offset.push_back(std::min(choice.told_bytes, choice.text.size()));
      choice.told_bytes += text.size();
    }
    if (!streaming_) continue;
    json chunk = Chunk(prompt * n_ + s);
    json& flat = chunk["choices"][0]["logprobs"] = json::object();
    const auto rest = [first](const json& list) {
      return json(json::array_t(list.begin() + static_cast<std::ptrdiff_t>(first), list.end()));
    };
    flat["tokens"] = rest(choice.tokens);
    flat["token_logprobs"] = rest(choice.token_logprobs);
    flat["top_logprobs"] = rest(choice.top_logprobs);
    flat["text_offset"] = rest(choice.text_offset);
    SendEvent(chunk);
  }
}

json CompletionCall::TopMap(const google::protobuf::RepeatedPtrField<v1::TokenLogprob>& top) const {
  json map = json::object();
  for (const v1::TokenLogprob& one : top) map[Text(static_cast<int32_t>(one.id()))] = one.logprob();
  return map;
}

void CompletionCall::TakeToken(size_t prompt, const v1::GeneratedToken& token) {
  mutex_.AssertHeld();
  const size_t index = prompt * n_ + token.sample();
  if (index >= choices_.size()) return;
  Choice& choice = choices_[index];
  json logprobs = request_.logprobs ? TakeLogprobs(token, &choice) : json();
  choice.text += token.text();
  if (!streaming_ || (token.text().empty() && logprobs.is_null())) return;
  json chunk = Chunk(index);
  json& out = chunk["choices"][0];
  if (request_.is_chat) {
    out["delta"]["content"] = token.text();
  } else {
    out["text"] = token.text();
  }
  if (!logprobs.is_null()) out["logprobs"] = std::move(logprobs);
  SendEvent(chunk);
}

// Of a message's tokens, in the form of its API; also added to the choice's.
json CompletionCall::TakeLogprobs(const v1::GeneratedToken& token, Choice* choice) const {
  const auto entry = [this](const v1::TokenLogprob& of) {
    const std::string text = Text(static_cast<int32_t>(of.id()));
    return json{{"token", text},
                {"logprob", of.logprob()},
                {"bytes", std::vector<uint8_t>(text.begin(), text.end())}};
  };
  json content = json::array(), flat = {{"tokens", json::array()},
                                        {"token_logprobs", json::array()},
                                        {"top_logprobs", json::array()},
                                        {"text_offset", json::array()}};
  for (int i = 0; i < token.logprobs_size(); ++i) {
    json one = entry(token.logprobs(i));
    json list = json::array(), map = json::object();
    if (i + 1 == token.logprobs_size()) {
      for (const v1::TokenLogprob& one : token.top()) list.push_back(entry(one));
      map = TopMap(token.top());
    }
    flat["tokens"].push_back(one["token"]);
    flat["token_logprobs"].push_back(one["logprob"]);
    flat["top_logprobs"].push_back(std::move(map));
    flat["text_offset"].push_back(choice->text.size());
    one["top_logprobs"] = std::move(list);
    content.push_back(std::move(one));
  }
  const auto append = [](const json& from, json* to) {
    to->insert(to->end(), from.begin(), from.end());
  };
  append(content, &choice->content);
  append(flat["tokens"], &choice->tokens);
  append(flat["token_logprobs"], &choice->token_logprobs);
  append(flat["top_logprobs"], &choice->top_logprobs);
  append(flat["text_offset"], &choice->text_offset);
  return request_.is_chat ? json{{"content", content}, {"refusal", nullptr}} : flat;
}

void CompletionCall::TakeEnd(size_t prompt, const v1::Finished& finished) {
  mutex_.AssertHeld();
  generated_tokens_ += finished.generated_tokens();
  written_tokens_ += finished.cache_write_tokens();
  for (size_t s = 0; s < n_; ++s) {
    const size_t index = prompt * n_ + s;
    const bool is_known = static_cast<int>(s) < finished.samples_size();
    const v1::FinishReason reason =
        is_known ? finished.samples(static_cast<int>(s)).reason() : finished.reason();
    choices_[index].finish_reason = reason == v1::FINISH_REASON_LENGTH ? "length" : "stop";
    if (!streaming_) continue;
    json chunk = Chunk(index);
    chunk["choices"][0]["finish_reason"] = choices_[index].finish_reason;
    SendEvent(chunk);
  }
}

void CompletionCall::OnCallDone(const absl::Status& status, const grpc::ClientContext& context) {
  absl::MutexLock lock(&mutex_);
  if (!status.ok() && failed_.ok()) {
    failed_ = status;
    const auto& trailing = context.GetServerTrailingMetadata();
    const auto hint = trailing.find(kRetryAfterMsKey);
    if (hint != trailing.end()) {
      const std::string text(hint->second.data(), hint->second.size());
      if (!absl::SimpleAtoi(text, &retry_after_ms_)) retry_after_ms_ = 0;
    }
    // One that failed fails the request: nobody waits for the others.
    for (const auto& call : generations_) call->context.TryCancel();
    for (const auto& call : warmings_) call->context.TryCancel();
  }
  if (--open_ == 0) End();
}

HttpHeaders CompletionCall::Headers(const char* type) const {
  return {{"Content-Type", type},
          {"Cache-Control", "no-store"},
          {"X-Content-Type-Options", "nosniff"},
          {"X-Request-Id", terms_.request_id}};
}

json CompletionCall::Envelope(const char* chat, const char* completion) const {
  json made = {{"id", terms_.id},
               {"object", request_.is_chat ? chat : completion},
               {"created", created_},
               {"model", terms_.model}};
  if (!request_.cache_key.empty()) made["prompt_cache_key"] = request_.cache_key;
  if (seed_.has_value()) made["seed"] = *seed_;
  return made;
}

json CompletionCall::Chunk(size_t choice) const {
  json chunk = Envelope("chat.completion.chunk", "text_completion");
  json out = {{"index", choice}, {"logprobs", nullptr}, {"finish_reason", nullptr}};
  if (request_.is_chat) {
    out["delta"] = json::object();
  } else {
    out["text"] = "";
  }
  chunk["choices"] = json::array({std::move(out)});
  if (request_.include_usage) chunk["usage"] = nullptr;
  return chunk;
}

json CompletionCall::Usage() const {
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
    json chunk = Chunk(i);
    if (request_.is_chat) {
      chunk["choices"][0]["delta"] = {{"role", "assistant"}, {"content", ""}};
    } else if (request_.echo) {
      chunk["choices"][0]["text"] = choices_[i].text;
    } else {
      continue;
    }
    SendEvent(chunk);
  }
}

void CompletionCall::SendEvent(const json& event) {
  mutex_.AssertHeld();
  answer_->Write(absl::StrCat("data: ", JsonText(event), "\n\n"));
}

void CompletionCall::End() {
  mutex_.AssertHeld();
  if (!failed_.ok() && !streaming_) {
    return SendError(failed_, retry_after_ms_, Headers("application/json"), answer_.get());
  }
  if (streaming_) {
    if (!failed_.ok()) {
      const int status = HttpStatusOf(failed_.code());
      answer_->Write(absl::StrCat("data: ", HttpErrorBody(status, failed_.message()), "\n\n"));
    } else if (request_.include_usage) {
      json chunk = Chunk(0);
      chunk["choices"] = json::array();
      chunk["usage"] = Usage();
      SendEvent(chunk);
    }
    answer_->Write("data: [DONE]\n\n");
    return answer_->End();
  }
  json made = Envelope("chat.completion", "text_completion");
  json& choices = made["choices"] = json::array();
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Choice& choice = choices_[i];
    json out = {{"index", i}, {"finish_reason", "stop"}, {"logprobs", nullptr}};
    if (choice.finish_reason != nullptr) out["finish_reason"] = choice.finish_reason;
    if (request_.is_chat) {
      out["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
      if (request_.logprobs) {
        out["logprobs"] = {{"content", choice.content}, {"refusal", nullptr}};
      }
    } else {
      out["text"] = choice.text;
      if (request_.logprobs) {
        out["logprobs"] = {{"tokens", choice.tokens},
                           {"token_logprobs", choice.token_logprobs},
                           {"top_logprobs", choice.top_logprobs},
                           {"text_offset", choice.text_offset}};
      }
    }
    choices.push_back(std::move(out));
  }
  made["usage"] = Usage();
  answer_->Send(200, Headers("application/json"), JsonText(made));
}

}  // namespace

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
