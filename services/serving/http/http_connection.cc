#include "services/serving/http/http_connection.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <exception>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "services/rpc/access_files.h"
#include "services/serving/access/identity.h"
#include "services/serving/json_value.h"

namespace hearth {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using ErrorCode = HttpConnection::ErrorCode;
using Clock = HttpConnection::Clock;

// Bytes of one read: kBodyRead while a body is received, kHeaderRead while headers are received,
// and kWatchRead otherwise. kWatchRead is small, because it only waits for a hang-up, on many idle
// connections.
constexpr size_t kBodyRead = size_t{16} << 10, kHeaderRead = size_t{2} << 10, kWatchRead = 512;
// The shortest end of a chunked body is "0\r
// \r
// ". If Beast 1.74's parser gets three of these bytes and later the other four, an assertion fails
// and ends the process.
constexpr size_t kLastChunkBytes = 5;
// Memory that OpenSSL and Asio together hold for one TLS connection.
constexpr uint64_t kTlsBytes = uint64_t{64} << 10;
// After a refusal, a caller may still send its whole body before it reads the answer. These bytes
// are read and dropped. Above the size limit of a body and this slack, the server reads only once
// for each CheckTimeouts, so that a flood does not occupy the thread.
constexpr uint64_t kDropSlackBytes = uint64_t{1} << 20;
// Memory of one header field in Beast's parser and in HttpRequest, in addition to its text in each.
constexpr uint64_t kFieldBytes = 200;

// Error code for too many header fields. Beast has no such limit, and its parser does not use this
// code.
constexpr auto kTooManyFields = http::error::buffer_overflow;

constexpr char kContinue[] = "HTTP/1.1 100 Continue\r\n\r\n";
constexpr char kHealth[] = "/health";

// Headers that a request may have only once: if a header came twice, a proxy in front of the server
// might use the other value.
constexpr std::array<absl::string_view, 9> kSingle = {
    "host",   "authorization", "x-api-key",         "content-length", "content-type",
    "origin", "expect",        "transfer-encoding", kTenantHeader};

Clock::time_point After(absl::Duration wait) {
  return Clock::now() + absl::ToChronoNanoseconds(wait);
}

// Returns why the request's headers are ambiguous; empty if they are not.
std::string FaultOf(const HttpRequest& request, bool is_http11) {
  for (const absl::string_view name : kSingle) {
    const auto names = [name](const auto& header) { return header.first == name; };
    if (std::count_if(request.headers.begin(), request.headers.end(), names) > 1) {
      return absl::StrCat(name, ": must be given once; got several");
    }
  }
  const std::string* length = request.Header("content-length");
  if (length != nullptr && absl::StrContains(*length, ",")) {
    return "content-length: must be one number; got a list";
  }
  const std::string* encoding = request.Header("transfer-encoding");
  if (encoding != nullptr && (!is_http11 || length != nullptr)) {
    return "transfer-encoding: must be absent in HTTP/1.0 and with Content-Length";
  }
  if (encoding != nullptr && !absl::EqualsIgnoreCase(*encoding, "chunked")) {
    return absl::StrCat("transfer-encoding: must be chunked; got ",
                        encoding->substr(0, kMaxQuotedBytes));
  }
  return "";
}

// Calls a handler. If the handler throws, only its answer fails.
void CallHandler(const HttpServer::Handler& handler, LogRate* faults, HttpRequest request,
                 const std::shared_ptr<HttpAnswer>& answer) {
  const std::string what =
      absl::StrCat(request.method, " ", request.path).substr(0, kMaxQuotedBytes);
  std::string why = "unknown";
  try {
    request.body_bytes.Join();
    return handler(std::move(request), answer);
  } catch (const std::exception& fault) {
    why = fault.what();
  } catch (...) {
  }
  answer->Fail();
  LogSometimes(faults, LogLevel::kError, "an HTTP handler threw an exception",
               {{"request", what}, {"error", why.substr(0, kMaxQuotedBytes)}});
}

std::unique_ptr<FairPool> MakeLane(const HttpLimits& limits, const char* kind) {
  if (limits.body_bytes == 0) return nullptr;
  FairPoolOptions options;
  // Two threads, so that two addresses are served at the same time. A connection has at most one
  // request, and the budget limits the bytes of requests, so one address may have a request on
  // every connection.
  options.threads = 2;
  options.max_waiting = 2 * limits.connections + 1;
  return std::make_unique<FairPool>(kind, options);
}

}  // namespace

