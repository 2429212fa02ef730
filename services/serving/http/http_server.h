// HttpServer: answers HTTP/1.1 requests, with or without TLS.
//
// One thread reads and writes all connections. It also runs the handler of a request without a
// body. The handler of a request with a body runs on a pool, because reading a body takes time: one
// lane for bodies up to HttpLimits::small_body_bytes, one for larger bodies; in each lane the
// callers' addresses take turns.
// A connection is read while its answer is in progress, so that a caller who hangs up is noticed at
// once. Later requests of a connection wait in its buffer.
// Thread safety: check_head and OnGone's functions run on the server's thread and must not block
// it; the handler runs on that thread or on the pool, for several requests at the same time; an
// HttpAnswer may be used from any thread. An exception of a handler is logged and answered with
// 500. Ownership: the handler, and what it uses, must outlive the server. An answer may outlive
// both. Invariants: (1) each complete request is handled once; (2) a connection that makes no
// progress within the limits is closed, and its memory is freed; (3) at most
// HttpLimits::connections are open, and `extra_connections` more that only get /health answered (a
// drain's new ones, too); (4) what connections, handlers and unsent answers hold is counted and at
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
  // The request line and the headers; also a chunk's header, and the trailers.
  size_t header_bytes = size_t{16} << 10;
  size_t header_fields = 128;
  // 0: no pool is made, since no request has a body.
  size_t body_bytes = size_t{3} << 20;
  size_t small_body_bytes = size_t{64} << 10;
  absl::Duration header_time = absl::Seconds(10);   // a TLS handshake included
  absl::Duration request_time = absl::Seconds(30);  // of the body
  absl::Duration idle_time = absl::Seconds(60);     // between two requests
  // After a connection's last answer, arriving bytes are dropped until none came for this long, at
  // most for `request_time`: closing a socket over unread bytes would discard the answer.
  absl::Duration linger_time = absl::Seconds(2);
  // If bytes of an answer are queued and the caller takes less than `slow_bytes` of them within
  // `slow_time`, its connection is closed.
  uint64_t slow_bytes = uint64_t{1} << 20;
  absl::Duration slow_time = absl::Seconds(60);
  // A full server first closes connections that have taken no byte of their answer for this long.
  absl::Duration stall_time = absl::Seconds(1);
  // After this time without output, a stream's `when_silent` is sent, and a caller that has closed
  // its sending half is probed.
  absl::Duration silence = absl::Milliseconds(500);
};

// A refusal, sent when the headers of a request are complete.
struct HttpRefusal {
  int status = 0;
  HttpHeaders headers;
  std::string body;
};

struct HttpVerdict {
  // Sent at once. If a body follows the headers, it is not read, and the connection is closed.
  std::optional<HttpRefusal> refusal;
  // The caller is authenticated: its connection no longer counts for its address.
  bool is_authenticated = false;
};

class HttpServer {
 public:
  using Handler = std::function<void(HttpRequest request, std::shared_ptr<HttpAnswer> answer)>;
  struct Options {
    std::string listen;  // HOST:PORT; port 0 lets the system choose
    HttpLimits limits;
    uint64_t budget_bytes = uint64_t{128} << 20;
    // Called for each connection; a new pointer means a new certificate. Null: no TLS.
    std::function<std::shared_ptr<const TlsTexts>()> tls;
    // Called when the headers of a request are complete, before any of its body is read; the
    // request's body is empty. Must not throw. Null: all requests pass.
    std::function<HttpVerdict(const HttpRequest& head)> check_head;
    // Called when the headers are complete, before check_head, also if they are refused. Returns
    // headers for each answer to the request, also for the server's own refusals. They are not
    // counted in the budget. Null: none.
    std::function<HttpHeaders(const HttpRequest& head)> answer_headers;
    // Additional names that a request's Host may have (HostRule), and their flag, for errors.
    std::vector<std::string> hosts;
    std::string hosts_flag = "--http-hosts";
    // Connections from these addresses are never closed to make room, as they carry many callers.
    std::vector<Cidr> trusted_proxies;
  };

  // Serves when it returns. kUnavailable names the address.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const Options& options, Handler handler);
  // Ends answers in progress after a short wait: their callers are gone afterwards.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  const std::string& address() const { return address_; }  // HOST:PORT
  // Closes each connection once its answer has ended. New connections get /health answered, and 503
  // otherwise.
  void Drain();
  // The budget's bytes in use: partially received requests, handlers, unsent answers.
  uint64_t held_bytes() const;

 private:
  class Rep;
  HttpServer(std::unique_ptr<Rep> rep, std::string address);
  const std::unique_ptr<Rep> rep_;
  const std::string address_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_HTTP_HTTP_SERVER_H_
