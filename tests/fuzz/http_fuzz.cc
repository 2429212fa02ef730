// Fuzz target: HTTP connections of untrusted callers.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <set>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/time/clock.h"
#include "tests/fuzz/request_body.h"

namespace hearth {
namespace {

constexpr int kAnswerS = 60;  // seconds; if the server needs more time for an answer, it hangs

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
  const Api api = request.path == "/v1/chat/completions" ? Api::kChats
                  : request.path == "/v1/responses"      ? Api::kResponses
                                                         : Api::kCompletions;
  const absl::Status status =
      ReadBody(api, request.body(), [&](uint64_t bytes) { return answer->Hold(bytes); });
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

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  hearth::TryConnection({reinterpret_cast<const char*>(data), size});
  return 0;
}