HttpConnection::Server::Server(HttpServer::Options options, HttpServer::Handler handler)
    : options(std::move(options)),
      handler(std::move(handler)),
      host_rule(this->options.listen, this->options.hosts),
      budget(std::make_shared<HttpBudget>(this->options.budget_bytes)),
      small_bodies(MakeLane(this->options.limits, "small HTTP bodies")),
      large_bodies(MakeLane(this->options.limits, "large HTTP bodies")) {}

HttpConnection::HttpConnection(tcp::socket socket, std::shared_ptr<asio::ssl::context> context,
                               std::shared_ptr<asio::io_context> io, Server* server, Caller caller)
    : io_(std::move(io)),
      server_(server),
      caller_(std::move(caller)),
      context_(std::move(context)),
      socket_(std::move(socket)) {
  deadline_ = After(server_->options.limits.header_time);
  if (context_ != nullptr) tls_.emplace(socket_, *context_);
}

void HttpConnection::Open() {
  if (caller_.is_extra) ++server_->extras;
  UpdateShare();
  account_ = std::make_shared<HttpBudget::Account>(server_->budget, caller_.share,
                                                   [io = io_, weak = weak_from_this()] {
                                                     asio::post(*io, [weak] {
                                                       if (const auto self = weak.lock())
                                                         self->Guarded([&] { self->OnEvicted(); });
                                                     });
                                                   });
  BeginRequest();
  counted_tls_ = tls_.has_value() ? kTlsBytes : 0;
  if (!account_->Grow(counted_tls_)) {
    counted_tls_ = 0;
    return Close();
  }
  if (!tls_.has_value()) return Read();
  tls_->async_handshake(asio::ssl::stream_base::server,
                        [this, self = shared_from_this()](ErrorCode error) {
                          Guarded([&] { error ? Close() : OnHandshake(); });
                        });
}

void HttpConnection::OnHandshake() {
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(
      SSL_get1_peer_certificate(tls_->native_handle()), X509_free);
  if (certificate != nullptr) certificate_names_ = CertificateNames(certificate.get());
  Read();
}

void HttpConnection::UpdateShare() {
  const bool is_in = stage_ != Stage::kClosed && gives_way();
  if (is_in == is_in_share_) return;
  if (is_in) {
    server_->shares[caller_.address].insert(this);
  } else {
    const auto share = server_->shares.find(caller_.address);
    assert(share != server_->shares.end());
    share->second.erase(this);
    if (share->second.empty()) server_->shares.erase(share);
  }
  is_in_share_ = is_in;
}

bool HttpConnection::is_stalled(Clock::time_point now) const {
  return writing_ &&
         now - written_ >= absl::ToChronoNanoseconds(server_->options.limits.stall_time);
}

void HttpConnection::CheckTimeouts(Clock::time_point now) {
  const HttpLimits& limits = server_->options.limits;
  if (dropped_bytes_ > 0) Read();
  if (writing_ && now - window_start_ >= absl::ToChronoNanoseconds(limits.slow_time)) {
    if (window_bytes_ < limits.slow_bytes) return Close();
    window_start_ = now;
    window_bytes_ = 0;
  }
  if (stage_ != Stage::kAnswer) {
    if (now > deadline_ && !writing_) OnLate();
    return;
  }
  if (!writing_ && now - written_ > absl::ToChronoNanoseconds(limits.silence)) Probe();
}

// Called when the time of the current stage is over.
void HttpConnection::OnLate() {
  const HttpLimits& limits = server_->options.limits;
  const bool has_begun = header_bytes_ > 0 || !pending_.empty();
  if (stage_ == Stage::kHeader && has_begun) {
    return RefuseWith(
        408, absl::StrCat("headers must arrive within ", absl::FormatDuration(limits.header_time)));
  }
  if (stage_ == Stage::kBody) {
    return RefuseWith(408, absl::StrCat("the body must arrive within ",
                                        absl::FormatDuration(limits.request_time)));
  }
  Close();
}

// Sends bytes that the caller ignores. If the caller's process is gone, its kernel answers with a
// reset.
void HttpConnection::Probe() {
  if (writing_ || stage_ != Stage::kAnswer) return;
  std::string due;
  bool begun = false, ended = false;
  {
    absl::MutexLock lock(&answer_->mutex_);
    begun = answer_->begun_;
    ended = answer_->ended_;
    if (!ended) due = answer_->when_silent_;
  }
  if (ended) return Poke();  // Poke may have failed when the answer ended
  if (!due.empty()) {
    answer_->Write(due);
  } else if (input_ended_ && is_http11_ && !begun && !has_sent_some_) {
    out_.push_back({kContinue, 0});
    WriteSome();
  }
}

