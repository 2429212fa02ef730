#include "services/serving/http/http_server.h"

#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <boost/asio.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <list>
#include <optional>
#include <thread>
#include <unordered_map>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "services/serving/door/listeners.h"

namespace hearth {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using ErrorCode = boost::system::error_code;
using std::chrono::steady_clock;

constexpr auto kLook = std::chrono::milliseconds(250);
constexpr auto kSilence = std::chrono::seconds(1);
// After the last answer of a connection: so long what its caller still sends is read and dropped,
// since a socket closed over unread bytes takes the answer with it.
constexpr auto kLinger = std::chrono::seconds(2);
constexpr size_t kWatchBytes = 512;
// Answers under way when the server goes have so long to reach their callers.
constexpr auto kFinish = std::chrono::seconds(1);

steady_clock::time_point After(absl::Duration wait) {
  return steady_clock::now() + absl::ToChronoNanoseconds(wait);
}

}  // namespace

// What a handler's threads and the connection share. The connection takes `ready` when it is poked.
struct HttpAnswer::State {
  State(bool is_head, bool is_chunked, bool keeps_alive, size_t unsent_limit,
        std::function<void()> poke)
      : is_head(is_head),
        is_chunked(is_chunked),
        keeps_alive(keeps_alive),
        unsent_limit(unsent_limit),
        poke(std::move(poke)) {}

  // The first line and the headers; `length` below 0: a stream.
  std::string Head(int status, const HttpHeaders& headers, int64_t length) const {
    std::string head = absl::StrCat(
        "HTTP/1.1 ", status, " ", HttpReason(status), "\r\nDate: ",
        absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT\r\n", absl::Now(), absl::UTCTimeZone()));
    for (const auto& [name, value] : headers) absl::StrAppend(&head, name, ": ", value, "\r\n");
    if (length >= 0) {
      absl::StrAppend(&head, "Content-Length: ", length, "\r\n");
    } else if (is_chunked) {
      absl::StrAppend(&head, "Transfer-Encoding: chunked\r\n");
    }
    const bool closes = !keeps_alive || (length < 0 && !is_chunked);
    absl::StrAppend(&head, closes ? "Connection: close\r\n\r\n" : "\r\n");
    return head;
  }

  // False: the caller is gone.
  bool Put(absl::string_view bytes, bool is_end) ABSL_LOCKS_EXCLUDED(mutex) {
    {
      absl::MutexLock lock(&mutex);
      if (ended || gone) return false;
      absl::StrAppend(&ready, bytes);
      unsent += bytes.size();
      ended = is_end;
      too_slow = is_stream && unsent > unsent_limit;
      if (std::exchange(is_poked, true)) return !too_slow;
    }
    poke();
    return true;
  }

  // A part of a stream.
  bool Write(absl::string_view data) {
    if (is_head || data.empty()) return true;
    if (!is_chunked) return Put(data, false);
    return Put(absl::StrCat(absl::Hex(data.size()), "\r\n", data, "\r\n"), false);
  }

  const bool is_head, is_chunked, keeps_alive;
  const size_t unsent_limit;
  const std::function<void()> poke;
  absl::Mutex mutex;
  bool begun ABSL_GUARDED_BY(mutex) = false;
  bool is_stream ABSL_GUARDED_BY(mutex) = false;
  bool ended ABSL_GUARDED_BY(mutex) = false;
  bool gone ABSL_GUARDED_BY(mutex) = false;
  bool too_slow ABSL_GUARDED_BY(mutex) = false;  // more is unsent than may be
  bool is_broken ABSL_GUARDED_BY(mutex) = false;
  bool is_poked ABSL_GUARDED_BY(mutex) = false;
  std::string ready ABSL_GUARDED_BY(mutex);
  size_t unsent ABSL_GUARDED_BY(mutex) = 0;  // ready, and what the connection took of it
  std::string when_silent ABSL_GUARDED_BY(mutex);
  std::function<void()> on_gone ABSL_GUARDED_BY(mutex);
};

HttpAnswer::~HttpAnswer() {
  bool begun = false;
  {
    absl::MutexLock lock(&state_->mutex);
    if (state_->ended || state_->gone) return;
    begun = state_->begun;
    state_->is_broken = begun;
  }
  if (begun) {
    state_->Put("", /*is_end=*/true);
  } else {
    Send(500, {{"Content-Type", "application/json"}}, HttpErrorBody(500, "no answer was made"));
  }
}

void HttpAnswer::Send(int status, const HttpHeaders& headers, absl::string_view body) {
  {
    absl::MutexLock lock(&state_->mutex);
    state_->begun = true;
  }
  const auto length = static_cast<int64_t>(body.size());
  state_->Put(absl::StrCat(state_->Head(status, headers, length), state_->is_head ? "" : body),
              /*is_end=*/true);
}

void HttpAnswer::Begin(int status, const HttpHeaders& headers, const std::string& when_silent) {
  {
    absl::MutexLock lock(&state_->mutex);
    state_->begun = state_->is_stream = true;
    state_->when_silent = when_silent;
  }
  state_->Put(state_->Head(status, headers, -1), /*is_end=*/false);
}

bool HttpAnswer::Write(absl::string_view data) { return state_->Write(data); }

void HttpAnswer::End() {
  state_->Put(state_->is_chunked && !state_->is_head ? "0\r\n\r\n" : "", /*is_end=*/true);
}

void HttpAnswer::OnGone(std::function<void()> gone) {
  {
    absl::MutexLock lock(&state_->mutex);
    if (!state_->gone) {
      state_->on_gone = std::move(gone);
      return;
    }
  }
  gone();
}

namespace {

// One connection, on the server's thread: reads a request, has it answered, and so on.
class HttpConnection : public std::enable_shared_from_this<HttpConnection> {
 public:
  struct Server {
    HttpLimits limits;
    HttpServer::Handler handler;
    bool draining = false;
    std::unordered_map<HttpConnection*, std::shared_ptr<HttpConnection>> open;  // owned here
  };

