#include "services/openai/openai_server.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "proto/error_reason.h"
#include "proto/percent_escapes.h"
#include "services/openai/chat_format.h"
#include "services/openai/completion.h"
#include "services/openai/held_text.h"
#include "services/openai/http_error.h"
#include "services/openai/messages_format.h"
#include "services/openai/messages_request.h"
#include "services/openai/responses_format.h"
#include "services/openai/responses_request.h"
#include "services/rpc/call_metadata.h"
#include "services/rpc/trace_span.h"
#include "services/serving/json_reader.h"
#include "services/serving/logging.h"
#include "worker/text/jinja/model_template.h"
#include "worker/text/logit_rules.h"
#include "worker/text/sampler.h"

namespace hearth {

// the HTML of chat_page.html, a page which calls the server that sent it
extern const char kChatPage[];

// An API that generates answers.
struct HttpApi {
  const char* path;
  const char* id_prefix;  // beginning of the response's id
  absl::StatusOr<OpenAiRequest> (*parse)(JsonValue body, uint32_t context_tokens,
                                         const ParseTerms& terms);
  std::unique_ptr<ApiFormat> (*make_format)(const OpenAiRequest& request,
                                            const ResponseTerms& terms, const Tokenizer* tokenizer);
  std::string (*error_body)(const absl::Status& status);
};

namespace {

constexpr char kModels[] = "/v1/models", kEmbeddings[] = "/v1/embeddings";
constexpr char kMessages[] = "/v1/messages", kCountTokens[] = "/v1/messages/count_tokens";

template <typename Format>
std::unique_ptr<ApiFormat> Make(const OpenAiRequest& request, const ResponseTerms& terms,
                                const Tokenizer* tokenizer) {
  return std::make_unique<Format>(request, terms, tokenizer);
}

constexpr HttpApi kApis[] = {
    {"/v1/chat/completions", "chatcmpl-",
     [](JsonValue body, uint32_t, const ParseTerms& terms) { return ParseChat(body, terms); },
     Make<ChatFormat>, OpenAiErrorBody},
    {"/v1/completions", "cmpl-", ParseCompletion, Make<CompletionFormat>, OpenAiErrorBody},
    {"/v1/responses", "resp_",
     [](JsonValue body, uint32_t, const ParseTerms& terms) { return ParseResponses(body, terms); },
     Make<ResponsesFormat>, OpenAiErrorBody},
    {kMessages, "msg_",
     [](JsonValue body, uint32_t, const ParseTerms& terms) { return ParseMessages(body, terms); },
     Make<MessagesFormat>, MessagesErrorBody},
};

// Returns the API at this path; null if there is none.
const HttpApi* FindApi(absl::string_view path) {
  const auto* const end = std::end(kApis);
  const auto* const found =
      std::find_if(std::begin(kApis), end, [&](const HttpApi& api) { return path == api.path; });
  return found == end ? nullptr : found;
}

// Returns whether this path belongs to Anthropic's API.
bool IsMessages(absl::string_view path) {
  return path == kMessages || absl::StartsWith(path, absl::StrCat(kMessages, "/"));
}

// Returns the caller's access token; "" if the request has none. kInvalidArgument: two headers have
// different tokens. kUnauthenticated: the token has bytes that gRPC metadata cannot carry.
absl::StatusOr<std::string> TokenOf(const HttpRequest& request) {
  const std::string* key = request.Header("x-api-key");
  const std::string* authorization = request.Header("authorization");
  const std::string bearer = authorization == nullptr ? "" : BearerToken(*authorization);
  if (key != nullptr && authorization != nullptr && *key != bearer) {
    return absl::InvalidArgumentError(
        "X-Api-Key and Authorization must carry the same token; send one of them");
  }
  const std::string token = key == nullptr ? bearer : *key;
  if (token.empty() || IsTokenText(token)) return token;
  return absl::UnauthenticatedError(
      "the token must be visible ASCII characters without spaces; it has another character");
}

absl::Status NoModel(absl::string_view name) {
  return WithReason(absl::NotFoundError(absl::StrCat("model: there is no ", Quoted(name),
                                                     " here; GET /v1/models lists the models")),
                    kModelNotFound);
}

// Returns whether clients append this path to their base URL.
bool IsOfClients(absl::string_view path) {
  return FindApi(path) != nullptr || path == kEmbeddings || absl::StartsWith(path, kModels);
}

// Returns whether a request needs no access token, because its response reveals nothing about
// callers or the model.
bool IsOpen(const HttpRequest& request) {
  const bool gets = request.method == "GET" || request.method == "HEAD";
  return request.method == "OPTIONS" ||
         (gets && (request.path == "/" || request.path == "/health" || request.path == "/version"));
}

// Bans the tokens of `bad_words`. As in vLLM, each word is banned with and without a leading space.
// It is an error if a word is not a single token.
absl::Status AddBadWords(const Tokenizer* tokenizer, OpenAiRequest* request) {
  if (request->bad_words.empty()) return absl::OkStatus();
  if (tokenizer == nullptr) {
    return absl::FailedPreconditionError("bad_words: this server has no tokenizer");
  }
  auto* const ids = request->common.mutable_sampling()->mutable_bad_token_ids();
  for (const std::string& word : request->bad_words) {
    const absl::string_view stripped = absl::StripLeadingAsciiWhitespace(word);
    const std::string bare(stripped.empty() ? word : stripped);
    const std::vector<int32_t> alone = tokenizer->Encode(bare);
    if (alone.size() != 1) {
      return absl::InvalidArgumentError(absl::StrCat("bad_words: must be words of one token; ",
                                                     Quoted(word), " has ", alone.size(),
                                                     " tokens"));
    }
    ids->Add(static_cast<uint32_t>(alone[0]));
    if (stripped.empty()) continue;  // the word consists of white space
    const std::vector<int32_t> spaced = tokenizer->Encode(absl::StrCat(" ", bare));
    if (spaced.size() == 1 && spaced[0] != alone[0]) ids->Add(static_cast<uint32_t>(spaced[0]));
  }
  if (static_cast<size_t>(ids->size()) <= kMaxListedTokens) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("bad_words: must be at most ", kMaxListedTokens,
                                                 " tokens together with bad_token_ids; got ",
                                                 ids->size()));
}

// Returns the ids that AnswerHeaders and the caller have given to the request.
CallIds CallIdsOf(const HttpRequest& request) {
  const std::string* traceparent = request.Header(kTraceparentKey);
  return {*request.Header("x-request-id"), traceparent == nullptr ? "" : *traceparent};
}

// Returns the form of the errors of the API that this path belongs to.
HttpErrorForm ErrorFormOf(absl::string_view path) {
  if (IsMessages(path)) return MessagesErrorBody;
  return HttpErrorBody;
}

HttpRefusal RefusalOf(const HttpRequest& request, int status, absl::string_view why) {
  return {status, {{"Content-Type", "application/json"}}, ErrorFormOf(request.path)(status, why)};
}

void SendJson(const Json& value, HttpAnswer* answer) {
  answer->Send(200, {{"Content-Type", "application/json"}}, JsonLine(value));
}

// Answers a CORS preflight request. CheckHead has already refused origins that are not listed.
void AnswerPreflight(const HttpRequest& request, HttpAnswer* answer) {
  HttpHeaders headers = {{"Access-Control-Allow-Methods", "GET, HEAD, POST"},
                         {"Access-Control-Max-Age", "7200"}};
  const std::string* asked = request.Header("access-control-request-headers");
  if (asked != nullptr) headers.emplace_back("Access-Control-Allow-Headers", *asked);
  answer->Send(204, headers, "");
}

absl::Status Draining() {
  return absl::UnavailableError("the server is draining; call another worker");
}

// Sends the response of /tokenize.
void SendTokens(const Prompt& prompt, uint32_t context_tokens, const HttpHeaders& headers,
                HttpAnswer* answer) {
  const std::vector<int32_t>& ids = prompt.token_ids;
  HeldText out(answer);
  out.Append(absl::StrCat("{\"count\":", ids.size(), ",\"max_model_len\":", context_tokens,
                          ",\"tokens\":["));
  for (size_t i = 0; i < ids.size(); ++i) out.Append(absl::StrCat(i == 0 ? "" : ",", ids[i]));
  out.Append("]}");
  if (!out.fits()) return SendError(NoAnswerMemory(), headers, answer);
  out.Send(headers);
}

}  // namespace