void HttpConnection::Close() {
  if (std::exchange(stage_, Stage::kClosed) == Stage::kClosed) return;
  const auto self = shared_from_this();
  UpdateShare();
  assert(!caller_.is_extra || server_->extras > 0);
  if (caller_.is_extra) --server_->extras;
  server_->open.erase(this);
  ErrorCode ignored;
  socket_.close(ignored);
  // Stop counting the bytes now. The memory is freed when the connection's pending operations have
  // ended.
  if (account_ == nullptr) return;  // Open has failed
  account_->Shrink(std::exchange(counted_tls_, 0) + std::exchange(counted_buffers_, 0) +
                   std::exchange(counted_header_, 0) + std::exchange(counted_body_, 0));
  for (auto& piece : out_) account_->Shrink(std::exchange(piece.counted, 0));
  if (answer_ == nullptr) return;
  const std::function<void()> gone = answer_->Abandon();
  answer_ = nullptr;
  if (gone) gone();
}

void HttpConnection::BeginRequest() {
  stage_ = Stage::kHeader;
  deadline_ = After(server_->options.limits.header_time);
  parser_.emplace();
  assert(counted_header_ == 0 && counted_body_ == 0);  // the last request has been answered
  parser_->header_limit(static_cast<uint32_t>(server_->options.limits.header_bytes));
  parser_->body_limit(server_->options.limits.body_bytes);
  answer_headers_.clear();
  error_form_ = HttpErrorBody;
  header_bytes_ = header_lines_ = overhead_bytes_ = 0;
  is_folded_ = false;
}

void HttpConnection::Read() {
  if (reading_ || input_ended_ || stage_ == Stage::kClosed) return;
  reading_ = true;
  size_t bytes = kWatchRead;
  if (stage_ == Stage::kHeader) bytes = kHeaderRead;
  if (stage_ == Stage::kBody || dropped_bytes_ > 0) bytes = kBodyRead;
  if (incoming_.capacity() > bytes) {
    std::vector<char>(bytes).swap(incoming_);
    CountBuffers();  // the count shrinks, so it cannot fail
  }
  incoming_.resize(bytes);
  StartRead(asio::buffer(incoming_));
}

void HttpConnection::StartRead(asio::mutable_buffer into) {
  // The request of a new connection has often arrived already: read it now, before other
  // connections get their turns.
  if (std::exchange(is_new_, false) && !tls_.has_value()) {
    ErrorCode error;
    socket_.non_blocking(true, error);
    const size_t bytes = error ? 0 : socket_.read_some(into, error);
    if (error != asio::error::would_block) return Guarded([&] { OnRead(error, bytes); });
  }
  const auto done = [this, self = shared_from_this()](ErrorCode error, size_t bytes) {
    Guarded([&] { OnRead(error, bytes); });
  };
  if (tls_.has_value()) {
    tls_->async_read_some(into, done);
  } else {
    socket_.async_read_some(into, done);
  }
}

void HttpConnection::OnRead(ErrorCode error, size_t bytes) {
  reading_ = false;
  if (stage_ == Stage::kClosed) return;
  if (error == asio::error::eof) return OnInputEnd();
  if (error) return Close();
  if (stage_ == Stage::kLinger || drops_input_) {
    dropped_bytes_ += bytes;
    if (stage_ == Stage::kLinger)
      deadline_ = std::min(linger_end_, After(server_->options.limits.linger_time));
    const uint64_t at_once = server_->options.limits.body_bytes + kDropSlackBytes;
    return dropped_bytes_ < at_once ? Read() : void();
  }
  assert(bytes <= incoming_.size());
  pending_.append(incoming_.data(), bytes);
  if (!CountBuffers()) {
    if (stage_ != Stage::kAnswer) return OnEvicted();
    DropPending();  // if this connection's account was evicted, OnEvicted is called later
    CountBuffers();
    return Read();
  }
  if (stage_ == Stage::kIdle) BeginRequest();
  if (is_reading_request()) Parse();
  CheckPending();
  Read();
}

