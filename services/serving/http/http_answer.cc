#include "services/serving/http/http_answer.h"

#include <algorithm>
#include <boost/beast/http/status.hpp>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"
#include "services/rpc/status_conversion.h"

namespace hearth {
namespace {

namespace http = boost::beast::http;

// Parts of a stream that wait to be sent are joined to pieces of at most this size.
constexpr size_t kPieceBytes = size_t{64} << 10;

// Returns the reason phrase of a status: "Not Found" for 404.
const char* Reason(int status) {
  return http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status))).data();
}

HttpHeaders JsonHeaders() { return {{"Content-Type", "application/json"}}; }

}  // namespace

HttpAnswer::~HttpAnswer() {
  absl::MutexLock lock(&mutex_);
  DropReady();
  account_->Shrink(std::exchange(held_, 0));
}

std::shared_ptr<HttpAnswer> HttpAnswer::ForMaker(std::shared_ptr<HttpAnswer> answer) {
  HttpAnswer* const raw = answer.get();
  return {raw, [answer = std::move(answer)](HttpAnswer* made) { made->Fail(); }};
}

std::string HttpAnswer::Head(int status, const HttpHeaders& headers, int64_t length) const {
  std::string head = absl::StrCat(
      "HTTP/1.1 ", status, " ", Reason(status), "\r\nDate: ",
      absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT\r\n", absl::Now(), absl::UTCTimeZone()));
  for (const HttpHeaders* const some : {&headers_, &headers}) {
    for (const auto& [name, value] : *some) absl::StrAppend(&head, name, ": ", value, "\r\n");
  }
  if (status == 429 || status == 503) {
    absl::StrAppend(&head, "Retry-After-Ms: ", kDefaultRetryAfterMs,
                    "\r\nRetry-After: ", (kDefaultRetryAfterMs + 999) / 1000, "\r\n");
  }
  if (length >= 0 && status != 204) {
    absl::StrAppend(&head, "Content-Length: ", length, "\r\n");
  } else if (length < 0 && is_chunked_) {
    absl::StrAppend(&head, "Transfer-Encoding: chunked\r\n");
  }
  const bool closes = !keeps_alive_ || (length < 0 && !is_chunked_);
  absl::StrAppend(&head, closes ? "Connection: close\r\n\r\n" : "\r\n");
  return head;
}

void HttpAnswer::Append(Piece piece) {
  mutex_.AssertHeld();
  assert(!ended_);
  if (piece.bytes.empty()) return;
  if (!ready_.empty() && ready_.back().bytes.size() + piece.bytes.size() <= kPieceBytes) {
    ready_.back().bytes.append(piece.bytes);
    ready_.back().counted += piece.counted;
    return;
  }
  ready_.push_back(std::move(piece));
}

void HttpAnswer::EndLocked() {
  mutex_.AssertHeld();
  ended_ = true;
  request_.reset();
  account_->Shrink(std::exchange(held_, 0));
}

void HttpAnswer::Lose() {
  mutex_.AssertHeld();
  is_lost_ = true;
  DropReady();
  EndLocked();
}

void HttpAnswer::DropReady() {
  mutex_.AssertHeld();
  for (const Piece& piece : ready_) account_->Shrink(piece.counted);
  ready_.clear();
}

void HttpAnswer::Send(int status, const HttpHeaders& headers, std::string body, uint64_t held) {
  {
    absl::MutexLock lock(&mutex_);
    if (ended_ || gone_) return;
    begun_ = true;
    assert(held_ >= held);
    held_ -= held;  // these bytes are counted for the piece from now on
  }
  std::string head = Head(status, headers, static_cast<int64_t>(body.size()));
  uint64_t counted = head.size() + std::max<uint64_t>(held, is_head_ ? 0 : body.size());
  assert(counted >= held);
  if (!account_->Grow(counted - held)) {
    account_->Shrink(held);
    counted = 0;
    body = error_form_(503, kNoHttpMemory);
    head = Head(503, JsonHeaders(), static_cast<int64_t>(body.size()));
  }
  if (is_head_) body.clear();
  {
    absl::MutexLock lock(&mutex_);
    if (ended_ || gone_) return account_->Shrink(counted);
    const uint64_t of_head = std::min<uint64_t>(counted, head.size());
    Append({std::move(head), body.empty() ? counted : of_head});
    if (!body.empty()) Append({std::move(body), counted - of_head});
    EndLocked();
    if (std::exchange(is_poked_, true)) return;
  }
  poke_();
}

void HttpAnswer::Begin(int status, const HttpHeaders& headers, const std::string& when_silent) {
  {
    absl::MutexLock lock(&mutex_);
    if (ended_ || gone_ || std::exchange(is_stream_, true)) return;
  }
  account_->SetStreaming(true);
  Put(Head(status, headers, -1), Part::kHead);
  // Set after Put: before the head is there, the connection's thread must not send `when_silent_`.
  absl::MutexLock lock(&mutex_);
  when_silent_ = when_silent;
}

bool HttpAnswer::Write(absl::string_view data) {
  if (is_head_ || data.empty()) return true;
  if (!is_chunked_) return Put(std::string(data), Part::kNext);
  return Put(absl::StrCat(absl::Hex(data.size()), "\r\n", data, "\r\n"), Part::kNext);
}

void HttpAnswer::End() { Put(is_chunked_ && !is_head_ ? "0\r\n\r\n" : "", Part::kLast); }

bool HttpAnswer::TakeBack() {
  absl::MutexLock lock(&mutex_);
  if (begun_) return false;
  if (std::exchange(waits_, false)) DropReady();
  if (std::exchange(is_stream_, false)) account_->SetStreaming(false);
  return true;
}

bool HttpAnswer::Put(std::string bytes, Part part) {
  const size_t size = bytes.size();
  const bool fits = account_->Grow(size);
  bool is_first = false;
  {
    absl::MutexLock lock(&mutex_);
    // After TakeBack there is no stream, but another thread may still write to it.
    if (ended_ || gone_ || (!is_stream_ && part != Part::kLast)) {
      if (fits) account_->Shrink(size);
      return false;
    }
    if (!fits) {
      Lose();  // closing the connection calls on_gone_
    } else {
      Append({std::move(bytes), size});
      if (part == Part::kLast) EndLocked();
    }
    waits_ = part == Part::kHead;
    begun_ = !waits_;
    is_first = !waits_ && !std::exchange(is_poked_, true);
  }
  // While a write is in progress, poke_ does nothing, unless the budget had no room for the answer.
  if (is_first || !fits) poke_();
  return fits;
}

void HttpAnswer::Fail() {
  const bool begun = !TakeBack();
  {
    absl::MutexLock lock(&mutex_);
    if (ended_ || gone_) return;
    is_broken_ = begun;
  }
  try {
    if (begun) {
      Put("", Part::kLast);
    } else {
      Send(500, JsonHeaders(), error_form_(500, "the server made no answer"));
    }
    return;
  } catch (...) {
    // There is not even memory for the 500 answer: close the connection without an answer.
  }
  {
    absl::MutexLock lock(&mutex_);
    if (ended_ || gone_) return;
    Lose();
    is_poked_ = true;
  }
  try {
    poke_();
  } catch (...) {
    // The connection checks its answer again after HttpLimits::silence.
  }
}

bool HttpAnswer::Hold(uint64_t bytes) {
  if (!account_->Grow(bytes)) return false;
  absl::MutexLock lock(&mutex_);
  if (ended_) {
    account_->Shrink(bytes);
  } else {
    held_ += bytes;
  }
  return true;
}

void HttpAnswer::Release(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  if (ended_) return;  // EndLocked has released all held bytes
  assert(held_ >= bytes);
  held_ -= bytes;
  account_->Shrink(bytes);
}

void HttpAnswer::OnGone(std::function<void()> gone) {
  {
    absl::MutexLock lock(&mutex_);
    if (!gone_ && !is_lost_) {
      on_gone_ = std::move(gone);
      return;
    }
  }
  gone();
}

void HttpAnswer::KeepRequest(HttpRequest request) {
  absl::MutexLock lock(&mutex_);
  request_ = std::move(request);
}

std::optional<HttpRequest> HttpAnswer::TakeRequest() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(request_, std::nullopt);
}

