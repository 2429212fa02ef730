// HttpServer: answers HTTP/1.1 requests on one thread, plain or by TLS.
//
// A connection is read from while its answer is under way, so that a caller who hangs up is seen at
// once. Requests that follow one another wait in the connection.
// Thread safety: handlers and OnGone's functions run on the server's thread and must not block it;
// an HttpAnswer may be used from any thread.
// Ownership: the handler, and what it uses, must outlive the server. An answer may outlive both.
// Invariants: (1) each request that came whole is handled once; (2) a connection that does not come
// forward within the limits is closed, and what it held is freed; (3) at most
// HttpLimits::connections are open: one more takes the place of the one without an answer under way
// whose time ends first, or is closed.
#ifndef HEARTH_SERVICES_SERVING_HTTP_HTTP_SERVER_H_
#define HEARTH_SERVICES_SERVING_HTTP_HTTP_SERVER_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "services/rpc/tls_files.h"

namespace hearth {

struct HttpLimits {
  size_t connections = 1024;
  size_t header_bytes = size_t{16} << 10;
  size_t body_bytes = size_t{3} << 20;
  // Of a streamed answer; a caller who lets more wait is gone.
  size_t unsent_bytes = size_t{256} << 10;
  absl::Duration header_time = absl::Seconds(10);   // a TLS handshake included
  absl::Duration request_time = absl::Seconds(30);  // of the body
  absl::Duration idle_time = absl::Seconds(60);     // between two requests
  absl::Duration write_time = absl::Seconds(30);    // without a byte taken
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method, path, query, body;
  HttpHeaders headers;  // names in lower case
  std::string peer;     // its address

  // Null: it is not there.
  const std::string* Header(absl::string_view name) const;
};

// The answer to one request: whole, or a stream. Destroyed before its end it is a 500, or a stream
// that breaks off.
class HttpAnswer {
 public:
  struct State;  // shared with the connection
  explicit HttpAnswer(std::shared_ptr<State> state) : state_(std::move(state)) {}
  ~HttpAnswer();
  HttpAnswer(const HttpAnswer&) = delete;
  HttpAnswer& operator=(const HttpAnswer&) = delete;

  // Length, date and what the connection needs are added to `headers`.
  void Send(int status, const HttpHeaders& headers, absl::string_view body);

  // Begins a stream. `when_silent`: sent where nothing else was for a second; empty: nothing.
  void Begin(int status, const HttpHeaders& headers, const std::string& when_silent = "");
  // False: the caller is gone, and nothing is sent any more.
  bool Write(absl::string_view data);
  void End();

  // Calls `gone` once, when the caller hangs up before the end, at once if it did.
  void OnGone(std::function<void()> gone);

 private:
  const std::shared_ptr<State> state_;
};

class HttpServer {
 public:
  using Handler = std::function<void(HttpRequest request, std::shared_ptr<HttpAnswer> answer)>;
  struct Options {
    std::string listen;  // HOST:PORT; port 0 lets the system choose
    HttpLimits limits;
    // Asked for each connection; another pointer is a new certificate. Null: no TLS.
    std::function<std::shared_ptr<const TlsTexts>()> tls;
  };

  // Serves when it returns. kUnavailable names the address.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const Options& options, Handler handler);
  // Callers of answers under way are gone.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  const std::string& address() const { return address_; }  // HOST:PORT
  // Takes no new connections, and closes each one once its answer has ended.
  void Drain();
  size_t open() const;  // connections

 private:
  class Rep;
  HttpServer(std::unique_ptr<Rep> rep, std::string address);
  const std::unique_ptr<Rep> rep_;
  const std::string address_;
};

// The body of an error, as OpenAI's API has it: {"error": {"message", "type", "param", "code"}}.
std::string HttpErrorBody(int status, absl::string_view message, absl::string_view param = "");
// "Not Found".
const char* HttpReason(int status);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_HTTP_HTTP_SERVER_H_