// The caller has closed its sending half: it may wait for its answer, or it may be gone.
void HttpConnection::OnInputEnd() {
  input_ended_ = true;
  // With TLS, a caller that closed its sending half can receive nothing either.
  if (stage_ != Stage::kAnswer || tls_.has_value()) return Close();
  socket_.async_wait(tcp::socket::wait_error,
                     [this, self = shared_from_this()](ErrorCode) { Guarded([&] { Close(); }); });
  Probe();
}

void HttpConnection::Parse() {
  size_t at = 0;
  while (is_reading_request() && at < pending_.size()) {
    size_t taken = 0;
    const ErrorCode error = ParseSome(absl::string_view(pending_).substr(at), &taken);
    at += taken;
    if (error == http::error::need_more) break;
    if (error) {
      RefuseFault(error);
      break;
    }
    if (stage_ == Stage::kHeader && parser_->is_header_done()) OnHead();
    if (stage_ == Stage::kBody && parser_->is_done()) Handle();
  }
  pending_.erase(0, at);
  if (pending_.empty()) std::string().swap(pending_);
  if (input_ended_ && is_reading_request()) Close();
}

ErrorCode HttpConnection::ParseSome(absl::string_view bytes, size_t* taken) {
  if (stage_ == Stage::kHeader) return ParseHeader(bytes, taken);
  if (parser_->chunked() && bytes.size() < kLastChunkBytes &&
      bytes.find_first_not_of("0\r\n") == bytes.npos) {
    return http::error::need_more;
  }
  if (!ReserveBody(bytes.size())) {
    OnEvicted();
    return {};
  }
  ErrorCode error;
  const size_t before = parser_->get().body().size();
  *taken = parser_->put(asio::const_buffer(bytes.data(), bytes.size()), error);
  assert(*taken <= bytes.size());
  assert(parser_->get().body().size() - before <= *taken);
  overhead_bytes_ += *taken - (parser_->get().body().size() - before);
  return error;
}

ErrorCode HttpConnection::ParseHeader(absl::string_view bytes, size_t* taken) {
  const HttpLimits& limits = server_->options.limits;
  const auto lines_of = [](absl::string_view text) {
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  };
  const absl::string_view head = bytes.substr(0, bytes.find("\r\n\r\n"));
  const size_t lines = header_lines_ + lines_of(head) + (head.size() < bytes.size() ? 1 : 0);
  // the extra line is the request line
  if (lines > limits.header_fields + 1) return kTooManyFields;
  if (!ReserveHeader(lines, header_bytes_ + head.size())) {
    OnEvicted();
    return {};
  }
  ErrorCode error;
  *taken = parser_->put(asio::const_buffer(bytes.data(), bytes.size()), error);
  assert(*taken <= bytes.size());
  // Beast parses only complete headers, each with all of its lines.
  const absl::string_view text = bytes.substr(0, *taken);
  is_folded_ = is_folded_ || absl::StrContains(text, "\r\n ") || absl::StrContains(text, "\r\n\t");
  header_bytes_ += *taken;
  header_lines_ += lines_of(text);
  if (header_bytes_ > limits.header_bytes) return http::error::header_limit;
  return error;
}

// Adds the memory of the header fields to the budget: their bytes in the parser, and their copies
// in the request. Returns false if the budget has no room.
bool HttpConnection::ReserveHeader(size_t lines, size_t bytes) {
  const uint64_t wanted = lines * kFieldBytes + 2 * bytes;
  if (wanted <= counted_header_) return true;
  if (!account_->Grow(wanted - counted_header_)) return false;
  counted_header_ = wanted;
  return true;
}

// Limits the bytes that are not parsed yet: the rest of a header or of a chunk's header, or later
// requests.
void HttpConnection::CheckPending() {
  const HttpLimits& limits = server_->options.limits;
  const std::string over = absl::StrCat(" must be at most ", limits.header_bytes, " bytes");
  if (stage_ == Stage::kHeader && header_bytes_ + pending_.size() > limits.header_bytes) {
    RefuseWith(431, "headers" + over);
  } else if (stage_ == Stage::kBody && pending_.size() > limits.header_bytes) {
    RefuseWith(431, "an HTTP chunk's header or the trailers" + over);
  } else if (stage_ == Stage::kBody && overhead_bytes_ > limits.body_bytes + limits.header_bytes) {
    RefuseWith(413, absl::StrCat("all chunk headers together must be at most ", limits.body_bytes,
                                 " bytes"));
  } else if (pending_.size() > limits.header_bytes) {
    DropPending();
  }
}