OpenAiServer::OpenAiServer(OpenAiOptions options)
    : options_(std::move(options)),
      identities_(options_.admission->asks_identities()),
      tokenizer_(options_.generator->options().tokenizer),
      context_tokens_(
          static_cast<uint32_t>(options_.generator->engine()->config().max_position_embeddings)),
      start_(absl::ToUnixSeconds(absl::Now())) {}

absl::StatusOr<std::unique_ptr<OpenAiServer>> OpenAiServer::Open(OpenAiOptions options) {
  std::unique_ptr<OpenAiServer> openai(new OpenAiServer(std::move(options)));
  HttpServer::Options http = openai->options_.http;
  http.check_head = [raw = openai.get()](const HttpRequest& head) { return raw->CheckHead(head); };
  http.answer_headers = [raw = openai.get()](HttpRequest* head) {
    return raw->AnswerHeaders(head);
  };
  http.error_form = ErrorFormOf;
  auto server = HttpServer::Start(
      http,
      [raw = openai.get()](const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
        raw->Handle(request, answer);
      });
  if (!server.ok()) {
    return absl::Status(server.status().code(), absl::StrCat("http-", server.status().message()));
  }
  openai->server_ = *std::move(server);
  return openai;
}

void OpenAiServer::Drain() {
  draining_ = true;
  server_->Drain();
}

