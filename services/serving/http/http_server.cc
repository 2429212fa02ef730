#include "services/serving/http/http_server.h"

#include <fcntl.h>
#include <malloc.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <chrono>
#include <exception>
#include <list>
#include <thread>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "services/serving/access/listeners.h"
#include "services/serving/http/http_connection.h"
#include "services/serving/logging.h"

namespace hearth {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;
using std::chrono::steady_clock;

constexpr auto kCheckPeriod = std::chrono::milliseconds(250);
// Period of the checks while an ending server waits for its last answers.
constexpr auto kDrainCheckPeriod = std::chrono::milliseconds(10);
// When the server is destroyed, answers in progress get this long to reach their callers.
constexpr auto kFinish = std::chrono::seconds(1);
constexpr int kAcceptsAtOnce = 64;
constexpr unsigned char kSessionId[] = {'h', 't', 't', 'p'};
constexpr auto kTrimPause = std::chrono::seconds(5);
constexpr uint64_t kTrimBytes = uint64_t{32} << 20;
// TCP keepalive finds callers whose machine is gone, and callers that hung up after they closed
// their sending half: after 3 probes, or when the caller's kernel has forgotten the connection (60
// s on Linux).
constexpr int kKeepAliveS = 5, kKeepAliveProbes = 3;

absl::StatusOr<std::shared_ptr<asio::ssl::context>> MakeContext(const TlsTexts& texts) {
  auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  ErrorCode error;
  context->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 |
                           asio::ssl::context::no_tlsv1_1,
                       error);
  if (!error) context->use_certificate_chain(asio::buffer(texts.certificate), error);
  if (!error) context->use_private_key(asio::buffer(texts.key), asio::ssl::context::pem, error);
  if (!error && !texts.authority.empty()) {
    context->add_certificate_authority(asio::buffer(texts.authority), error);
    // A caller without a certificate passes; a certificate that is sent must be valid.
    context->set_verify_mode(asio::ssl::verify_peer);
    // OpenSSL resumes sessions of callers with certificates only if the context has an id.
    SSL_CTX_set_session_id_context(context->native_handle(), kSessionId, sizeof(kSessionId));
  }
  if (!error) return context;
  return absl::InvalidArgumentError(
      absl::StrCat("the TLS certificate or key of the HTTP server is invalid: ", error.message()));
}

void SetSocketOptions(tcp::socket* socket) {
  ErrorCode ignored;
  socket->set_option(tcp::no_delay(true), ignored);
  SetOn(socket->native_handle(), SOL_SOCKET, SO_KEEPALIVE);
  const auto set = [fd = socket->native_handle()](int option, int value) {
    setsockopt(fd, IPPROTO_TCP, option, &value, sizeof(value));
  };
  set(TCP_KEEPIDLE, kKeepAliveS);
  set(TCP_KEEPINTVL, kKeepAliveS);
  set(TCP_KEEPCNT, kKeepAliveProbes);
}

// Returns true if an error of accept concerns only one connection. Otherwise the process or the
// machine does not have descriptors or memory, and the next accept would fail at once.
bool IsPerConnectionError(ErrorCode error) {
  return error == asio::error::connection_aborted || error == asio::error::connection_reset ||
         error == asio::error::interrupted || error.value() == EPROTO;
}

// Returns the connection to close for a new connection from `address`, or null. Candidates are the
// connections of the address with the most unauthenticated connections. Closed first: a connection
// whose caller takes no byte of its answer; next, one without an answer in progress, the earliest
// deadline first; last, the oldest. An answer in progress is not ended for a new connection from
// the same address.
HttpConnection* FindVictim(const HttpConnection::Server& server, const std::string& address,
                           steady_clock::time_point now) {
  size_t most = 0;
  for (const auto& [its, connections] : server.shares) most = std::max(most, connections.size());
  HttpConnection* found = nullptr;
  std::tuple<int, steady_clock::time_point> least;
  for (const auto& [its, connections] : server.shares) {
    if (connections.size() < most) continue;
    const bool is_own = its == address;
    for (HttpConnection* connection : connections) {
      int rank = 2;
      if (!connection->is_answering()) rank = 1;
      if (connection->is_stalled(now)) rank = 0;
      if (rank == 2 && is_own) continue;
      const auto key =
          std::make_tuple(rank, rank == 1 ? connection->deadline() : connection->since());
      if (found == nullptr || key < least) {
        found = connection;
        least = key;
      }
    }
  }
  return found;
}

}  // namespace