// Drops the buffered later requests, and all bytes that still arrive. The connection closes after
// the current answer.
void HttpConnection::DropPending() {
  drops_input_ = true;
  keeps_alive_ = false;
  std::string().swap(pending_);
}

bool HttpConnection::ReserveBody(size_t more) {
  BodyBytes& body = parser_->get().body();
  const uint64_t wanted = body.size() + more;
  if (wanted <= counted_body_) return true;
  // The buffer of a chunked body doubles up to one block, so that its first byte does not take a
  // whole block.
  const uint64_t most = parser_->content_length().value_or(2 * counted_body_);
  const uint64_t to = BodyBytes::CapacityFor(wanted, most);
  if (to <= counted_body_) return true;
  if (!account_->Grow(to - counted_body_)) return false;
  counted_body_ = to;
  body.Reserve(to);
  return true;
}

bool HttpConnection::CountBuffers() {
  const uint64_t now = incoming_.capacity() + pending_.capacity();
  if (now > counted_buffers_) {
    if (!account_->Grow(now - counted_buffers_)) return false;
  } else {
    account_->Shrink(counted_buffers_ - now);
  }
  counted_buffers_ = now;
  return true;
}

// Copies the headers from the parser to request_.
void HttpConnection::TakeHead() {
  auto& message = parser_->get();
  request_.method = std::string(message.method_string());
  const std::string target(message.target());
  request_.path = target.substr(0, target.find('?'));
  request_.query =
      request_.path.size() < target.size() ? target.substr(request_.path.size() + 1) : "";
  request_.headers.clear();
  for (const auto& field : message) {
    request_.headers.emplace_back(absl::AsciiStrToLower(std::string(field.name_string())),
                                  std::string(field.value()));
  }
  message.clear();  // frees the fields; the parser itself knows the body's encoding
  request_.peer = caller_.peer;
  request_.certificate_names = certificate_names_;
  const HttpServer::Options& options = server_->options;
  if (options.answer_headers) answer_headers_ = options.answer_headers(&request_);
  if (options.error_form) error_form_ = options.error_form(request_.path);
}

void HttpConnection::OnHead() {
  const auto& message = parser_->get();
  is_http11_ = message.version() >= 11;
  keeps_alive_ = message.keep_alive() && !server_->draining && !caller_.is_extra;
  TakeHead();
  if (is_folded_)
    return RefuseWith(400, "a header must be on one line; got a header over several lines");
  if (const std::string fault = FaultOf(request_, is_http11_); !fault.empty()) {
    return RefuseWith(400, fault);
  }
  const bool has_body = !parser_->is_done();
  if (std::optional<HttpRefusal> refusal = RefusalOf()) {
    const bool closes = has_body || refusal->status == 400;
    return Refuse(*std::move(refusal), closes);
  }
  stage_ = Stage::kBody;
  deadline_ = After(server_->options.limits.request_time);
  const std::string* expect = request_.Header("expect");
  if (is_http11_ && has_body && expect != nullptr &&
      absl::EqualsIgnoreCase(*expect, "100-continue")) {
    out_.push_back({kContinue, 0});
    WriteSome();
  }
}

HttpRefusal HttpConnection::Refusal(int status, absl::string_view why) const {
  return {status, {{"Content-Type", "application/json"}}, error_form_(status, why)};
}

// Returns the refusal of a request that must not reach its handler; nullopt: the request is
// accepted.
std::optional<HttpRefusal> HttpConnection::RefusalOf() {
  const HttpServer::Options& options = server_->options;
  if (caller_.is_extra && request_.path != kHealth) {
    if (server_->draining) return Refusal(503, "the server is draining; call another server");
    return Refusal(503, absl::StrCat("limit of ", options.limits.connections,
                                     " connections reached; try again later"));
  }
  const std::string* host = request_.Header("host");
  if (host == nullptr || host->empty()) {
    if (is_http11_) return Refusal(400, "host: must be given; got none");
    if (request_.Header("origin") != nullptr) {
      return Refusal(403, "origin: a request with Origin must have a Host; got none");
    }
  } else if (!server_->host_rule.Allows(*host)) {
    const std::string name = Quoted(HostOf(*host));
    LogSometimes(&server_->unknown_hosts, LogLevel::kWarning, "Host refused",
                 {{"host", HostOf(*host).substr(0, kMaxQuotedBytes)},
                  {"peer", caller_.peer},
                  {"why", absl::StrCat("not a name of this server; to accept it, add it to ",
                                       options.hosts_flag)}});
    return Refusal(403, absl::StrCat("Host: ", name, " is not a name of this server; add it to ",
                                     options.hosts_flag, " if it is"));
  }
  if (options.check_head == nullptr) return std::nullopt;
  HttpVerdict verdict = options.check_head(request_);
  is_authenticated_ = is_authenticated_ || verdict.is_authenticated;
  if (verdict.refusal.has_value() && verdict.refusal->status == 401) is_authenticated_ = false;
  UpdateShare();
  return std::move(verdict.refusal);
}