bool OpenAiServer::IsListed(const std::string& origin) const {
  const auto has = [&](const std::string& one) {
    return std::find(options_.origins.begin(), options_.origins.end(), one) !=
           options_.origins.end();
  };
  return has(origin) || has("*");
}

HttpHeaders OpenAiServer::AnswerHeaders(HttpRequest* head) const {
  const std::string* sent = head->Header("x-request-id");
  const std::string id = RequestIdFrom(sent == nullptr ? "" : *sent);
  head->headers.insert(head->headers.begin(), {"x-request-id", id});
  HttpHeaders headers = {{"X-Request-Id", id}};
  if (IsMessages(head->path)) headers.emplace_back("Request-Id", id);
  if (options_.origins.empty()) return headers;
  headers.emplace_back("Vary", "Origin");
  const std::string* origin = head->Header("origin");
  if (origin == nullptr || !IsListed(*origin)) return headers;
  headers.emplace_back("Access-Control-Allow-Origin", IsListed("*") ? "*" : *origin);
  headers.emplace_back(
      "Access-Control-Expose-Headers",
      "request-id, retry-after, retry-after-ms, x-hearth-unknown-fields, x-request-id");
  return headers;
}

HttpVerdict OpenAiServer::CheckHead(const HttpRequest& head) const {
  HttpVerdict verdict;
  const auto refuse = [&](int status, absl::string_view why) {
    verdict.refusal = RefusalOf(head, status, why);
    if (status == 401) verdict.refusal->headers.emplace_back("WWW-Authenticate", "Bearer");
    return verdict;
  };
  const std::string* origin = head.Header("origin");
  const std::string* host = head.Header("host");
  const bool is_own =
      origin == nullptr || (host != nullptr && (*origin == absl::StrCat("http://", *host) ||
                                                *origin == absl::StrCat("https://", *host)));
  if (!is_own && !IsListed(*origin)) {
    return refuse(
        403, absl::StrCat("Origin: pages of ", Quoted(*origin),
                          " may not call this server; --http-origins lists the allowed sites"));
  }
  if (head.method == "POST") {
    const std::string* type = head.Header("content-type");
    if (type == nullptr || !absl::StartsWithIgnoreCase(*type, "application/json")) {
      return refuse(415, "Content-Type: must be application/json");
    }
  }
  if (identities_ == nullptr || IsOpen(head)) return verdict;
  const absl::StatusOr<std::string> token = TokenOf(head);
  const absl::Status known =
      token.ok() ? identities_->Identify(CredentialsOf(head)).status() : token.status();
  if (!known.ok()) return refuse(HttpStatusOf(known.code()), known.message());
  verdict.is_authenticated = true;
  return verdict;
}

Credentials OpenAiServer::CredentialsOf(const HttpRequest& request) const {
  Credentials credentials;
  // An empty or malformed token is refused, even if the caller also has a valid certificate.
  if (identities_ != nullptr &&
      (request.Header("authorization") != nullptr || request.Header("x-api-key") != nullptr)) {
    credentials.token = TokenOf(request).value_or("");
  }
  credentials.certificate_names = request.certificate_names;
  const std::string* const tenant = request.Header(kTenantHeader);
  if (tenant != nullptr) credentials.tenant = *tenant;
  return credentials;
}

