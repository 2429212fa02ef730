#include "services/openai/openai_door.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "services/openai/chat_page.h"
#include "services/openai/completion.h"
#include "services/openai/openai_request.h"
#include "services/rpc/call_metadata.h"
#include "services/rpc/status_conversion.h"
#include "services/serving/http_pages.h"
#include "worker/text/sampler.h"

namespace hearth {
namespace {

using nlohmann::json;

constexpr char kChat[] = "/v1/chat/completions";
constexpr char kCompletions[] = "/v1/completions";
constexpr char kModels[] = "/v1/models";

// The caller's token; empty: none.
std::string TokenOf(const HttpRequest& request) {
  if (const std::string* key = request.Header("x-api-key"); key != nullptr) return *key;
  const std::string* authorization = request.Header("authorization");
  if (authorization == nullptr) return "";
  const absl::string_view text(*authorization);
  const size_t space = text.find(' ');
  if (space == text.npos || !absl::EqualsIgnoreCase(text.substr(0, space), "bearer")) return "";
  return std::string(absl::StripAsciiWhitespace(text.substr(space)));
}

// Of the caller's own request id, what our metadata takes.
std::string RequestIdOf(const HttpRequest& request) {
  const std::string* id = request.Header("x-request-id");
  const auto is_fine = [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  };
  if (id != nullptr && !id->empty() && id->size() <= kMaxRequestIdBytes &&
      std::all_of(id->begin(), id->end(), is_fine)) {
    return *id;
  }
  return NewRequestId();
}

void SendJson(const json& value, HttpHeaders headers, HttpAnswer* answer) {
  headers.emplace_back("Content-Type", "application/json");
  answer->Send(200, headers, JsonText(value));
}

// One seed for all prompts, so that the answer can name it.
void SetSeeds(OpenAiRequest* request) {
  const uint64_t seed = NewSeed();
  for (v1::GenerateRequest& made : request->generations) {
    if (!made.sampling().has_seed()) made.mutable_sampling()->set_seed(seed);
  }
}

// The tokens of one text, by the worker's own pool.
class TokenizeCall {
 public:
  TokenizeCall(std::shared_ptr<HttpAnswer> answer, uint32_t context_tokens)
      : answer_(std::move(answer)), context_tokens_(context_tokens) {}
  void Start(v1::Inference::StubInterface* stub) {
    stub->async()->Tokenize(&context, &request, &response, [this](const grpc::Status& status) {
      if (status.ok()) {
        auto* ids = response.mutable_token_ids();
        if (drops_bos && !ids->empty()) ids->erase(ids->begin());
        SendJson({{"count", response.token_ids_size()},
                  {"max_model_len", context_tokens_},
                  {"tokens", response.token_ids()}},
                 {}, answer_.get());
      } else {
        SendError(FromGrpcStatus(status), 0, {{"Content-Type", "application/json"}}, answer_.get());
      }
      delete this;
    });
  }

  grpc::ClientContext context;
  v1::TokenizeRequest request;
  v1::TokenizeResponse response;
  bool drops_bos = false;  // which the tokens begin with