void HttpConnection::Handle() {
  assert(stage_ == Stage::kBody && parser_->is_done());
  request_.body_bytes = std::move(parser_->get().body());
  parser_.reset();
  const bool is_head = request_.method == "HEAD";
  drops_input_ = drops_input_ || !keeps_alive_;
  const uint64_t counted = counted_header_ + counted_body_;
  BeginAnswer(is_head, is_http11_);
  Dispatch(std::exchange(request_, {}), counted);
  // If the answer is ready already, send it now, before other connections get their turns.
  Poke();
}

// Gives the request to its handler. `counted`: bytes counted for the request until the handler
// returns.
void HttpConnection::Dispatch(HttpRequest request, uint64_t counted) {
  const std::shared_ptr<HttpAnswer> answer = HttpAnswer::ForMaker(answer_);
  if (request.body_bytes.empty()) {
    CallHandler(server_->handler, &server_->faults, std::move(request), answer);
    return answer->Release(counted);
  }
  FairPool* lane = request.body_bytes.size() <= server_->options.limits.small_body_bytes
                       ? server_->small_bodies.get()
                       : server_->large_bodies.get();
  assert(lane != nullptr);
  answer->KeepRequest(std::move(request));
  const absl::Status status = lane->Submit(caller_.share, 0, [counted, answer, server = server_] {
    std::optional<HttpRequest> request = answer->TakeRequest();
    if (!request.has_value()) return;
    CallHandler(server->handler, &server->faults, *std::move(request), answer);
    request.reset();
    answer->Release(counted);
  });
  if (status.ok()) return;
  HttpRefusal refusal = Refusal(503, status.message());
  answer->Send(refusal.status, refusal.headers, std::move(refusal.body));
}

// Answers a request that cannot be read, and closes the connection.
void HttpConnection::RefuseFault(ErrorCode error) {
  const HttpLimits& limits = server_->options.limits;
  if (error == http::error::header_limit) {
    return RefuseWith(431, absl::StrCat("headers must be at most ", limits.header_bytes, " bytes"));
  }
  if (error == kTooManyFields) {
    return RefuseWith(431, absl::StrCat("a request must have at most ", limits.header_fields,
                                        " header fields; got more"));
  }
  if (error == http::error::body_limit) {
    return RefuseWith(413, absl::StrCat("the body must be at most ", limits.body_bytes, " bytes"));
  }
  RefuseWith(400, error.message());
}

void HttpConnection::RefuseWith(int status, absl::string_view why) {
  // The parser may have the path of an incomplete header, which decides the form of the error.
  if (stage_ == Stage::kHeader && request_.method.empty()) TakeHead();
  Refuse(Refusal(status, why), /*closes=*/true);
}

void HttpConnection::Refuse(HttpRefusal refusal, bool closes) {
  if (closes) keeps_alive_ = false;
  drops_input_ = drops_input_ || !keeps_alive_;
  const bool is_head = stage_ == Stage::kAnswer ? answer_->is_head_ : request_.method == "HEAD";
  ForgetRequest();
  BeginAnswer(is_head, /*is_chunked=*/true);
  answer_->Send(refusal.status, refusal.headers, std::move(refusal.body));
}

// Frees the received part of a request.
void HttpConnection::ForgetRequest() {
  parser_.reset();
  request_ = {};
  account_->Shrink(std::exchange(counted_header_, 0) + std::exchange(counted_body_, 0));
}

// Called when the budget has evicted this connection: answers 503, unless a part of the answer was
// sent.
void HttpConnection::OnEvicted() {
  if (stage_ == Stage::kAnswer && !has_sent_some_) {
    if (const std::function<void()> gone = answer_->Abandon()) gone();
  } else if (!is_reading_request()) {
    return Close();
  }
  RefuseWith(503, kNoHttpMemory);
  if (!reading_) Read();
}

