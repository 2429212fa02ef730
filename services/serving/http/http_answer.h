// HttpAnswer: the answer to one HttpRequest.
//
//   handler's threads           server's thread
//   HttpAnswer --> State <-- HttpConnection
// The answer's maker puts pieces into the state and calls `poke`, upon which the connection takes
// them.
// Thread safety: an HttpAnswer and its State may be used from any thread.
// Ownership: the HttpAnswer and the connection share the State; the last one frees it.
// Invariants: (1) after `ended` nothing is added to `ready`; (2) after `gone` nothing is ready; (3)
// `held` and the counted pieces are counted in `account`; (4) after `ended` or `gone` there is no
// `request`.
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

// The answer to one request: whole, or a stream. If it is destroyed before its end, the caller gets
// 500, or a stream that breaks off.
class HttpAnswer {
 public:
  struct State;  // shared with the connection
  explicit HttpAnswer(std::shared_ptr<State> state) : state_(std::move(state)) {}
  ~HttpAnswer();
  HttpAnswer(const HttpAnswer&) = delete;
  HttpAnswer& operator=(const HttpAnswer&) = delete;

  // Length, date and connection are added to `headers`. If the server's budget has no room for the
  // answer, 503 is sent instead. `held`: the part of what Hold counted that is the body's; it stays
  // counted until the body is sent.
  void Send(int status, const HttpHeaders& headers, std::string body, uint64_t held = 0);

  // Begins a stream. `when_silent` is sent if nothing else was for a second; empty: nothing.
  void Begin(int status, const HttpHeaders& headers, const std::string& when_silent = "");
  // Returns false if the caller is gone, or the server's budget has no room: then the connection is
  // closed, and nothing is sent any more.
  bool Write(absl::string_view data);
  void End();

  // Counts `bytes` that the answer's maker holds (parsed JSON, collected log probabilities) until
  // the answer ends. Returns false if the server's budget has no room: answer 503.
  bool Hold(uint64_t bytes);
  // Counts `bytes` of Hold no more, because the maker has freed them.
  void Release(uint64_t bytes);

  // Calls `gone` once if the caller hangs up before the end, at once if it already did; also if
  // the server took the answer's memory back.
  void OnGone(std::function<void()> gone);

  // Ends an answer that its maker cannot make: 500, or a stream that breaks off.
  void Fail();

 private:
  void SendFailure();

  const std::shared_ptr<State> state_;
};

// Bytes that the maker of an answer holds for less than the time of its answer. Thread safety:
// none. Ownership: the answer must outlive the hold.
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

// The body of an error, as OpenAI's API has it: {"error": {"message", "type", "param", "code"}}.
std::string HttpErrorBody(int status, absl::string_view message, absl::string_view param = "");
// The headers of a page that must not be framed or kept, and loads nothing from elsewhere.
HttpHeaders PageHeaders(const std::string& content_type);

struct HttpAnswer::State {
  // Bytes to send, and how many the budget counts for them.
  struct Piece {
    std::string bytes;
    size_t counted = 0;
  };

  State(bool is_head, bool is_chunked, bool keeps_alive, uint64_t held,
        std::shared_ptr<HttpBudget::Account> account, std::function<void()> poke)
      : is_head(is_head),
        is_chunked(is_chunked),
        keeps_alive(keeps_alive),
        account(std::move(account)),
        poke(std::move(poke)),
        held(held) {}
  ~State();

  // The first line and the headers; `length` below 0: a stream.
  std::string Head(int status, const HttpHeaders& headers, int64_t length, bool closes) const;
  // Sends a whole answer; `counted`: what the budget counts for it.
  void PutWhole(std::string head, std::string body, uint64_t counted) ABSL_LOCKS_EXCLUDED(mutex);
  // Sends a part of a stream. Return false if the caller is gone.
  bool Write(absl::string_view data) ABSL_LOCKS_EXCLUDED(mutex);
  bool Put(std::string bytes, bool is_end) ABSL_LOCKS_EXCLUDED(mutex);
  // Answers 503 in place of an answer that has not begun, and calls `on_gone` for its maker.
  // Returns false if the answer has begun.
  bool Supersede() ABSL_LOCKS_EXCLUDED(mutex);
  // Has the connection closed; allocates nothing.
  void Break() ABSL_LOCKS_EXCLUDED(mutex);
  // The connection is closed: nothing is sent any more. Returns the function to call, or null.
  std::function<void()> Abandon() ABSL_LOCKS_EXCLUDED(mutex);

  // Counts `bytes` of `held` no more.
  void Release(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex);
  // Nullopt: it was taken, or the caller gets no answer to it any more.
  std::optional<HttpRequest> TakeRequest() ABSL_LOCKS_EXCLUDED(mutex);

  void Append(Piece piece) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
  void DropReady() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);

  const bool is_head, is_chunked, keeps_alive;
  const std::shared_ptr<HttpBudget::Account> account;
  const std::function<void()> poke;
  absl::Mutex mutex;
  bool begun ABSL_GUARDED_BY(mutex) = false;
  bool is_stream ABSL_GUARDED_BY(mutex) = false;
  bool ended ABSL_GUARDED_BY(mutex) = false;
  bool gone ABSL_GUARDED_BY(mutex) = false;        // the connection is closed
  bool superseded ABSL_GUARDED_BY(mutex) = false;  // the server answered in the maker's place
  bool is_broken ABSL_GUARDED_BY(mutex) = false;   // close once all that is ready is sent
  bool is_poked ABSL_GUARDED_BY(mutex) = false;
  std::optional<HttpRequest> request ABSL_GUARDED_BY(mutex);  // until its handler begins
  std::deque<Piece> ready ABSL_GUARDED_BY(mutex);
  uint64_t held ABSL_GUARDED_BY(mutex);  // of the request and its maker, until the end
  std::string when_silent ABSL_GUARDED_BY(mutex);
  std::function<void()> on_gone ABSL_GUARDED_BY(mutex);
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_HTTP_HTTP_ANSWER_H_