void OpenAiServer::Handle(const HttpRequest& request, const Answer& answer) {
  const bool gets = request.method == "GET" || request.method == "HEAD";
  const bool posts = request.method == "POST";
  const std::string& path = request.path;
  const auto error = [&](int status, absl::string_view why) {
    HttpRefusal refusal = RefusalOf(request, status, why);
    answer->Send(status, refusal.headers, std::move(refusal.body));
  };
  if (request.method == "OPTIONS") return AnswerPreflight(request, answer.get());
  if (gets && path == "/") {
    return answer->Send(200, PageHeaders("text/html; charset=utf-8"), kChatPage);
  }
  if (gets && path == "/health") {
    const std::string failure = options_.failure == nullptr ? "" : options_.failure();
    if (!failure.empty()) return error(503, failure);
    if (draining_) return error(503, "the server is draining");
    return SendJson({{"status", "ok"}}, answer.get());
  }
  if (gets && path == "/version") return SendJson({{"version", options_.version}}, answer.get());
  if (draining_) return error(503, Draining().message());
  const HttpApi* const api = FindApi(path);
  if (posts && api != nullptr) return Generate(*api, request, answer);
  if (posts && (path == "/tokenize" || path == kCountTokens)) return Tokenize(request, answer);
  if (posts && path == "/detokenize") return Detokenize(request, answer);
  if (api != nullptr || path == kCountTokens || path == "/tokenize" || path == "/detokenize") {
    return error(405, absl::StrCat(path, " takes POST"));
  }
  if (path == kEmbeddings) {
    return error(404, "/v1/embeddings: Gemma 3 generates text; it has no embeddings");
  }
  if (gets && (path == kModels || absl::StartsWith(path, absl::StrCat(kModels, "/")))) {
    const std::string only = path == kModels ? "" : PercentDecoded(path.substr(sizeof(kModels)));
    const std::string models = Models(only);
    if (models.empty())
      return SendError(NoModel(only), {{"Content-Type", "application/json"}}, answer.get());
    return answer->Send(200, {{"Content-Type", "application/json"}}, models);
  }
  if (gets && path == "/tokenizer_info") return SendJson(TokenizerInfo(), answer.get());
  for (const HttpApi& one : kApis) {
    if (!absl::StartsWith(path, absl::StrCat(one.path, "/"))) continue;
    return error(404, absl::StrCat("there is no ", Quoted(path),
                                   ": the server is stateless and stores no answers; send the "
                                   "whole conversation to ",
                                   one.path));
  }
  const bool is_ours =
      IsOfClients(absl::StrCat("/v1", path)) || IsOfClients(absl::StripPrefix(path, "/v1"));
  // Anthropic's clients add /v1 to the base URL, OpenAI's clients do not.
  const bool is_messages =
      IsMessages(absl::StrCat("/v1", path)) || IsMessages(absl::StripPrefix(path, "/v1"));
  error(404, absl::StrCat("there is no ", Quoted(path),
                          is_messages ? "; the client's base URL must be http://HOST:PORT"
                          : is_ours   ? "; the client's base URL must be http://HOST:PORT/v1"
                                      : ""));
}

// Describes the tokenizer. lm-eval reads this if it uses the server's tokenizer.
Json OpenAiServer::TokenizerInfo() const {
  if (tokenizer_ == nullptr) return Json::object();
  return {{"tokenizer_class", "GemmaTokenizer"},
          {"model_max_length", context_tokens_},
          {"bos_token", "<bos>"},
          {"eos_token", "<eos>"},
          {"pad_token", "<pad>"}};
}

std::string OpenAiServer::Models(absl::string_view only) const {
  Json list = Json::array();
  std::vector<std::string> names = {options_.model};
  for (const AdapterInfo& adapter : options_.generator->engine()->adapters()) {
    names.push_back(adapter.name);
  }
  for (const std::string& name : names) {
    Json model = {
        {"id", name},           {"object", "model"},      {"created", start_},
        {"owned_by", "hearth"}, {"root", options_.model}, {"max_model_len", context_tokens_}};
    if (name == options_.model && !options_.model_note.empty()) {
      model["hearth_note"] = options_.model_note;
    }
    if (name == only) return JsonLine(model);
    list.push_back(model);
  }
  return only.empty() ? JsonLine({{"object", "list"}, {"data", list}}) : "";
}