void HttpConnection::OnFault(absl::string_view why) {
  if (stage_ == Stage::kClosed) return;
  LogSometimes(&server_->faults, LogLevel::kError, "an HTTP connection failed",
               {{"peer", caller_.peer}, {"error", why.substr(0, kMaxQuotedBytes)}});
  Close();
}

void HttpConnection::BeginAnswer(bool is_head, bool is_chunked) {
  stage_ = Stage::kAnswer;
  written_ = Clock::now();
  has_sent_some_ = false;
  const auto poke = [io = io_, weak = weak_from_this()] {
    asio::post(*io, [weak] {
      if (const auto self = weak.lock()) self->Guarded([&] { self->Poke(); });
    });
  };
  answer_ = std::make_shared<HttpAnswer>(
      is_head, is_chunked, keeps_alive_, answer_headers_, error_form_,
      std::exchange(counted_header_, 0) + std::exchange(counted_body_, 0), account_, poke);
}

// Called when the answer has a piece to send, or has ended.
void HttpConnection::Poke() {
  if (stage_ != Stage::kAnswer) return;
  bool is_done = false, is_broken = false, is_lost = false;
  {
    absl::MutexLock lock(&answer_->mutex_);
    is_broken = answer_->is_broken_;
    is_lost = answer_->is_lost_;
    if (!is_lost && (writing_ || answer_->waits_)) return;
    answer_->is_poked_ = false;
    for (auto& piece : answer_->ready_) out_.push_back(std::move(piece));
    answer_->ready_.clear();
    is_done = answer_->ended_ && out_.empty();
  }
  if (is_lost) return Close();
  if (is_done) return is_broken ? Close() : EndAnswer();
  has_sent_some_ = has_sent_some_ || !out_.empty();
  WriteSome();
}

void HttpConnection::WriteSome() {
  if (out_.empty() || std::exchange(writing_, true)) return;
  written_ = window_start_ = Clock::now();
  window_bytes_ = 0;
  StartWrite();
}

void HttpConnection::StartWrite() {
  const asio::const_buffer bytes = asio::buffer(out_.front().bytes) + sent_;
  const auto done = [this, self = shared_from_this()](ErrorCode error, size_t written) {
    Guarded([&] { OnWritten(error, written); });
  };
  if (tls_.has_value()) {
    tls_->async_write_some(bytes, done);
  } else {
    socket_.async_write_some(bytes, done);
  }
}

void HttpConnection::OnWritten(ErrorCode error, size_t bytes) {
  if (stage_ == Stage::kClosed) return;
  if (error) return Close();
  written_ = Clock::now();
  window_bytes_ += bytes;
  sent_ += bytes;
  assert(writing_ && !out_.empty() && sent_ <= out_.front().bytes.size());
  if (sent_ == out_.front().bytes.size()) {
    account_->Shrink(out_.front().counted);
    out_.pop_front();
    sent_ = 0;
  }
  if (!out_.empty()) return StartWrite();
  writing_ = false;
  if (stage_ == Stage::kAnswer) Poke();
}

void HttpConnection::EndAnswer() {
  assert(stage_ == Stage::kAnswer && out_.empty() && sent_ == 0);
  bool keeps_alive = keeps_alive_ && !server_->draining;
  {
    absl::MutexLock lock(&answer_->mutex_);
    answer_->on_gone_ = nullptr;
    if (answer_->is_stream_) account_->SetStreaming(false);
    keeps_alive = keeps_alive && (answer_->is_chunked_ || !answer_->is_stream_);
  }
  answer_.reset();
  if (!keeps_alive || (input_ended_ && pending_.empty())) {
    if (input_ended_) return Close();
    ErrorCode ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
    stage_ = Stage::kLinger;
    linger_end_ = After(server_->options.limits.request_time);
    deadline_ = std::min(linger_end_, After(server_->options.limits.linger_time));
    std::string().swap(pending_);
    CountBuffers();
    return Read();
  }
  if (!pending_.empty()) {
    BeginRequest();
    Parse();
    if (stage_ == Stage::kClosed) return;
    CheckPending();
    CountBuffers();
    return Read();
  }
  stage_ = Stage::kIdle;
  deadline_ = After(server_->options.limits.idle_time);
  Read();
}

}  // namespace hearth