  // `io` lives as long as any connection.
  HttpConnection(std::shared_ptr<asio::io_context> io, Server* server, std::string peer)
      : io_(std::move(io)), server_(server), peer_(std::move(peer)) {
    deadline_ = After(server_->limits.header_time);
  }
  virtual ~HttpConnection() = default;

  virtual void Start() = 0;
  // Ends what took too long, and what is silent says something.
  void Look(steady_clock::time_point now);
  void Close();
  bool is_idle() const { return stage_ == Stage::kIdle; }
  bool is_answering() const { return stage_ == Stage::kAnswer; }
  steady_clock::time_point deadline() const { return deadline_; }

 protected:
  enum class Stage { kHeader, kBody, kAnswer, kIdle, kLinger, kClosed };
  using Parser = http::request_parser<http::string_body>;

  virtual void StartHeader() = 0;
  virtual void StartBody() = 0;
  virtual void StartWatch() = 0;
  virtual void StartWrite(asio::const_buffer bytes) = 0;
  virtual tcp::socket& socket() = 0;

  void ReadHeader();
  void OnHeader(ErrorCode error);
  void OnBody(ErrorCode error);
  void OnWatched(ErrorCode error, size_t bytes);
  void OnWritten(ErrorCode error, size_t bytes);

  const std::shared_ptr<asio::io_context> io_;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;

 private:
  void Watch();
  void Handle();
  void Refuse(ErrorCode error);
  void Poke();
  void WriteSome();
  void EndAnswer();
  void BeginAnswer(bool is_head, bool is_chunked);

