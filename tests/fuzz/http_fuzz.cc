// HTTP connections and JSON bodies of requests, as strangers send them.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "services/openai/openai_request.h"
#include "services/serving/http/http_server.h"
#include "tests/fuzz/fuzz_input.h"

namespace hearth {
namespace {

using nlohmann::json;

constexpr int kAnswerS = 10;  // a server that takes longer hangs
constexpr size_t kMaxMessageBytes = 2048;

// An error is short, and text that JSON can hold.
std::string CheckedMessage(const absl::Status& status) {
  const std::string message(status.message());
  Require(!message.empty() && message.size() <= kMaxMessageBytes, "a long error, or an empty one");
  const json body = json::parse(HttpErrorBody(400, message));
  Require(body["error"]["message"] == message, "an error that is no UTF-8");
  return message;
}

// Reads one body as each door that takes it does. Returns the error; OK: it is a request.
absl::Status ReadBody(bool is_chat, const std::string& body) {
  const absl::StatusOr<json> parsed = ParseBody(body);
  if (!parsed.ok()) return parsed.status();
  const absl::StatusOr<OpenAiRequest> request =
      is_chat ? ParseChat(*parsed) : ParseCompletion(*parsed);
  if (!request.ok()) return request.status();
  Require(!request->generations.empty(), "a request without a prompt");
  return absl::OkStatus();
}

void TryBody(uint8_t which, const std::string& body) {
  const absl::Status status = ReadBody((which & 2) != 0, body);
  if (!status.ok()) CheckedMessage(status);
}

// What the door does with a request, but for the model.
void Handle(const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
  const HttpHeaders headers = {{"Content-Type", "application/json"}};
  if (request.method != "POST") return answer->Send(200, headers, "{}\r\n");
  const absl::Status status = ReadBody(request.path == "/v1/chat/completions", request.body);
  if (!status.ok()) {
    return answer->Send(400, headers, HttpErrorBody(400, CheckedMessage(status)) + "\r\n");
  }
  answer->Begin(200, {{"Content-Type", "text/event-stream"}}, ": waiting\n\n");
  answer->Write("data: {}\n\n");
  answer->Write("data: [DONE]\n\n");
  answer->End();
}

// Small limits, so that inputs reach them.
HttpServer* Server() {
  static const auto& server = *new std::unique_ptr<HttpServer>([] {
    HttpServer::Options options;
    options.listen = "127.0.0.1:0";
    options.limits.header_bytes = 1 << 10;
    options.limits.body_bytes = 4 << 10;
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
  Require(fd >= 0 && connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0,
          "the server takes no connection");
  const timeval wait = {kAnswerS, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
  return fd;
}

// Sends the bytes and then no more; returns the whole answer.
std::string Exchange(absl::string_view bytes) {
  const int fd = Connect();
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) break;  // the server has closed the connection
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  shutdown(fd, SHUT_WR);
  std::string answer;
  char part[16384];
  ssize_t count = 0;
  while ((count = recv(fd, part, sizeof(part), 0)) > 0) {
    answer.append(part, static_cast<size_t>(count));
  }
  Require(count == 0 || errno == ECONNRESET, "the server neither answered nor closed");
  // A reset: thousands of connections a second would use up the ports.
  const linger reset = {1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
  close(fd);
  return answer;
}

// All that a server may answer; 100 comes before another answer. Bodies here have line breaks at
// their ends only, so that an answer's first line follows one.
void TryConnection(absl::string_view bytes) {
  static const auto& statuses =
      *new std::set<int>{100, 200, 204, 400, 401, 403, 404, 405, 408, 413, 415, 429, 431, 503};
  const std::string answer = Exchange(bytes);
  constexpr absl::string_view kBegin = "HTTP/1.1 ";
  Require(answer.empty() || absl::string_view(answer).substr(0, kBegin.size()) == kBegin,
          "an answer that does not begin with a status");
  for (size_t at = 0; at < answer.size(); at = answer.find("\r\nHTTP/1.1 ", at)) {
    if (at == answer.npos) return;
    at += at == 0 ? kBegin.size() : kBegin.size() + 2;
    int status = 0;
    Require(absl::SimpleAtoi(answer.substr(at, 3), &status) && statuses.count(status) > 0,
            "a status that no caller may get");
  }
}

}  // namespace
}  // namespace hearth

// The first byte says whether the rest is a connection's bytes, or the JSON of a completion or of a
// chat.
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