std::function<void()> HttpAnswer::Abandon() {
  absl::MutexLock lock(&mutex_);
  gone_ = true;
  DropReady();
  request_.reset();
  std::function<void()> call = std::exchange(on_gone_, nullptr);
  return ended_ && !is_lost_ ? nullptr : call;
}

bool HttpHold::Add(uint64_t bytes) {
  if (!answer_->Hold(bytes)) return false;
  bytes_ += bytes;
  return true;
}

const std::string* HttpRequest::Header(absl::string_view name) const {
  for (const auto& header : headers) {
    if (header.first == name) return &header.second;
  }
  return nullptr;
}

std::string HttpErrorBody(int status, absl::string_view message, absl::string_view param,
                          absl::string_view code) {
  if (code.empty() && status == 401) code = "invalid_api_key";
  if (code.empty() && status == 429) code = "rate_limit_exceeded";
  const char* const type = status == 429 ? "rate_limit_error" : "invalid_request_error";
  const auto text = [](absl::string_view text) {
    return text.empty() ? nlohmann::json() : nlohmann::json(std::string(text));
  };
  const nlohmann::json body = {{"error",
                                {{"message", std::string(message)},
                                 {"type", status < 500 ? type : "server_error"},
                                 {"param", text(param)},
                                 {"code", text(code)}}}};
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string HttpErrorBody(int status, absl::string_view message) {
  return HttpErrorBody(status, message, "", "");
}

HttpHeaders PageHeaders(const std::string& content_type) {
  return {{"Content-Type", content_type},
          {"Cache-Control", "no-store"},
          {"X-Content-Type-Options", "nosniff"},
          {"Referrer-Policy", "no-referrer"},
          {"Content-Security-Policy",
           "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
           "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
           "frame-ancestors 'none'"}};
}

}  // namespace hearth
