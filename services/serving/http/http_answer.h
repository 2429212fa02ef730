// HttpAnswer: the answer to one HttpRequest.
//
//   handler's threads --> HttpAnswer <-- HttpConnection, on the server's thread
// The maker (a handler, or a thread that the handler gave the answer to) adds pieces and calls
// `poke`; the connection then takes the pieces.
// Thread safety: all methods from any thread, except where only the connection calls them.
// Ownership: shared by the maker and the connection; the last of the two frees it.
// Invariants: (1) after `ended_` nothing is added to `ready_`; (2) after `gone_` nothing is ready;
// (3) `held_` and the counted pieces are counted in `account_`; (4) after `ended_` or `gone_`,
// `request_` is empty.
#ifndef HEARTH_SERVICES_SERVING_HTTP_HTTP_ANSWER_H_
#define HEARTH_SERVICES_SERVING_HTTP_HTTP_ANSWER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "services/serving/http/body_bytes.h"
#include "services/serving/http/http_budget.h"

namespace hearth {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;
// Returns the JSON body of an error answer in the form of one API.
using HttpErrorForm = std::string (*)(int status, absl::string_view message);

struct HttpRequest {
  std::string method, path, query;
  BodyBytes body_bytes;
  HttpHeaders headers;  // names in lower case, without trailers
  std::string peer;     // address and port of the caller
  // CertificateNames of the client certificate that the TLS handshake verified
  std::vector<std::string> certificate_names;

  // Returns the value of a header; null if the request does not have the header.
  const std::string* Header(absl::string_view name) const;
  absl::string_view body() const { return body_bytes.view(); }
};

// The answer to one request: a whole body, or a stream.
class HttpAnswer {
 public:
  // `headers`: sent in addition to the maker's headers. `error_form`: form of the errors that the
  // maker does not send itself. `held`: bytes of the request that `account` counts until the answer
  // ends or Release. `poke`: notifies the connection, from any thread.
  HttpAnswer(bool is_head, bool is_chunked, bool keeps_alive, HttpHeaders headers,
             HttpErrorForm error_form, uint64_t held, std::shared_ptr<HttpBudget::Account> account,
             std::function<void()> poke)
      : is_head_(is_head),
        is_chunked_(is_chunked),
        keeps_alive_(keeps_alive),
        headers_(std::move(headers)),
        error_form_(error_form),
        account_(std::move(account)),
        poke_(std::move(poke)),
        held_(held) {}
  ~HttpAnswer();
  HttpAnswer(const HttpAnswer&) = delete;
  HttpAnswer& operator=(const HttpAnswer&) = delete;
  // Returns the reference that the maker gets. If the maker drops it before the answer's end, the
  // caller gets status 500, or a stream that is cut off.
  static std::shared_ptr<HttpAnswer> ForMaker(std::shared_ptr<HttpAnswer> answer);

  // Sends a whole answer. Adds length, date, connection and, for 429 and 503, the time to retry to
  // `headers`. If the server's budget has no room for the answer, 503 is sent instead. `held`:
  // bytes of `body` that Hold has counted; they stay counted until the body is sent.
  void Send(int status, const HttpHeaders& headers, std::string body, uint64_t held = 0)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Begins a stream; a second call does nothing. The head is sent with the first part of the body.
  // `when_silent` is sent whenever nothing was sent for HttpLimits::silence, even before the first
  // part; empty: nothing is sent.
  void Begin(int status, const HttpHeaders& headers, const std::string& when_silent = "")
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Cancels a stream. Returns true if its head was not sent yet: Send must follow. Returns false if
  // the head was sent.
  bool TakeBack() ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends a part of a stream. Returns false if the caller is gone, or if the server's budget has no
  // room; without room, the connection is closed and nothing more is sent.
  bool Write(absl::string_view data) ABSL_LOCKS_EXCLUDED(mutex_);
  void End() ABSL_LOCKS_EXCLUDED(mutex_);

