// HttpServer: answers HTTP/1.1 requests, with or without TLS.
//
// One thread reads and writes all connections. It also runs the handler of a request without a
// body. Because reading a body takes time, the handler of a request with a body runs on a pool: one
// pool for bodies up to HttpLimits::small_body_bytes, one for larger bodies. In each pool the
// callers' addresses take turns.
// A connection is read while its answer is in progress, so that a hang-up of the caller is noticed
// at once. Later requests of a connection wait in its buffer.
// Thread safety: check_head and OnGone's functions run on the server's thread and must not block
// it. The handler runs on that thread or on a pool, for several requests at the same time. An
// HttpAnswer may be used from any thread. An exception of a handler is logged and answered with
// 500.
// Ownership: the handler, and what it uses, must outlive the server. An answer may outlive both.
// Invariants: (1) each complete request is handled once; (2) a connection that makes no progress
// within the limits is closed, and its memory is freed; (3) at most HttpLimits::connections are
// open, and `extra_connections` more that only get /health answered (also new connections during a
// drain); (4) the bytes that connections, handlers and unsent answers hold are counted, and are at
// most Options::budget_bytes (http_budget.h).
#ifndef HEARTH_SERVICES_SERVING_HTTP_HTTP_SERVER_H_
#define HEARTH_SERVICES_SERVING_HTTP_HTTP_SERVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "services/rpc/access_files.h"
#include "services/serving/http/http_answer.h"
#include "services/serving/http/http_names.h"

namespace hearth {

struct HttpLimits {
  size_t connections = 1024;
  size_t extra_connections = 16;
  // Maximum size in bytes of a request's first line and headers; also of a chunk's header, and of
  // the trailers.
  size_t header_bytes = size_t{16} << 10;
  size_t header_fields = 128;
  // Maximum size in bytes of a request's body. 0: requests have no body, and no pool is made.
  size_t body_bytes = size_t{3} << 20;
  size_t small_body_bytes = size_t{64} << 10;
  // time limit for a TLS handshake and a request's headers
  absl::Duration header_time = absl::Seconds(10);
  absl::Duration request_time = absl::Seconds(30);  // time limit for receiving a request's body
  absl::Duration idle_time = absl::Seconds(60);     // time limit from one request to the next
  // After the last answer of a connection, the server drops arriving bytes until none arrive for
  // this long, at most for `request_time`. If it closed the socket over unread bytes, the kernel
  // would discard the answer.
  absl::Duration linger_time = absl::Seconds(2);
  // If bytes of an answer are queued and the caller takes fewer than `slow_bytes` of them within
  // `slow_time`, its connection is closed.
  uint64_t slow_bytes = uint64_t{1} << 20;
  absl::Duration slow_time = absl::Seconds(60);
  // At its limit of connections, the server first closes those whose callers have taken no byte of
  // their answer for this long.
  absl::Duration stall_time = absl::Seconds(1);
  // If a stream has sent nothing for this long, its `when_silent` is sent. If an answer has sent
  // nothing for this long and the caller has closed its sending half, the server sends bytes to
  // find out whether the caller is still there.
  absl::Duration silence = absl::Milliseconds(500);
};

// An error answer, sent when the headers of a request are complete.
struct HttpRefusal {
  int status = 0;
  HttpHeaders headers;
  std::string body;
};

struct HttpVerdict {
  // If set, it is sent at once. A body that follows the headers is then not read, and the
  // connection is closed.
  std::optional<HttpRefusal> refusal;
  // True: the caller is authenticated, and its connection is not closed to make room for others.
  bool is_authenticated = false;
};

class HttpServer {
 public:
  using Handler = std::function<void(HttpRequest request, std::shared_ptr<HttpAnswer> answer)>;
  struct Options {
    std::string listen;  // HOST:PORT; port 0 lets the system choose
    HttpLimits limits;
    uint64_t budget_bytes = uint64_t{128} << 20;
    // Returns the certificate and key, for each connection. A new pointer means a new certificate.
    // Null: no TLS.
    std::function<std::shared_ptr<const TlsTexts>()> tls;
    // Decides about a request when its headers are complete, before any of its body is read: `head`
    // has an empty body. Must not throw. Null: all requests pass.
    std::function<HttpVerdict(const HttpRequest& head)> check_head;
    // Returns headers for each answer to a request, also for the server's own errors, and may add
    // headers to `head`. Called before check_head, also if the headers are refused; `head` is then
    // incomplete. The headers are not counted in the budget. Null: none.
    std::function<HttpHeaders(HttpRequest* head)> answer_headers;
    // Returns the form of the server's own errors on this path. Null: HttpErrorBody.
    std::function<HttpErrorForm(absl::string_view path)> error_form;
    // Host names that a request may name in addition to the server's own names (HostRule). Errors
    // name `hosts_flag` as the flag that sets them.
    std::vector<std::string> hosts;
    std::string hosts_flag = "--http-hosts";
    // Connections from these addresses carry many callers, and are never closed to make room.
    std::vector<Cidr> trusted_proxies;
  };

  // Starts the server; it accepts requests when Start returns. If listening fails, kUnavailable
  // names the address.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const Options& options, Handler handler);
  // Waits a short time for answers in progress, then closes all connections.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  const std::string& address() const { return address_; }  // HOST:PORT
  // Closes each connection when its answer has ended. From now on, new connections get /health
  // answered, and 503 for any other request.
  void Drain();
  // Returns the bytes that the budget counts now: partially received requests, handlers, unsent
  // answers.
  uint64_t held_bytes() const;

 private:
  class Rep;
  HttpServer(std::unique_ptr<Rep> rep, std::string address);
  const std::unique_ptr<Rep> rep_;
  const std::string address_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_HTTP_HTTP_SERVER_H_