  Server* const server_;  // gone after Close
  const std::string peer_;
  Stage stage_ = Stage::kHeader;
  steady_clock::time_point deadline_;  // of the stage
  bool keeps_alive_ = true, watching_ = false, writing_ = false;
  std::shared_ptr<HttpAnswer::State> answer_;
  std::string out_;  // being written, from sent_ on
  size_t sent_ = 0;
  steady_clock::time_point written_;  // when the last byte was taken
};

template <typename Stream>
class HttpConnectionOver final : public HttpConnection {
 public:
  HttpConnectionOver(Stream stream, std::shared_ptr<void> context,
                     std::shared_ptr<asio::io_context> io, Server* server, std::string peer)
      : HttpConnection(std::move(io), server, std::move(peer)),
        context_(std::move(context)),
        stream_(std::move(stream)) {}

  void Start() override {
    if constexpr (std::is_same_v<Stream, tcp::socket>) {
      ReadHeader();
    } else {
      stream_.async_handshake(
          asio::ssl::stream_base::server,
          [this, self = shared_from_this()](ErrorCode error) { error ? Close() : ReadHeader(); });
    }
  }

 private:
  void StartHeader() override {
    http::async_read_header(
        stream_, buffer_, *parser_,
        [this, self = shared_from_this()](ErrorCode error, size_t) { OnHeader(error); });
  }
  void StartBody() override {
    http::async_read(stream_, buffer_, *parser_,
                     [this, self = shared_from_this()](ErrorCode error, size_t) { OnBody(error); });
  }
  void StartWatch() override {
    stream_.async_read_some(
        buffer_.prepare(kWatchBytes),
        [this, self = shared_from_this()](ErrorCode error, size_t n) { OnWatched(error, n); });
  }
  void StartWrite(asio::const_buffer bytes) override {
    stream_.async_write_some(
        bytes, [this, self = shared_from_this()](ErrorCode e, size_t n) { OnWritten(e, n); });
  }
  tcp::socket& socket() override {
    if constexpr (std::is_same_v<Stream, tcp::socket>) {
      return stream_;
    } else {
      return stream_.next_layer();
    }
  }