  // Counts `bytes` that the maker holds (parsed JSON, collected log probabilities) until the answer
  // ends. Returns false if the server's budget has no room: the maker should answer 503.
  bool Hold(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Stops counting `bytes` of Hold: the maker has freed them.
  void Release(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls `gone` once if the caller hangs up before the end, or if the budget evicts the answer. If
  // that has happened already, calls it at once.
  void OnGone(std::function<void()> gone) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends an answer that the maker cannot complete: status 500, or a stream that breaks off.
  void Fail() ABSL_LOCKS_EXCLUDED(mutex_);

  // Stores the request until the handler's job takes it.
  void KeepRequest(HttpRequest request) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the stored request; nullopt if the caller gets no answer any more.
  std::optional<HttpRequest> TakeRequest() ABSL_LOCKS_EXCLUDED(mutex_);
  // Drops the answer; nothing more of it is sent. Returns the function that OnGone stored, which
  // the caller must call; null: there is none.
  std::function<void()> Abandon() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class HttpConnection;
  // Bytes to send, and the bytes counted for them in the budget.
  struct Piece {
    std::string bytes;
    size_t counted = 0;
  };

  // Returns the status line and the headers. `length` below 0: a stream.
  std::string Head(int status, const HttpHeaders& headers, int64_t length) const;
  enum class Part { kHead, kNext, kLast };
  // Adds a part of a stream to the bytes to send. The head waits for the next part. Returns false
  // if the caller is gone or the budget has no room.
  bool Put(std::string bytes, Part part) ABSL_LOCKS_EXCLUDED(mutex_);
  void Append(Piece piece) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the connection close at once, without allocating memory.
  void Lose() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const bool is_head_, is_chunked_, keeps_alive_;
  const HttpHeaders headers_;
  const HttpErrorForm error_form_;
  const std::shared_ptr<HttpBudget::Account> account_;
  const std::function<void()> poke_;
  absl::Mutex mutex_;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_stream_ ABSL_GUARDED_BY(mutex_) = false;
  // a stream's head waits for the first part of the body
  bool waits_ ABSL_GUARDED_BY(mutex_) = false;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;  // no more bytes of the answer are sent
  // the connection must close at once: no memory for the answer
  bool is_lost_ ABSL_GUARDED_BY(mutex_) = false;
  // the connection must close when all ready pieces are sent
  bool is_broken_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_poked_ ABSL_GUARDED_BY(mutex_) = false;
  // The stored request, until its handler begins.
  std::optional<HttpRequest> request_ ABSL_GUARDED_BY(mutex_);
  std::deque<Piece> ready_ ABSL_GUARDED_BY(mutex_);
  // bytes counted for the request and the maker until the end
  uint64_t held_ ABSL_GUARDED_BY(mutex_);
  std::string when_silent_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> on_gone_ ABSL_GUARDED_BY(mutex_);
};

// HttpHold: counts bytes that an answer's maker frees before the answer ends. Thread safety: none.
// Ownership: the answer must outlive the hold.
class HttpHold {
 public:
  explicit HttpHold(HttpAnswer* answer) : answer_(answer) {}
  ~HttpHold() { answer_->Release(bytes_); }
  HttpHold(const HttpHold&) = delete;
  HttpHold& operator=(const HttpHold&) = delete;

  bool Add(uint64_t bytes);  // calls HttpAnswer::Hold

 private:
  HttpAnswer* const answer_;
  uint64_t bytes_ = 0;
};

// Message of a 503 answer for lack of memory.
inline constexpr char kNoHttpMemory[] =
    "the server has no memory left for this request or its answer; try again later or send less";
// Return the JSON body of an error answer in the form of OpenAI's API. If `code` is empty, it
// follows from the status: 401 and 429 have a code.
std::string HttpErrorBody(int status, absl::string_view message, absl::string_view param,
                          absl::string_view code);
std::string HttpErrorBody(int status, absl::string_view message);
// Returns the headers of a page that must not be framed or cached, and loads nothing from other
// sites.
HttpHeaders PageHeaders(const std::string& content_type);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_HTTP_HTTP_ANSWER_H_
