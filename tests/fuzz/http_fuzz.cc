// Fuzz target: HTTP connections and JSON request bodies of untrusted callers.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <functional>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "services/openai/openai_request.h"
#include "services/serving/http/http_server.h"
#include "services/serving/json_reader.h"
#include "tests/fuzz/fuzz_input.h"

namespace hearth {
namespace {

using OtherJson = nlohmann::ordered_json;

constexpr int kAnswerS = 60;  // seconds; if the server needs more time for an answer, it hangs
constexpr size_t kMaxMessageBytes = 2048;
constexpr uint32_t kContextTokens = 64;

// Returns the error message. Checks first that it is short and can be put into JSON.
std::string CheckedMessage(const absl::Status& status) {
  const std::string message(status.message());
  Require(!message.empty() && message.size() <= kMaxMessageBytes, "a long error, or an empty one");
  const OtherJson body = OtherJson::parse(HttpErrorBody(400, message));
  Require(body["error"]["message"] == message, "an error that is no UTF-8");
  return message;
}

// Returns whether `value` equals the value that another JSON parser (nlohmann) reads from the same
// text.
bool IsSame(JsonValue value, const OtherJson& other) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (other.is_null()) return value.is_null();
  if (other.is_boolean()) return value.IsBool(other.get<bool>());
  if (other.is_string()) return value.Is(other.get_ref<const std::string&>());
  if (other.is_number()) {
    const absl::StatusOr<double> number = value.Number(-kInfinity, kInfinity);
    return number.ok() && *number == other.get<double>();
  }
  if (value.size() != other.size() || value.is_object() != other.is_object()) return false;
  auto one = other.begin();
  for (const JsonValue element : value.elements()) {
    if (!IsSame(element, *one++)) return false;
  }
  for (const JsonValue field : value.fields()) {
    if (field.name() != one.key() || !IsSame(field, *one++)) return false;
  }
  return true;
}

// Parses a text with Hearth's JSON parser and with nlohmann's. The results must be equal, unless
// the text exceeds a limit of Hearth's parser.
void CompareParsers(absl::string_view text) {
  uint64_t held = 0;
  JsonLimits limits;
  limits.depth = 16;
  limits.keys = 32;
  limits.hold = [&held](uint64_t bytes) {
    held += bytes;
    return true;
  };
  const absl::StatusOr<JsonDocument> document = JsonDocument::Parse(text, "the text", limits);
  const uint64_t most = 10 * text.size() + 4096;
  Require(held <= most, "more memory than the text can need");
  const OtherJson other = OtherJson::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.ok()) {
    const std::string message = CheckedMessage(document.status());
    Require(other.is_discarded() || absl::StrContains(message, "deep") ||
                absl::StrContains(message, "keys") || absl::StrContains(message, "each key once"),
            "JSON that was refused");
    return;
  }
  Require(document->bytes() <= most, "a document larger than its text can need");
  Require(!other.is_discarded() && IsSame(document->root(), other), "JSON that was read otherwise");
}

// Parses a request body as OpenAiServer does. `hold` counts its memory. Returns OK if the body is a
// valid request, else the error.
absl::Status ReadBody(bool is_chat, absl::string_view body,
                      const std::function<bool(uint64_t)>& hold) {
  const absl::StatusOr<JsonDocument> parsed = ParseBody(body, hold);
  if (!parsed.ok()) return parsed.status();
  const absl::StatusOr<OpenAiRequest> request =
      is_chat ? ParseChat(parsed->root()) : ParseCompletion(parsed->root(), kContextTokens);
  if (!request.ok()) return request.status();
  Require(!request->prompts.empty() && request->prompts.size() <= kMaxPrompts, "its prompts");
  Require(request->bytes() <= 64 * body.size() + 8192, "a request much larger than its body");
  if (!hold(request->bytes())) return absl::UnavailableError("no memory");
  return absl::OkStatus();
}

// Parses any body with the parsers of /tokenize, of /detokenize and of a time to live.
void TryOthers(JsonValue body) {
  const absl::StatusOr<OpenAiRequest> tokenize = ParseTokenize(body, kContextTokens);
  if (!tokenize.ok()) CheckedMessage(tokenize.status());
  UnknownFields unknown;
  const absl::Status detokenize = CheckOpenAiFields(body, kInDetokenize, &unknown);
  if (!detokenize.ok()) CheckedMessage(detokenize);
  for (const char c : unknown.Text()) Require(c >= ' ' && c <= '~', "a header with another byte");
  for (const JsonValue field : body.fields()) {
    for (const absl::Status& status :
         {field.Ids(kContextTokens).status(), ParseCacheTtl(field).status()}) {
      if (!status.ok()) CheckedMessage(status);
    }
  }
}