absl::StatusOr<JsonDocument> OpenAiServer::ReadBody(const HttpRequest& request,
                                                    HttpHold* hold) const {
  absl::StatusOr<JsonDocument> body =
      ParseBody(request.body(), [&](uint64_t bytes) { return !draining_ && hold->Add(bytes); });
  if (draining_) return Draining();
  return body;
}

absl::StatusOr<OpenAiRequest> OpenAiServer::ReadRequest(const HttpRequest& request,
                                                        BodyParser parse,
                                                        const Answer& answer) const {
  HttpHold document(answer.get());
  const absl::StatusOr<JsonDocument> body = ReadBody(request, &document);
  if (!body.ok()) return body.status();
  ParseTerms terms;
  terms.hold = [&](uint64_t bytes) { return document.Add(bytes); };
  const ModelTemplate* const own = options_.generator->options().chat_template;
  if (own != nullptr && own->tools().reads_tools) terms.own_template = &own->tools();
  absl::StatusOr<OpenAiRequest> read = parse(body->root(), terms);
  if (!read.ok()) return read;
  if (absl::Status s = AddBadWords(tokenizer_, &*read); !s.ok()) return s;
  if (!answer->Hold(read->bytes())) return NoAnswerMemory();
  return read;
}

absl::StatusOr<std::string> OpenAiServer::AdapterOf(const std::string& model) const {
  const std::string& name = model.empty() ? options_.model : model;
  for (const AdapterInfo& adapter : options_.generator->engine()->adapters()) {
    if (adapter.name == name) return name;
  }
  if (name == options_.model) return std::string();
  return NoModel(name);
}

void OpenAiServer::ReportUnknown(const UnknownFields& unknown, HttpHeaders* headers) const {
  if (unknown.names().empty()) return;
  headers->emplace_back("X-Hearth-Unknown-Fields", unknown.Text());
  for (const std::string& name : unknown.names()) {
    {
      absl::MutexLock lock(&unknown_mutex_);
      if (unknown_.size() == kMaxLoggedFields || !unknown_.insert(name).second) continue;
    }
    Log(LogLevel::kWarning, "ignored an unknown request field", {{"field", name}});
  }
}

void OpenAiServer::Generate(const HttpApi& api, const HttpRequest& request, const Answer& answer) {
  CompletionTerms terms;
  terms.ids = CallIdsOf(request);
  const auto parse = [&](JsonValue body, const ParseTerms& terms) {
    return api.parse(body, context_tokens_, terms);
  };
  absl::StatusOr<OpenAiRequest> parsed = ReadRequest(request, parse, answer);
  if (parsed.ok()) ReportUnknown(parsed->unknown, &terms.headers);
  const absl::StatusOr<std::string> adapter =
      parsed.ok() ? AdapterOf(parsed->model) : parsed.status();
  if (!adapter.ok()) {
    HttpHeaders headers = terms.headers;
    headers.emplace_back("Content-Type", "application/json");
    return SendError(adapter.status(), headers, api.error_body(adapter.status()), answer.get());
  }
  terms.adapter = *adapter;
  // If the request has no seed, all its prompts share a random seed, which the response reports.
  v1::SamplingParams* sampling = parsed->common.mutable_sampling();
  if (!sampling->has_seed()) sampling->set_seed(NewSeed());
  const ResponseTerms response = {absl::StrCat(api.id_prefix, terms.ids.request_id),
                                  parsed->model.empty() ? options_.model : parsed->model,
                                  terms.ids.request_id, absl::ToUnixSeconds(absl::Now())};
  terms.format = api.make_format(*parsed, response, tokenizer_);
  terms.credentials = CredentialsOf(request);
  Complete(options_.generator, options_.admission, *std::move(parsed), std::move(terms), answer);
}