  const std::shared_ptr<void> context_;  // of TLS
  Stream stream_;
};

void HttpConnection::Look(steady_clock::time_point now) {
  if (writing_ && now - written_ > absl::ToChronoNanoseconds(server_->limits.write_time)) {
    return Close();
  }
  if (stage_ != Stage::kAnswer) {
    if (now > deadline_ && !writing_) Close();
    return;
  }
  std::string due;
  bool too_slow = false;
  {
    absl::MutexLock lock(&answer_->mutex);
    too_slow = answer_->too_slow;
    if (!answer_->ended && !writing_ && now - written_ > kSilence) due = answer_->when_silent;
  }
  if (too_slow) return Close();
  if (!due.empty()) answer_->Write(due);
}

void HttpConnection::Close() {
  if (std::exchange(stage_, Stage::kClosed) == Stage::kClosed) return;
  const auto self = shared_from_this();
  server_->open.erase(this);
  ErrorCode ignored;
  socket().close(ignored);
  if (answer_ == nullptr) return;
  std::function<void()> gone;
  {
    absl::MutexLock lock(&answer_->mutex);
    answer_->gone = true;
    if (!answer_->ended) gone = std::move(answer_->on_gone);
    answer_->on_gone = nullptr;
  }
  if (gone) gone();
}

void HttpConnection::ReadHeader() {
  stage_ = Stage::kHeader;
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(server_->limits.header_bytes));
  parser_->body_limit(server_->limits.body_bytes);
  StartHeader();
}

void HttpConnection::OnHeader(ErrorCode error) {
  if (stage_ == Stage::kClosed) return;
  if (error) return Refuse(error);
  stage_ = Stage::kBody;
  deadline_ = After(server_->limits.request_time);
  if (parser_->get()[http::field::expect] == "100-continue") {
    out_ = "HTTP/1.1 100 Continue\r\n\r\n";
    WriteSome();
  }
  StartBody();
}

void HttpConnection::OnBody(ErrorCode error) {
  if (stage_ == Stage::kClosed) return;
  error ? Refuse(error) : Handle();
}

// Of a request that cannot be read: says why, where it can be said, and closes.
void HttpConnection::Refuse(ErrorCode error) {
  const bool is_ours = error.category() == make_error_code(http::error::bad_method).category();
  if (!is_ours || error == http::error::end_of_stream || error == http::error::partial_message) {
    return Close();
  }
  int status = 400;
  if (error == http::error::header_limit) status = 431;
  if (error == http::error::body_limit) status = 413;
  keeps_alive_ = false;
  BeginAnswer(/*is_head=*/false, /*is_chunked=*/true);
  std::string why = error.message();
  if (status == 431) why = absl::StrCat("headers over ", server_->limits.header_bytes, " bytes");
  if (status == 413) why = absl::StrCat("a body over ", server_->limits.body_bytes, " bytes");
  HttpAnswer(answer_).Send(status, {{"Content-Type", "application/json"}},
                           HttpErrorBody(status, why));
}

void HttpConnection::BeginAnswer(bool is_head, bool is_chunked) {
  stage_ = Stage::kAnswer;
  written_ = steady_clock::now();
  const auto poke = [io = io_, weak = weak_from_this()] {
    asio::post(*io, [weak] {
      if (const auto self = weak.lock()) self->Poke();
    });
  };
  answer_ = std::make_shared<HttpAnswer::State>(is_head, is_chunked, keeps_alive_,
                                                server_->limits.unsent_bytes, poke);
}

void HttpConnection::Handle() {
  auto message = parser_->release();
  keeps_alive_ = message.keep_alive() && !server_->draining;
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string target(message.target());
  request.path = target.substr(0, target.find('?'));
  if (request.path.size() < target.size()) request.query = target.substr(request.path.size() + 1);
  for (const auto& field : message) {
    request.headers.emplace_back(absl::AsciiStrToLower(std::string(field.name_string())),
                                 std::string(field.value()));
  }
  request.body = std::move(message.body());
  request.peer = peer_;
  BeginAnswer(message.method() == http::verb::head, message.version() >= 11);
  Watch();
  server_->handler(std::move(request), std::make_shared<HttpAnswer>(answer_));
}

// Reads on while an answer is under way, or none is due: that is how a hang-up is seen. What comes
// belongs to the next request, and ends the watch.
void HttpConnection::Watch() {
  if (watching_ || buffer_.size() > 0) return;
  watching_ = true;
  StartWatch();
}

void HttpConnection::OnWatched(ErrorCode error, size_t bytes) {
  watching_ = false;
  if (stage_ == Stage::kClosed) return;
  if (error) return Close();
  if (stage_ == Stage::kLinger) return Watch();
  buffer_.commit(bytes);
  if (stage_ != Stage::kIdle) return;
  deadline_ = After(server_->limits.header_time);
  ReadHeader();
}

// The answer has something ready, or has ended.
void HttpConnection::Poke() {
  if (stage_ != Stage::kAnswer || writing_) return;
  bool is_done = false, too_slow = false;
  {
    absl::MutexLock lock(&answer_->mutex);
    answer_->is_poked = false;
    too_slow = answer_->too_slow;
    out_ = std::move(answer_->ready);
    answer_->ready.clear();
    is_done = answer_->ended && out_.empty();
    if (answer_->is_broken && is_done) too_slow = true;
  }
  if (too_slow) return Close();
  if (is_done) return EndAnswer();
  WriteSome();
}

void HttpConnection::WriteSome() {
  if (out_.empty()) return;
  writing_ = true;
  written_ = steady_clock::now();
  StartWrite(asio::buffer(out_.data() + sent_, out_.size() - sent_));
}

void HttpConnection::OnWritten(ErrorCode error, size_t bytes) {
  writing_ = false;
  if (stage_ == Stage::kClosed) return;
  if (error) return Close();
  written_ = steady_clock::now();
  sent_ += bytes;
  if (answer_ != nullptr) {
    absl::MutexLock lock(&answer_->mutex);
    answer_->unsent -= std::min(bytes, answer_->unsent);
  }
  if (sent_ < out_.size()) return WriteSome();
  std::string().swap(out_);
  sent_ = 0;
  if (stage_ == Stage::kAnswer) Poke();
}

void HttpConnection::EndAnswer() {
  bool keeps_alive = keeps_alive_ && !server_->draining;
  {
    absl::MutexLock lock(&answer_->mutex);
    answer_->on_gone = nullptr;
    keeps_alive = keeps_alive && (answer_->is_chunked || !answer_->is_stream);
  }
  answer_.reset();
  if (!keeps_alive) {
    ErrorCode ignored;
    socket().shutdown(tcp::socket::shutdown_send, ignored);
    stage_ = Stage::kLinger;
    deadline_ = steady_clock::now() + kLinger;
    buffer_.clear();
    return Watch();
  }
  stage_ = Stage::kIdle;
  deadline_ = After(server_->limits.idle_time);
  if (watching_) return;
  if (buffer_.size() == 0) return Watch();
  deadline_ = After(server_->limits.header_time);
  ReadHeader();
}

absl::StatusOr<std::shared_ptr<asio::ssl::context>> MakeContext(const TlsTexts& texts) {
  auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
  ErrorCode error;
  context->set_options(asio::ssl::context::default_workarounds | asio::ssl::context::no_tlsv1 |
                           asio::ssl::context::no_tlsv1_1,
                       error);
  if (!error) context->use_certificate_chain(asio::buffer(texts.certificate), error);
  if (!error) context->use_private_key(asio::buffer(texts.key), asio::ssl::context::pem, error);
  if (!error) return context;
  return absl::InvalidArgumentError(absl::StrCat("TLS over HTTP: ", error.message()));
}

}  // namespace

