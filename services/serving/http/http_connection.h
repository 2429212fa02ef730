// HttpConnection: one connection of an HttpServer: reads a request, has it answered, then reads the
// next.
//
//   kHeader -> kBody -> kAnswer -> kIdle -> kHeader ...      kLinger: the last answer is sent, and
//        \________________/   \--> kLinger -> kClosed        what the caller still sends is dropped
//
// A read is in progress in each stage until the caller ends, so that a hang-up is noticed.
// Bytes that arrive while an answer is in progress wait in `pending_`, up to the size of a header.
// Thread safety: the server's thread only. Ownership: Server::open owns it until Close.
// Invariants: (1) `pending_` holds at most HttpLimits::header_bytes and one read; (2) the header
// fields and the capacity of body and buffers are counted in `account_`; (3) after Close no
// function of Server is used.
#ifndef HEARTH_SERVICES_SERVING_HTTP_HTTP_CONNECTION_H_
#define HEARTH_SERVICES_SERVING_HTTP_HTTP_CONNECTION_H_

#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/strings/string_view.h"
#include "services/serving/calls/fair_pool.h"
#include "services/serving/http/body_bytes.h"
#include "services/serving/http/http_answer.h"
#include "services/serving/http/http_budget.h"
#include "services/serving/http/http_names.h"
#include "services/serving/http/http_server.h"
#include "services/serving/logging.h"

namespace hearth {

// Body type for Beast. Its memory grows as bytes arrive; Beast's own body types would allocate
// Content-Length bytes at once.
struct HttpBody {
  using value_type = BodyBytes;
  class reader {
   public:
    template <bool is_request, typename Fields>
    reader(boost::beast::http::header<is_request, Fields>&, value_type& body) : body_(body) {}
    void init(const boost::optional<uint64_t>&, boost::system::error_code& error) { error = {}; }
    template <typename Buffers>
    size_t put(const Buffers& buffers, boost::system::error_code& error) {
      error = {};
      size_t bytes = 0;
      for (const boost::asio::const_buffer buffer : boost::beast::buffers_range_ref(buffers)) {
        body_.Append({static_cast<const char*>(buffer.data()), buffer.size()});
        bytes += buffer.size();
      }
      return bytes;
    }
    void finish(boost::system::error_code& error) { error = {}; }

   private:
    value_type& body_;
  };
};

class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  using Clock = std::chrono::steady_clock;
  using ErrorCode = boost::system::error_code;

  // State that all connections of a server share.
  struct Server {
    explicit Server(HttpServer::Options options, HttpServer::Handler handler);

    const HttpServer::Options options;
    const HttpServer::Handler handler;
    const HostRule host_rule;
    const std::shared_ptr<HttpBudget> budget;
    LogRate faults;
    LogRate unknown_hosts{absl::Hours(1), /*at_once=*/3};
    const std::unique_ptr<FairPool> small_bodies, large_bodies;  // null: requests may have no body
    bool draining = false;
    // the open connections; this map owns them
    std::unordered_map<HttpConnection*, std::shared_ptr<HttpConnection>> open;
    // Connections that may be closed to make room, by address. An address without any has no entry.
    std::unordered_map<std::string, std::unordered_set<HttpConnection*>> shares;
    size_t extras = 0;  // number of connections over the limit, in `open`
  };
  struct Caller {
    std::string peer;     // address and port of the caller
    std::string address;  // CallerOfAddress of the caller's IP address
    // name under which the caller shares memory and threads: `address`; for a proxy `peer`
    std::string share;
    bool is_trusted = false;
    bool is_extra = false;  // connection over the limit: only /health is answered
  };

  // `context`: null for no TLS. Each connection keeps `io` alive.
  HttpConnection(boost::asio::ip::tcp::socket socket,
                 std::shared_ptr<boost::asio::ssl::context> context,
                 std::shared_ptr<boost::asio::io_context> io, Server* server, Caller caller);

  // Starts to read. REQUIRES: Server::open has this connection.
  void Open();
  // Closes the connection if it is over a time limit. Sends `when_silent` of its answer if it is
  // due.
  void CheckTimeouts(Clock::time_point now);
  void Close();

  const Caller& caller() const { return caller_; }
  bool is_idle() const { return stage_ == Stage::kIdle; }
  bool is_answering() const { return stage_ == Stage::kAnswer; }
  // Whether the server may close this connection to make room. Closing an extra connection makes
  // none.
  bool gives_way() const { return !caller_.is_trusted && !is_authenticated_ && !caller_.is_extra; }
  // Whether the caller has taken no byte of its answer for HttpLimits::stall_time.
  bool is_stalled(Clock::time_point now) const;
  Clock::time_point since() const { return since_; }
  Clock::time_point deadline() const { return deadline_; }