class HttpServer::Rep {
 public:
  Rep(const Options& options, Handler handler)
      : listeners_(options.listen),
        io_(std::make_shared<asio::io_context>(1)),
        server_(options, std::move(handler)) {}
  ~Rep() {
    if (!thread_.joinable()) return;
    Drain();
    asio::post(*io_, [this] {
      finish_by_ = steady_clock::now() + kFinish;
      CheckConnections();
    });
    thread_.join();
  }

  absl::Status Open() {
    if (absl::Status status = listeners_.Open(); !status.ok()) return status;
    if (server_.options.tls) {
      if (absl::Status status = RefreshContext(); !status.ok()) return status;
    }
    for (const int fd : listeners_.fds()) {
      int family = 0;
      socklen_t size = sizeof(family);
      getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size);
      acceptors_.emplace_back(*io_, family == AF_INET6 ? tcp::v6() : tcp::v4(),
                              fcntl(fd, F_DUPFD_CLOEXEC, 0));
      acceptors_.back().non_blocking(true);
      Accept(&acceptors_.back());
    }
    CheckConnections();
    thread_ = std::thread([this] { Run(); });
    return absl::OkStatus();
  }

  int port() const { return listeners_.port(); }
  uint64_t held_bytes() const { return server_.budget->held_bytes(); }
  void Drain() {
    asio::post(*io_, [this] {
      server_.draining = true;
      const auto open = server_.open;
      for (const auto& [connection, owned] : open) {
        if (connection->is_idle()) connection->Close();
      }
    });
  }

 private:
  // A fault in one step, such as a lack of memory, does not end the process.
  void Run() {
    for (;;) {
      try {
        io_->run();
        return;
      } catch (const std::exception& fault) {
        LogFault(fault.what());
      } catch (...) {
        LogFault("unknown");
      }
    }
  }

  void LogFault(const char* why) {
    LogSometimes(&server_.faults, LogLevel::kError, "a step of the HTTP server failed",
                 {{"error", why}});
  }

  // Loads the TLS certificate if it has changed. An invalid certificate is not used.
  absl::Status RefreshContext() {
    const std::shared_ptr<const TlsTexts> texts = server_.options.tls();
    if (texts == texts_) return absl::OkStatus();
    absl::StatusOr<std::shared_ptr<asio::ssl::context>> context = MakeContext(*texts);
    if (!context.ok()) return context.status();
    texts_ = texts;
    context_ = *std::move(context);
    return absl::OkStatus();
  }

  // Accepts several connections at once. Between two waits of the event loop each busy connection
  // has a turn, so a new connection would otherwise wait for all of them.
  void Accept(tcp::acceptor* acceptor) {
    acceptor->async_wait(tcp::acceptor::wait_read, [this, acceptor](ErrorCode cancelled) {
      if (cancelled || finished_ || is_accept_paused_) return;
      Accept(acceptor);  // first, so that the server still accepts if the code below throws
      for (int i = 0; i < kAcceptsAtOnce; ++i) {
        tcp::socket socket(*io_);
        ErrorCode error;
        acceptor->accept(socket, error);
        if (error == asio::error::would_block) return;
        if (!error) {
          // Post Take instead of calling it. A connection that this loop accepted may have been
          // answered already, but it counts as busy until the end of its write runs, after this
          // loop.
          asio::post(*io_, [this, socket = std::move(socket)]() mutable {
            if (!finished_) Take(std::move(socket));
          });
        } else if (!IsPerConnectionError(error)) {
          return PauseAccepting(error);
        }
      }
    });
  }

  // Called if no descriptor or memory is free: new connections wait until the next check.
  void PauseAccepting(ErrorCode error) {
    LogSometimes(&accept_failures_, LogLevel::kWarning, "accept failed",
                 {{"error", error.message()}});
    is_accept_paused_ = true;
    for (tcp::acceptor& acceptor : acceptors_) acceptor.cancel(error);
  }

  void Take(tcp::socket socket) {
    ErrorCode error;
    const tcp::endpoint from = socket.remote_endpoint(error);
    if (error) return;  // the connection is closed already
    SetSocketOptions(&socket);
    const std::string address = from.address().to_string();
    HttpConnection::Caller caller;
    caller.peer = absl::StrCat(address, ":", from.port());
    caller.address = CallerOfAddress(address);
    const auto& proxies = server_.options.trusted_proxies;
    caller.is_trusted = std::any_of(proxies.begin(), proxies.end(),
                                    [&](const Cidr& proxy) { return proxy.Contains(address); });
    caller.share = caller.is_trusted ? caller.peer : caller.address;
    if (!MakeRoom(&caller)) return;
    if (server_.options.tls) RefreshContext().IgnoreError();
    const auto connection = std::make_shared<HttpConnection>(std::move(socket), context_, io_,
                                                             &server_, std::move(caller));
    server_.open.emplace(connection.get(), connection);
    connection->Open();
  }

  // Makes room for a new connection, or marks it as extra. Returns false if there is no room for
  // it.
  bool MakeRoom(HttpConnection::Caller* caller) {
    const HttpLimits& limits = server_.options.limits;
    caller->is_extra = server_.draining;
    if (server_.open.size() < limits.connections) return true;
    const size_t extra = server_.extras;
    if (server_.open.size() - extra < limits.connections) return true;
    HttpConnection* goes =
        server_.draining ? nullptr : FindVictim(server_, caller->address, steady_clock::now());
    if (goes != nullptr) {
      goes->Close();
      return true;
    }
    caller->is_extra = true;
    if (extra < limits.extra_connections) return true;
    for (const auto& [connection, owned] : server_.open) {
      if (!connection->caller().is_extra) continue;
      if (goes == nullptr || connection->since() < goes->since()) goes = connection;
    }
    if (goes != nullptr) goes->Close();
    return goes != nullptr;
  }

  // Ends the server when no answer is in progress, or at finish_by_. Extra connections do not
  // count: callers that reconnect again and again would delay the end for ever.
  void Finish() {
    const auto answers = [](const auto& entry) {
      return entry.second->is_answering() && !entry.second->caller().is_extra;
    };
    if (steady_clock::now() < finish_by_ &&
        std::any_of(server_.open.begin(), server_.open.end(), answers)) {
      return;
    }
    while (!server_.open.empty()) server_.open.begin()->second->Close();
    finished_ = true;
    acceptors_.clear();
    check_timer_.cancel();
  }

  void CheckConnections() {
    if (finish_by_ != steady_clock::time_point::max()) Finish();
    if (finished_) return;
    check_timer_.expires_after(finish_by_ == steady_clock::time_point::max() ? kCheckPeriod
                                                                             : kDrainCheckPeriod);
    check_timer_.async_wait([this](ErrorCode error) {
      if (error) return;
      CheckConnections();  // first, so that the checks continue if the code below throws
      if (finished_) return;
      if (std::exchange(is_accept_paused_, false)) {
        for (tcp::acceptor& acceptor : acceptors_) Accept(&acceptor);
      }
      const auto open = server_.open;
      const auto now = steady_clock::now();
      for (const auto& [connection, owned] : open) connection->CheckTimeouts(now);
      Trim(now);
    });
  }

  // If much of the budget was in use, returns freed memory to the system; malloc would keep it.
  // Runs on the pool, because trimming 150 MiB takes 50 to 120 ms on a busy machine.
  void Trim(steady_clock::time_point now) {
    const uint64_t held = held_bytes();
    peak_bytes_ = std::max(peak_bytes_, server_.budget->TakePeakBytes());
    if (peak_bytes_ - held < kTrimBytes || now - trimmed_ < kTrimPause) return;
    if (server_.large_bodies == nullptr) return;
    trimmed_ = now;
    peak_bytes_ = held;
    server_.large_bodies->Submit("trim", 0, [] { malloc_trim(0); }).IgnoreError();
  }

  Listeners listeners_;
  const std::shared_ptr<asio::io_context> io_;
  // Used only by the server's thread.
  HttpConnection::Server server_;
  std::list<tcp::acceptor> acceptors_;
  asio::steady_timer check_timer_{*io_};
  LogRate accept_failures_;
  steady_clock::time_point finish_by_ = steady_clock::time_point::max();
  steady_clock::time_point trimmed_;
  uint64_t peak_bytes_ = 0;  // largest number of bytes in the budget since trimmed_
  bool finished_ = false;
  bool is_accept_paused_ = false;  // new connections wait until the next check
  std::shared_ptr<const TlsTexts> texts_;
  std::shared_ptr<asio::ssl::context> context_;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const Options& options,
                                                              Handler handler) {
  auto rep = std::make_unique<Rep>(options, std::move(handler));
  if (absl::Status status = rep->Open(); !status.ok()) return status;
  const std::string host = options.listen.substr(0, options.listen.rfind(':'));
  std::string address = absl::StrCat(host, ":", rep->port());
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(rep), std::move(address)));
}

HttpServer::HttpServer(std::unique_ptr<Rep> rep, std::string address)
    : rep_(std::move(rep)), address_(std::move(address)) {}
HttpServer::~HttpServer() = default;
void HttpServer::Drain() { rep_->Drain(); }
uint64_t HttpServer::held_bytes() const { return rep_->held_bytes(); }

}  // namespace hearth