void TryBody(uint8_t which, absl::string_view body) {
  CompareParsers(body);
  const absl::Status status = ReadBody((which & 2) != 0, body, [](uint64_t) { return true; });
  if (!status.ok()) CheckedMessage(status);
  if (const absl::StatusOr<JsonDocument> parsed = ParseBody(body); parsed.ok()) {
    TryOthers(parsed->root());
  }
}

HttpVerdict CheckHead(const HttpRequest& head) {
  HttpVerdict verdict;
  if (head.Header("authorization") != nullptr) {
    verdict.refusal = HttpRefusal{401, {{"WWW-Authenticate", "Bearer"}}, "{}\r\n"};
  }
  return verdict;
}

// Handles an HTTP request as OpenAiServer does, but without a model.
void Handle(const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
  const HttpHeaders headers = {{"Content-Type", "application/json"}};
  if (request.method != "POST") return answer->Send(200, headers, "{}\r\n");
  const absl::Status status = ReadBody(request.path == "/v1/chat/completions", request.body(),
                                       [&](uint64_t bytes) { return answer->Hold(bytes); });
  if (!status.ok()) {
    const int code = absl::IsUnavailable(status) ? 503 : 400;
    return answer->Send(code, headers, HttpErrorBody(code, CheckedMessage(status)) + "\r\n");
  }
  answer->Begin(200, {{"Content-Type", "text/event-stream"}}, ": waiting\n\n");
  answer->Write("data: {}\n\n");
  answer->Write("data: [DONE]\n\n");
  answer->End();
}

// Starts a server with small limits, so that inputs reach the limits.
HttpServer* Server() {
  static const auto& server = *new std::unique_ptr<HttpServer>([] {
    HttpServer::Options options;
    options.listen = "127.0.0.1:0";
    options.limits.header_bytes = 1 << 10;
    options.limits.body_bytes = 4 << 10;
    options.limits.small_body_bytes = 256;
    options.budget_bytes = 16 << 10;
    options.check_head = CheckHead;
    return *HttpServer::Start(options, Handle);
  }());
  return server.get();
}

int Connect() {
  const std::string& address = Server()->address();
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int port = 0;
  Require(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port), "a port");
  to.sin_port = htons(static_cast<uint16_t>(port));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  Require(fd >= 0, "no socket");
  // The timer of libFuzzer interrupts connect(), but the connection may be established anyway.
  while (connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) != 0 && errno != EISCONN) {
    Require(errno == EINTR, "the server takes no connection");
  }
  const timeval wait = {kAnswerS, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
  return fd;
}

// Sends the bytes and closes the sending direction. Returns everything that the server answers.
std::string Exchange(absl::string_view bytes) {
  const int fd = Connect();
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) break;  // the server has closed the connection
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  shutdown(fd, SHUT_WR);
  std::string answer;
  char part[16384];
  ssize_t count = 0;
  // The timer of libFuzzer interrupts recv().
  while ((count = recv(fd, part, sizeof(part), 0)) > 0 || (count < 0 && errno == EINTR)) {
    if (count > 0) answer.append(part, static_cast<size_t>(count));
  }
  Require(count == 0 || errno == ECONNRESET, "the server neither answered nor closed");
  // Close the connection with a reset: otherwise thousands of connections per second would use up
  // the ports.
  const linger reset = {1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  close(fd);
  return answer;
}

// Checks that the status of each response is allowed; status 100 precedes another response. Bodies
// in this target end with a line break and contain no other, so the first line of each later
// response follows a line break.
void TryConnection(absl::string_view bytes) {
  static const auto& statuses =
      *new std::set<int>{100, 200, 204, 400, 401, 403, 404, 405, 408, 413, 415, 429, 431, 503};
  const std::string answer = Exchange(bytes);
  constexpr absl::string_view kBegin = "HTTP/1.1 ";
  Require(answer.empty() || absl::string_view(answer).substr(0, kBegin.size()) == kBegin,
          "an answer that does not begin with a status");
  for (size_t at = 0; at < answer.size(); at = answer.find("\r\nHTTP/1.1 ", at)) {
    if (at == answer.npos) break;
    at += at == 0 ? kBegin.size() : kBegin.size() + 2;
    int status = 0;
    Require(absl::SimpleAtoi(answer.substr(at, 3), &status) && statuses.count(status) > 0,
            "a status that no caller may get");
  }
  // Both ends have closed the connection, but a thread of the server may still be working on it.
  const absl::Time end = absl::Now() + absl::Seconds(kAnswerS);
  while (Server()->held_bytes() > 0) {
    Require(absl::Now() < end, "memory that is held after the end of a connection");
    std::this_thread::yield();
  }
}

}  // namespace
}  // namespace hearth

// The first byte selects what the other bytes are: the bytes of a connection, the JSON of a
// completion, or the JSON of a chat.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 0) {
    hearth::TryConnection(bytes);
  } else {
    hearth::TryBody(data[0], bytes);
  }
  return 0;
}