// The body is {"prompt": TEXT} or {"messages": [...]}, as in vLLM, or the body of count_tokens.
void OpenAiServer::Tokenize(const HttpRequest& request, const Answer& answer) {
  const bool is_count = request.path == kCountTokens;
  const auto parse = [&](JsonValue body, const ParseTerms& terms) {
    return is_count ? ParseCountTokens(body, terms) : ParseTokenize(body, context_tokens_, terms);
  };
  const CallIds ids = CallIdsOf(request);
  HttpHeaders headers = {{"Content-Type", "application/json"}};
  absl::StatusOr<OpenAiRequest> read = ReadRequest(request, parse, answer);
  absl::Status status = read.status();
  if (status.ok()) {
    ReportUnknown(read->unknown, &headers);
    status = AdapterOf(read->model).status();
  }
  const auto refuse = [is_count](const absl::Status& why, const HttpHeaders& with, HttpAnswer* to) {
    SendError(why, with, is_count ? MessagesErrorBody(why) : OpenAiErrorBody(why), to);
  };
  if (!status.ok()) return refuse(status, headers, answer.get());
  std::unique_ptr<Admission::Call> entered;
  const absl::StatusOr<Identity> caller =
      options_.admission->Enter("Tokenize", CredentialsOf(request), ids, &entered);
  status = caller.status();
  const std::shared_ptr<Admission::Call> call = std::move(entered);
  if (status.ok()) {
    const uint64_t bytes = read->prompts[0].ByteSizeLong();
    const auto is_gone = std::make_shared<std::atomic<bool>>(false);
    answer->OnGone([is_gone] { *is_gone = true; });
    auto job = [call, answer, headers, is_count, is_gone, refuse,
                prompt = std::move(read->prompts[0]), generator = options_.generator,
                most = context_tokens_] {
      try {
        const auto made = generator->MakePrompt(
            prompt, PromptPurpose::kGenerate, [is_gone] { return is_gone->load(); }, is_count);
        call->Finish(made.status()).IgnoreError();
        if (!made.ok()) return refuse(made.status(), headers, answer.get());
        if (!is_count) return SendTokens(*made, most, headers, answer.get());
        answer->Send(200, headers, absl::StrCat("{\"input_tokens\":", made->token_ids.size(), "}"));
      } catch (...) {  // an allocation failed
        answer->Fail();
      }
    };
    status = options_.generator->pool()->SubmitRequest(caller->tenant, bytes, std::move(job));
  }
  if (status.ok()) return;
  if (call != nullptr) call->Finish(status).IgnoreError();
  refuse(status, headers, answer.get());
}

void OpenAiServer::Detokenize(const HttpRequest& request, const Answer& answer) const {
  HttpHeaders headers = {{"Content-Type", "application/json"}};
  const auto refuse = [&](const absl::Status& status) { SendError(status, headers, answer.get()); };
  const Tokenizer* const tokenizer = tokenizer_;
  if (tokenizer == nullptr) {
    return refuse(absl::FailedPreconditionError("tokens: this server has no tokenizer"));
  }
  // counts memory until the function returns; HeldText counts the response
  HttpHold held(answer.get());
  const auto hold = [&](uint64_t bytes) { return held.Add(bytes); };
  const absl::StatusOr<JsonDocument> body = ReadBody(request, &held);
  if (!body.ok()) return refuse(body.status());
  UnknownFields unknown;
  absl::Status status = CheckOpenAiFields(body->root(), kInDetokenize, &unknown);
  if (!status.ok()) return refuse(status);
  ReportUnknown(unknown, &headers);
  std::string model;
  JsonFields fields(body->root());
  fields.Text("model", &model);
  status = fields.status();
  if (status.ok()) status = AdapterOf(model).status();
  if (!status.ok()) return refuse(status);
  const std::optional<JsonValue> tokens = body->root().Find("tokens");
  if (!tokens.has_value()) return refuse(absl::InvalidArgumentError("tokens: is missing"));
  if (!hold(tokens->size() * 2 * sizeof(uint32_t))) return refuse(NoAnswerMemory());
  const absl::StatusOr<std::vector<uint32_t>> read =
      tokens->Ids(static_cast<uint64_t>(tokenizer->size()));
  if (!read.ok()) return refuse(read.status());
  const std::vector<int32_t> ids(read->begin(), read->end());
  uint64_t bytes = 0;
  // U+FFFD, which replaces a byte that is not UTF-8, has 3 bytes.
  for (const int32_t id : ids) {
    const uint64_t piece = tokenizer->TokenBytes(id).size();
    bytes += piece == 1 ? 3 : piece;
  }
  if (!hold(bytes)) return refuse(NoAnswerMemory());
  HeldText out(answer.get());
  out.Append("{\"prompt\":");
  out.AppendString(tokenizer->Decode(ids, /*skip_special=*/false));
  out.Append("}");
  if (!out.fits()) return refuse(NoAnswerMemory());
  out.Send(headers);
}

}  // namespace hearth
