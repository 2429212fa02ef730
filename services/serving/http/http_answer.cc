#include "services/serving/http/http_answer.h"

#include <algorithm>
#include <boost/beast/http/status.hpp>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "nlohmann/json.hpp"

namespace hearth {
namespace {

namespace http = boost::beast::http;

// Small parts of a stream that wait together are sent together.
constexpr size_t kPieceBytes = size_t{64} << 10;

constexpr char kNoRoom[] =
    "the server has no memory left for this request or its answer; try again later, with less";

// "Not Found".
const char* Reason(int status) {
  return http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status))).data();
}

HttpHeaders JsonHeaders() { return {{"Content-Type", "application/json"}}; }

}  // namespace

HttpAnswer::State::~State() {
  absl::MutexLock lock(&mutex);
  DropReady();
  account->Shrink(std::exchange(held, 0));
}

std::string HttpAnswer::State::Head(int status, const HttpHeaders& headers, int64_t length,
                                    bool closes) const {
  std::string head = absl::StrCat(
      "HTTP/1.1 ", status, " ", Reason(status), "\r\nDate: ",
      absl::FormatTime("%a, %d %b %Y %H:%M:%S GMT\r\n", absl::Now(), absl::UTCTimeZone()));
  for (const auto& [name, value] : headers) absl::StrAppend(&head, name, ": ", value, "\r\n");
  if (length >= 0 && status != 204) {
    absl::StrAppend(&head, "Content-Length: ", length, "\r\n");
  } else if (length < 0 && is_chunked) {
    absl::StrAppend(&head, "Transfer-Encoding: chunked\r\n");
  }
  closes = closes || !keeps_alive || (length < 0 && !is_chunked);
  absl::StrAppend(&head, closes ? "Connection: close\r\n\r\n" : "\r\n");
  return head;
}

void HttpAnswer::State::Append(Piece piece) {
  mutex.AssertHeld();
  if (piece.bytes.empty()) return;
  if (!ready.empty() && ready.back().bytes.size() + piece.bytes.size() <= kPieceBytes) {
    ready.back().bytes.append(piece.bytes);
    ready.back().counted += piece.counted;
    return;
  }
  ready.push_back(std::move(piece));
}

void HttpAnswer::State::End() {
  mutex.AssertHeld();
  ended = true;
  request.reset();
  account->Shrink(std::exchange(held, 0));
}

void HttpAnswer::State::Release(uint64_t bytes) {
  absl::MutexLock lock(&mutex);
  if (ended) return;  // all was released
  assert(held >= bytes);
  held -= bytes;
  account->Shrink(bytes);
}

std::optional<HttpRequest> HttpAnswer::State::TakeRequest() {
  absl::MutexLock lock(&mutex);
  return std::exchange(request, std::nullopt);
}

void HttpAnswer::State::DropReady() {
  mutex.AssertHeld();
  for (const Piece& piece : ready) account->Shrink(piece.counted);
  ready.clear();
}

void HttpAnswer::State::PutWhole(std::string head, std::string body, uint64_t counted) {
  if (is_head) body.clear();
  {
    absl::MutexLock lock(&mutex);
    if (ended || gone) {
      account->Shrink(counted);
      return;
    }
    const uint64_t of_head = std::min<uint64_t>(counted, head.size());
    Append({std::move(head), body.empty() ? counted : of_head});
    if (!body.empty()) Append({std::move(body), counted - of_head});
    End();
    if (std::exchange(is_poked, true)) return;
  }
  poke();
}

bool HttpAnswer::State::Write(absl::string_view data) {
  if (is_head || data.empty()) return true;
  if (!is_chunked) return Put(std::string(data), false);
  return Put(absl::StrCat(absl::Hex(data.size()), "\r\n", data, "\r\n"), false);
}

bool HttpAnswer::State::Put(std::string bytes, bool is_end) {
  const size_t size = bytes.size();
  const bool fits = account->Grow(size);
  bool is_first = false;
  {
    absl::MutexLock lock(&mutex);
    if (ended || gone) {
      if (fits) account->Shrink(size);
      return false;
    }
    if (fits) {
      Append({std::move(bytes), size});
    } else {
      is_broken = superseded = true;  // closing the connection calls on_gone
      DropReady();
    }
    if (is_end || !fits) End();
    is_first = !std::exchange(is_poked, true);
  }
  // A poke during a write does nothing, except for an answer that lost its memory.
  if (is_first || !fits) poke();
  return fits;
}

