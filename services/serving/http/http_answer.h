// HttpAnswer: the answer to one HttpRequest.
//
//   handler's threads --> HttpAnswer <-- HttpConnection, on the server's thread
// The maker adds pieces and calls `poke`; the connection then takes the pieces.
// Thread safety: all methods from any thread, except where only the connection calls them.
// Ownership: shared by the maker and the connection; the last of the two frees it.
// Invariants: (1) after `ended_` nothing is added to `ready_`; (2) after `gone_` nothing is ready;
// (3) `held_` and the counted pieces are counted in `account_`; (4) `request_` is empty after
// either.
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

struct HttpRequest {
  std::string method, path, query;
  BodyBytes body_bytes;
  HttpHeaders headers;  // names in lower case; no trailers
  std::string peer;     // its address and port

  // Null: the request has no such header.
  const std::string* Header(absl::string_view name) const;
  absl::string_view body() const { return body_bytes.view(); }
};

// The answer to one request: whole, or a stream.
class HttpAnswer {
 public:
  // `headers`: sent in addition to the maker's headers. `held`: bytes of `account` that the request
  // holds; they stay counted until the answer ends or Release. `poke` notifies the connection, on
  // any thread.
  HttpAnswer(bool is_head, bool is_chunked, bool keeps_alive, HttpHeaders headers, uint64_t held,
             std::shared_ptr<HttpBudget::Account> account, std::function<void()> poke)
      : is_head_(is_head),
        is_chunked_(is_chunked),
        keeps_alive_(keeps_alive),
        headers_(std::move(headers)),
        account_(std::move(account)),
        poke_(std::move(poke)),
        held_(held) {}
  ~HttpAnswer();
  HttpAnswer(const HttpAnswer&) = delete;
  HttpAnswer& operator=(const HttpAnswer&) = delete;
  // Returns the maker's reference. If it is released before the end, the caller gets 500, or a cut
  // stream.
  static std::shared_ptr<HttpAnswer> ForMaker(std::shared_ptr<HttpAnswer> answer);

  // Sends a whole answer. Adds length, date, connection and, for 429 and 503, the time to retry to
  // `headers`. If the server's budget has no room for the answer, 503 is sent instead. `held`:
  // bytes counted by Hold that belong to `body`; they stay counted until the body is sent.
  void Send(int status, const HttpHeaders& headers, std::string body, uint64_t held = 0)
      ABSL_LOCKS_EXCLUDED(mutex_);

  // Begins a stream; a second call does nothing. The head is sent with the first part.
  // `when_silent` is sent whenever nothing was sent for HttpLimits::silence, also as the first
  // part; empty: nothing.
  void Begin(int status, const HttpHeaders& headers, const std::string& when_silent = "")
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Cancels a stream whose head was not sent yet; Send must follow. False: it was sent.
  bool TakeBack() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns false if the caller is gone, or if the server's budget has no room; in this case the
  // connection is closed and nothing more is sent.
  bool Write(absl::string_view data) ABSL_LOCKS_EXCLUDED(mutex_);
  void End() ABSL_LOCKS_EXCLUDED(mutex_);

  // Counts `bytes` that the answer's maker holds (parsed JSON, collected log probabilities) until
  // the answer ends. Returns false if the server's budget has no room: answer 503.
  bool Hold(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Stops counting `bytes` of Hold, because the maker has freed them.
  void Release(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);

  // Calls `gone` once if the caller hangs up before the end, or if the server takes back the
  // answer's memory; at once if that has happened already.
  void OnGone(std::function<void()> gone) ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends an answer that the maker cannot complete: 500, or a stream that breaks off.
  void Fail() ABSL_LOCKS_EXCLUDED(mutex_);

  // Keeps the request for the handler's job, until the job begins.
  void KeepRequest(HttpRequest request) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns nullopt if the caller gets no answer any more.
  std::optional<HttpRequest> TakeRequest() ABSL_LOCKS_EXCLUDED(mutex_);
  // Drops the answer: nothing of it is sent any more. Returns the OnGone function to call, or null.
  std::function<void()> Abandon() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class HttpConnection;
  // Bytes to send, and the bytes counted for them in the budget.
  struct Piece {
    std::string bytes;
    size_t counted = 0;
  };

  // The first line and the headers; `length` below 0: a stream.
  std::string Head(int status, const HttpHeaders& headers, int64_t length) const;
  enum class Part { kHead, kNext, kLast };
  // Sends a part of a stream, or keeps its head. Returns false if the caller is gone.
  bool Put(std::string bytes, Part part) ABSL_LOCKS_EXCLUDED(mutex_);
  void Append(Piece piece) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EndLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes the connection close at once. Allocates nothing.
  void Lose() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void DropReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const bool is_head_, is_chunked_, keeps_alive_;
  const HttpHeaders headers_;
  const std::shared_ptr<HttpBudget::Account> account_;
  const std::function<void()> poke_;
  absl::Mutex mutex_;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_stream_ ABSL_GUARDED_BY(mutex_) = false;
  bool waits_ ABSL_GUARDED_BY(mutex_) = false;  // a stream's head is ready but must not be sent yet
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;       // nothing of it is sent any more
  bool is_lost_ ABSL_GUARDED_BY(mutex_) = false;    // close at once: no memory for the answer
  bool is_broken_ ABSL_GUARDED_BY(mutex_) = false;  // close once all that is ready is sent
  bool is_poked_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<HttpRequest> request_ ABSL_GUARDED_BY(mutex_);  // until its handler begins
  std::deque<Piece> ready_ ABSL_GUARDED_BY(mutex_);
  uint64_t held_ ABSL_GUARDED_BY(mutex_);  // counted for request and maker, until the end
  std::string when_silent_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> on_gone_ ABSL_GUARDED_BY(mutex_);
};

// Bytes that an answer's maker holds for a shorter time than the answer lasts. Thread safety: none.
// Ownership: the answer must outlive the hold.
class HttpHold {
 public:
  explicit HttpHold(HttpAnswer* answer) : answer_(answer) {}
  ~HttpHold() { answer_->Release(bytes_); }
  HttpHold(const HttpHold&) = delete;
  HttpHold& operator=(const HttpHold&) = delete;

  bool Add(uint64_t bytes);  // as HttpAnswer::Hold

 private:
  HttpAnswer* const answer_;
  uint64_t bytes_ = 0;
};

// The message of a 503 for lack of memory.
inline constexpr char kNoHttpMemory[] =
    "the server has no memory left for this request or its answer; try again later or send less";
// If `code` is empty, the status decides: 401 and 429 have a code.
std::string HttpErrorBody(int status, absl::string_view message, absl::string_view param = "",
                          absl::string_view code = "");
// Headers of a page that must not be framed or cached, and loads nothing from other sites.
HttpHeaders PageHeaders(const std::string& content_type);

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_HTTP_HTTP_ANSWER_H_