 private:
  // Runs one step of the connection. If the step throws, the fault is logged and the connection
  // closed.
  template <typename Step>
  void Guarded(const Step& step) {
    try {
      step();
    } catch (const std::exception& fault) {
      OnFault(fault.what());
    } catch (...) {
      OnFault("unknown");
    }
  }

  enum class Stage { kHeader, kBody, kAnswer, kIdle, kLinger, kClosed };
  using Parser = boost::beast::http::request_parser<HttpBody>;

  bool is_reading_request() const { return stage_ == Stage::kHeader || stage_ == Stage::kBody; }
  void UpdateShare();
  void OnHandshake();
  void Read();
  void StartRead(boost::asio::mutable_buffer into);
  void OnRead(ErrorCode error, size_t bytes);
  void OnInputEnd();
  void BeginRequest();
  void Parse();
  ErrorCode ParseSome(absl::string_view bytes, size_t* taken);
  ErrorCode ParseHeader(absl::string_view bytes, size_t* taken);
  void CheckPending();
  void DropPending();
  void OnLate();
  bool ReserveHeader(size_t lines, size_t bytes);
  bool ReserveBody(size_t more);
  bool CountBuffers();
  void TakeHead();
  void OnHead();
  HttpRefusal Refusal(int status, absl::string_view why) const;
  std::optional<HttpRefusal> RefusalOf();
  void Handle();
  void Dispatch(HttpRequest request, uint64_t counted);
  void RefuseFault(ErrorCode error);
  void Refuse(HttpRefusal refusal, bool closes);
  void RefuseWith(int status, absl::string_view why);
  void OnEvicted();
  void OnFault(absl::string_view why);
  void BeginAnswer(bool is_head, bool is_chunked);
  void Poke();
  void WriteSome();
  void StartWrite();
  void OnWritten(ErrorCode error, size_t bytes);
  void Probe();
  void EndAnswer();
  void ForgetRequest();

  const std::shared_ptr<boost::asio::io_context> io_;
  Server* const server_;  // not used after Close
  const Caller caller_;
  const std::shared_ptr<boost::asio::ssl::context> context_;
  boost::asio::ip::tcp::socket socket_;
  // TLS over socket_; nullopt: no TLS
  std::optional<boost::asio::ssl::stream<boost::asio::ip::tcp::socket&>> tls_;
  const Clock::time_point since_ = Clock::now();
  std::shared_ptr<HttpBudget::Account> account_;  // this connection's account; set by Open
  Stage stage_ = Stage::kHeader;
  Clock::time_point deadline_;    // time at which the current stage must end
  Clock::time_point linger_end_;  // time at which kLinger must end, even if bytes still arrive
  std::vector<std::string> certificate_names_;  // set by the TLS handshake
  bool is_authenticated_ = false;
  bool is_in_share_ = false;

  std::vector<char> incoming_;  // buffer of the read in progress
  std::string pending_;         // received bytes that are not parsed yet
  uint64_t counted_tls_ = 0, counted_buffers_ = 0;
  uint64_t counted_header_ = 0, counted_body_ = 0;
  bool is_new_ = true;  // nothing was read yet
  bool reading_ = false, input_ended_ = false;
  bool drops_input_ = false;  // received bytes are dropped: no request follows
  uint64_t dropped_bytes_ = 0;

  std::optional<Parser> parser_;
  HttpRequest request_;
  size_t header_bytes_ = 0, header_lines_ = 0;
  uint64_t overhead_bytes_ = 0;  // bytes of chunk headers and trailers
  bool is_folded_ = false;       // a header field spans several lines
  bool is_http11_ = true, keeps_alive_ = true;

  HttpHeaders answer_headers_;                // headers added to each answer to the request
  HttpErrorForm error_form_ = HttpErrorBody;  // form of the server's own errors for the request
  std::shared_ptr<HttpAnswer> answer_;
  std::deque<HttpAnswer::Piece> out_;  // pieces being written; sent_ bytes of the first were sent
  size_t sent_ = 0;
  bool writing_ = false;
  bool has_sent_some_ = false;  // a part of the current answer was sent
  Clock::time_point written_;   // time at which the caller last took a byte
  Clock::time_point window_start_;
  uint64_t window_bytes_ = 0;  // bytes that the caller took since window_start_
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_HTTP_HTTP_CONNECTION_H_