bool HttpAnswer::State::Supersede() {
  const std::string body = HttpErrorBody(503, kNoRoom);
  std::string head = Head(503, JsonHeaders(), static_cast<int64_t>(body.size()), /*closes=*/true);
  if (!is_head) head += body;
  std::function<void()> on_lost;
  bool is_first = false;
  {
    absl::MutexLock lock(&mutex);
    if (begun || ended || gone) return false;
    begun = superseded = true;
    Append({std::move(head), 0});
    End();
    on_lost = std::exchange(on_gone, nullptr);
    is_first = !std::exchange(is_poked, true);
  }
  if (is_first) poke();
  if (on_lost) on_lost();
  return true;
}

void HttpAnswer::State::Break() {
  {
    absl::MutexLock lock(&mutex);
    if (ended || gone) return;
    is_broken = superseded = true;
    DropReady();
    End();
    is_poked = true;
  }
  try {
    poke();
  } catch (...) {
    // The connection looks at its answer again when it has been silent.
  }
}

std::function<void()> HttpAnswer::State::Abandon() {
  absl::MutexLock lock(&mutex);
  gone = true;
  DropReady();
  request.reset();
  std::function<void()> call = std::exchange(on_gone, nullptr);
  return ended && !superseded ? nullptr : call;
}

HttpAnswer::~HttpAnswer() { Fail(); }

// A lack of memory may be why it fails, and then there is none for the 500 either.
void HttpAnswer::Fail() {
  try {
    SendFailure();
  } catch (...) {
    state_->Break();
  }
}

void HttpAnswer::SendFailure() {
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
    Send(500, JsonHeaders(), HttpErrorBody(500, "no answer was made"));
  }
}

void HttpAnswer::Send(int status, const HttpHeaders& headers, std::string body, uint64_t held) {
  {
    absl::MutexLock lock(&state_->mutex);
    if (state_->ended || state_->gone) return;
    state_->begun = true;
    assert(state_->held >= held);
    state_->held -= held;  // it is the piece's from now on
  }
  const auto head_of = [this](int code, const HttpHeaders& all, const std::string& text) {
    return state_->Head(code, all, static_cast<int64_t>(text.size()), /*closes=*/false);
  };
  std::string head = head_of(status, headers, body);
  uint64_t counted = head.size() + std::max<uint64_t>(held, state_->is_head ? 0 : body.size());
  if (!state_->account->Grow(counted - held)) {
    state_->account->Shrink(held);
    counted = 0;
    body = HttpErrorBody(503, kNoRoom);
    head = head_of(503, JsonHeaders(), body);
  }
  state_->PutWhole(std::move(head), std::move(body), counted);
}

void HttpAnswer::Begin(int status, const HttpHeaders& headers, const std::string& when_silent) {
  {
    absl::MutexLock lock(&state_->mutex);
    if (state_->ended || state_->gone) return;
    state_->begun = state_->is_stream = true;
  }
  state_->account->SetStreaming(true);
  state_->Put(state_->Head(status, headers, -1, /*closes=*/false), /*is_end=*/false);
  // After the head: the connection's thread writes it when it looks for a caller who is gone.
  absl::MutexLock lock(&state_->mutex);
  state_->when_silent = when_silent;
}

bool HttpAnswer::Write(absl::string_view data) { return state_->Write(data); }

void HttpAnswer::End() {
  state_->Put(state_->is_chunked && !state_->is_head ? "0\r\n\r\n" : "", /*is_end=*/true);
}

bool HttpHold::Add(uint64_t bytes) {
  if (!answer_->Hold(bytes)) return false;
  bytes_ += bytes;
  return true;
}

void HttpAnswer::Release(uint64_t bytes) { state_->Release(bytes); }

bool HttpAnswer::Hold(uint64_t bytes) {
  if (!state_->account->Grow(bytes)) return false;
  absl::MutexLock lock(&state_->mutex);
  if (state_->ended) {
    state_->account->Shrink(bytes);
  } else {
    state_->held += bytes;
  }
  return true;
}

void HttpAnswer::OnGone(std::function<void()> gone) {
  {
    absl::MutexLock lock(&state_->mutex);
    if (!state_->gone && !state_->superseded) {
      state_->on_gone = std::move(gone);
      return;
    }
  }
  gone();
}

const std::string* HttpRequest::Header(absl::string_view name) const {
  for (const auto& header : headers) {
    if (header.first == name) return &header.second;
  }
  return nullptr;
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