class HttpServer::Rep {
 public:
  Rep(const Options& options, Handler handler)
      : tls_(options.tls), listeners_(options.listen), io_(std::make_shared<asio::io_context>(1)) {
    server_.limits = options.limits;
    server_.handler = std::move(handler);
  }
  ~Rep() {
    if (!thread_.joinable()) return;
    Drain();
    asio::post(*io_, [this] {
      finish_by_ = steady_clock::now() + kFinish;
      Finish();
    });
    thread_.join();
  }

  absl::Status Open() {
    if (absl::Status status = listeners_.Open(); !status.ok()) return status;
    if (tls_) {
      if (absl::Status status = RefreshContext(); !status.ok()) return status;
    }
    for (const int fd : listeners_.fds()) {
      int family = 0;
      socklen_t size = sizeof(family);
      getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size);
      acceptors_.emplace_back(*io_, family == AF_INET6 ? tcp::v6() : tcp::v4(),
                              fcntl(fd, F_DUPFD_CLOEXEC, 0));
      Accept(&acceptors_.back());
    }
    Look();
    thread_ = std::thread([io = io_] { io->run(); });
    return absl::OkStatus();
  }

  int port() const { return listeners_.port(); }
  size_t open() const { return open_.load(std::memory_order_relaxed); }
  void Drain() {
    asio::post(*io_, [this] {
      server_.draining = true;
      acceptors_.clear();
      const auto open = server_.open;
      for (const auto& [connection, owned] : open) {
        if (connection->is_idle()) connection->Close();
      }
    });
  }

 private:
  // An invalid certificate leaves the one before.
  absl::Status RefreshContext() {
    const std::shared_ptr<const TlsTexts> texts = tls_();
    if (texts == texts_) return absl::OkStatus();
    absl::StatusOr<std::shared_ptr<asio::ssl::context>> context = MakeContext(*texts);
    if (!context.ok()) return context.status();
    texts_ = texts;
    context_ = *std::move(context);
    return absl::OkStatus();
  }

  void Accept(tcp::acceptor* acceptor) {
    acceptor->async_accept([this, acceptor](ErrorCode error, tcp::socket socket) {
      if (server_.draining) return;
      if (error) {
        // Descriptors are short: until some are free that would be said again at once, forever.
        retry_.expires_after(kLook);
        retry_.async_wait([this, acceptor](ErrorCode) {
          if (!server_.draining) Accept(acceptor);
        });
        return;
      }
      Take(std::move(socket));
      Accept(acceptor);
    });
  }

  void Take(tcp::socket socket) {
    if (server_.open.size() >= server_.limits.connections) {
      HttpConnection* longest = nullptr;
      for (const auto& [connection, owned] : server_.open) {
        if (connection->is_answering()) continue;
        if (longest == nullptr || connection->deadline() < longest->deadline()) {
          longest = connection;
        }
      }
      if (longest == nullptr) return;
      longest->Close();
    }
    ErrorCode ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    const tcp::endpoint from = socket.remote_endpoint(ignored);
    std::string peer = absl::StrCat(from.address().to_string(), ":", from.port());
    std::shared_ptr<HttpConnection> connection;
    if (tls_ == nullptr) {
      connection = std::make_shared<HttpConnectionOver<tcp::socket>>(
          std::move(socket), nullptr, io_, &server_, std::move(peer));
    } else {
      RefreshContext().IgnoreError();
      asio::ssl::stream<tcp::socket> stream(std::move(socket), *context_);
      connection = std::make_shared<HttpConnectionOver<asio::ssl::stream<tcp::socket>>>(
          std::move(stream), context_, io_, &server_, std::move(peer));
    }
    server_.open.emplace(connection.get(), connection);
    connection->Start();
  }

  // Ends once no answer is under way, or it is time.
  void Finish() {
    const auto answers = [](const auto& entry) { return entry.second->is_answering(); };
    if (steady_clock::now() < finish_by_ &&
        std::any_of(server_.open.begin(), server_.open.end(), answers)) {
      return;
    }
    while (!server_.open.empty()) server_.open.begin()->second->Close();
    finished_ = true;
    look_.cancel();
  }

  void Look() {
    if (finish_by_ != steady_clock::time_point::max()) Finish();
    if (finished_) return;
    look_.expires_after(kLook);
    look_.async_wait([this](ErrorCode error) {
      if (error) return;
      const auto open = server_.open;
      open_.store(open.size(), std::memory_order_relaxed);
      const auto now = steady_clock::now();
      for (const auto& [connection, owned] : open) connection->Look(now);
      Look();
    });
  }

  const std::function<std::shared_ptr<const TlsTexts>()> tls_;
  Listeners listeners_;
  const std::shared_ptr<asio::io_context> io_;
  // Of the thread.
  HttpConnection::Server server_;
  std::list<tcp::acceptor> acceptors_;
  asio::steady_timer look_{*io_}, retry_{*io_};
  steady_clock::time_point finish_by_ = steady_clock::time_point::max();
  bool finished_ = false;
  std::shared_ptr<const TlsTexts> texts_;
  std::shared_ptr<asio::ssl::context> context_;
  std::atomic<size_t> open_{0};
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
size_t HttpServer::open() const { return rep_->open(); }

const std::string* HttpRequest::Header(absl::string_view name) const {
  for (const auto& header : headers) {
    if (header.first == name) return &header.second;
  }
  return nullptr;
}

const char* HttpReason(int status) {
  return http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status))).data();
}

std::string HttpErrorBody(int status, absl::string_view message, absl::string_view param) {
  const nlohmann::json body = {
      {"error",
       {{"message", std::string(message)},
        {"type", status < 500 ? "invalid_request_error" : "server_error"},
        {"param", param.empty() ? nlohmann::json() : nlohmann::json(std::string(param))},
        {"code", nullptr}}}};
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace hearth