 private:
  const std::shared_ptr<HttpAnswer> answer_;
  const uint32_t context_tokens_;
};

}  // namespace

OpenAiDoor::OpenAiDoor(OpenAiOptions options)
    : options_(std::move(options)),
      start_(absl::ToUnixSeconds(absl::Now())),
      stub_(v1::Inference::NewStub(options_.channel)) {}

absl::StatusOr<std::unique_ptr<OpenAiDoor>> OpenAiDoor::Open(OpenAiOptions options) {
  std::unique_ptr<OpenAiDoor> door(new OpenAiDoor(std::move(options)));
  auto server = HttpServer::Start(
      door->options_.http,
      [raw = door.get()](HttpRequest request, const std::shared_ptr<HttpAnswer>& answer) {
        raw->Handle(std::move(request), answer);
      });
  if (!server.ok()) {
    return absl::Status(server.status().code(), absl::StrCat("http-", server.status().message()));
  }
  door->server_ = *std::move(server);
  return door;
}

void OpenAiDoor::Drain() {
  draining_ = true;
  server_->Drain();
}

bool OpenAiDoor::MayCall(const HttpRequest& request, HttpHeaders* headers,
                         HttpAnswer* answer) const {
  const auto refuse = [&](int status, absl::string_view why) {
    headers->emplace_back("Content-Type", "application/json");
    answer->Send(status, *headers, HttpErrorBody(status, why));
    return false;
  };
  const std::string* origin = request.Header("origin");
  if (origin != nullptr) {
    const auto& origins = options_.origins;
    const std::string* named = request.Header("host");
    const bool is_own = named != nullptr && (*origin == absl::StrCat("http://", *named) ||
                                             *origin == absl::StrCat("https://", *named));
    const bool is_listed = std::find(origins.begin(), origins.end(), *origin) != origins.end() ||
                           std::find(origins.begin(), origins.end(), "*") != origins.end();
    if (!is_own && !is_listed) {
      return refuse(403, absl::StrCat("Origin: pages of ", *origin,
                                      " may not call this server; --http-origins lists those "
                                      "that may"));
    }
    headers->emplace_back("Access-Control-Allow-Origin", *origin);
    headers->emplace_back("Access-Control-Allow-Headers", "authorization, content-type, x-api-key");
    headers->emplace_back("Vary", "Origin");
  }
  if (request.method != "POST") return true;
  const std::string* type = request.Header("content-type");
  if (type != nullptr && absl::StartsWithIgnoreCase(*type, "application/json")) return true;
  return refuse(415, "Content-Type: must be application/json");
}

void OpenAiDoor::Handle(HttpRequest request, const Answer& answer) {
  HttpHeaders headers;
  if (!MayCall(request, &headers, answer.get())) return;
  const bool gets = request.method == "GET" || request.method == "HEAD";
  const bool posts = request.method == "POST";
  const std::string& path = request.path;
  const auto error = [&](int status, absl::string_view why) {
    headers.emplace_back("Content-Type", "application/json");
    answer->Send(status, headers, HttpErrorBody(status, why));
  };
  if (request.method == "OPTIONS") return answer->Send(204, headers, "");
  if (gets && path == "/") {
    const HttpHeaders page = PageHeaders("text/html; charset=utf-8");
    headers.insert(headers.end(), page.begin(), page.end());
    return answer->Send(200, headers, kChatPage);
  }
  if (gets && path == "/health") {
    if (draining_) return error(503, "the server is draining");
    return SendJson({{"status", "ok"}}, headers, answer.get());
  }
  if (gets && path == "/version") {
    return SendJson({{"version", options_.version}}, headers, answer.get());
  }
  if (draining_) return error(503, "the server is draining; call another worker");
  if (posts && path == kChat) return StartCompletion(request, true, answer);
  if (posts && path == kCompletions) return StartCompletion(request, false, answer);
  if (posts && path == "/tokenize") return Tokenize(request, answer);
  const bool is_known = path == kChat || path == kCompletions || path == "/tokenize";
  if (is_known) return error(405, absl::StrCat(path, " takes POST"));
  if (const absl::Status known = options_.check(TokenOf(request)); !known.ok()) {
    headers.emplace_back("Content-Type", "application/json");
    return SendError(known, 0, headers, answer.get());
  }
  if (gets && (path == kModels || absl::StartsWith(path, absl::StrCat(kModels, "/")))) {
    const std::string only = path == kModels ? "" : path.substr(sizeof(kModels));
    const std::string models = Models(only);
    if (models.empty()) return error(404, absl::StrCat("there is no model ", only));
    headers.emplace_back("Content-Type", "application/json");
    return answer->Send(200, headers, models);
  }
  if (gets && path == "/tokenizer_info") return SendJson(TokenizerInfo(), headers, answer.get());
  if (posts && path == "/detokenize") return Detokenize(request, answer.get());
  error(404, absl::StrCat("there is no ", path));
}

// What lm-eval asks of a server whose tokenizer it uses.
json OpenAiDoor::TokenizerInfo() const {
  if (options_.tokenizer == nullptr) return json::object();
  return {{"tokenizer_class", "GemmaTokenizer"},
          {"model_max_length", options_.context_tokens},
          {"bos_token", "<bos>"},
          {"eos_token", "<eos>"},
          {"pad_token", "<pad>"}};
}

std::string OpenAiDoor::Models(const std::string& only) const {
  json list = json::array();
  std::vector<std::string> names = options_.adapters;
  names.insert(names.begin(), options_.model);
  for (const std::string& name : names) {
    const json model = {{"id", name},
                        {"object", "model"},
                        {"created", start_},
                        {"owned_by", "hearth"},
                        {"root", options_.model},
                        {"max_model_len", options_.context_tokens}};
    if (name == only) return JsonText(model);
    list.push_back(model);
  }
  return only.empty() ? JsonText({{"object", "list"}, {"data", list}}) : "";
}

void OpenAiDoor::StartCompletion(const HttpRequest& request, bool is_chat, const Answer& answer) {
  CompletionTerms terms;
  terms.request_id = RequestIdOf(request);
  const HttpHeaders headers = {{"Content-Type", "application/json"},
                               {"X-Request-Id", terms.request_id}};
  const absl::StatusOr<json> body = ParseBody(request.body);
  if (!body.ok()) return SendError(body.status(), 0, headers, answer.get());
  absl::StatusOr<OpenAiRequest> parsed = is_chat ? ParseChat(*body) : ParseCompletion(*body);
  if (!parsed.ok()) return SendError(parsed.status(), 0, headers, answer.get());
  SetSeeds(&*parsed);
  terms.model = parsed->model.empty() ? options_.model : parsed->model;
  const auto& adapters = options_.adapters;
  if (std::find(adapters.begin(), adapters.end(), terms.model) != adapters.end()) {
    terms.adapter = terms.model;
  } else if (terms.model != options_.model) {
    return SendError(absl::NotFoundError(absl::StrCat("model: there is no ", terms.model,
                                                      " here; GET /v1/models lists those that "
                                                      "there are")),
                     0, headers, answer.get());
  }
  terms.id = absl::StrCat(is_chat ? "chatcmpl-" : "cmpl-", terms.request_id);
  terms.token = TokenOf(request);
  if (options_.tokenizer != nullptr) {
    terms.token_bytes = [tokenizer = options_.tokenizer](int32_t id) -> absl::string_view {
      if (id < 0 || id >= tokenizer->size()) return "";
      const std::string_view bytes = tokenizer->TokenBytes(id);
      return {bytes.data(), bytes.size()};
    };
  }
  Complete(stub_.get(), *std::move(parsed), std::move(terms), answer);
}

// {"prompt": TEXT} or {"messages": [...]}, as vLLM's.
void OpenAiDoor::Tokenize(const HttpRequest& request, const Answer& answer) {
  const HttpHeaders headers = {{"Content-Type", "application/json"}};
  absl::StatusOr<json> body = ParseBody(request.body);
  if (!body.ok()) return SendError(body.status(), 0, headers, answer.get());
  const absl::StatusOr<OpenAiRequest> parsed =
      body->contains("messages") ? ParseChat(*body) : ParseCompletion(*body);
  absl::Status status = parsed.status();
  if (status.ok() && parsed->generations.size() != 1) {
    status = absl::InvalidArgumentError("prompt: one text is wanted");
  }
  if (!status.ok()) return SendError(status, 0, headers, answer.get());
  auto* call = new TokenizeCall(answer, options_.context_tokens);
  *call->request.mutable_prompt() = parsed->generations[0].prompt();
  const auto special = body->find("add_special_tokens");
  call->drops_bos = special != body->end() && *special == false &&
                    parsed->generations[0].prompt().has_text() &&
                    !absl::StartsWith(parsed->generations[0].prompt().text(), "<bos>");
  const std::string token = TokenOf(request);
  if (!token.empty()) call->context.AddMetadata("authorization", "Bearer " + token);
  call->Start(stub_.get());
}

void OpenAiDoor::Detokenize(const HttpRequest& request, HttpAnswer* answer) const {
  const HttpHeaders headers = {{"Content-Type", "application/json"}};
  const absl::StatusOr<json> body = ParseBody(request.body);
  if (!body.ok()) return SendError(body.status(), 0, headers, answer);
  if (options_.tokenizer == nullptr) {
    return SendError(absl::FailedPreconditionError("tokens: without a tokenizer they have no text"),
                     0, headers, answer);
  }
  std::vector<int32_t> ids;
  const auto tokens = body->find("tokens");
  bool are_ids = tokens != body->end() && tokens->is_array();
  for (size_t i = 0; are_ids && i < tokens->size(); ++i) {
    const json& id = (*tokens)[i];
    are_ids = id.is_number_unsigned() &&
              id.get<uint64_t>() < static_cast<uint64_t>(options_.tokenizer->size());
    if (are_ids) ids.push_back(id.get<int32_t>());
  }
  if (!are_ids) {
    return SendError(absl::InvalidArgumentError("tokens: is no list of the model's token ids"), 0,
                     headers, answer);
  }
  SendJson({{"prompt", options_.tokenizer->Decode(ids, /*skip_special=*/false)}}, {}, answer);
}

}  // namespace hearth
