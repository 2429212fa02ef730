// HttpAnswer::State: what the maker of an answer and the connection share.
//
//   handler's threads                         server's thread
//   HttpAnswer --> State <-- HttpConnection   Put() queues pieces and calls `poke`, by which the
//                                             connection takes them.
// Thread safety: all methods from any thread; fields by their annotations.
// Ownership: shared by the HttpAnswer and the connection; the last one frees it.
// Invariants: (1) after `ended` nothing is added to `ready`; (2) after `gone` nothing is ready;
// (3) `held` and the counted pieces are counted in `account`.
#ifndef HEARTH_SERVICES_SERVING_HTTP_HTTP_ANSWER_H_
#define HEARTH_SERVICES_SERVING_HTTP_HTTP_ANSWER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "services/serving/http/http_budget.h"
#include "services/serving/http/http_server.h"

namespace hearth {

struct HttpAnswer::State {
  // Bytes to send, and how many of them the budget counts: all, or none.
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
  // Sends a whole answer; `counted`: the budget counts it.
  void PutWhole(std::string head, std::string body, bool counted) ABSL_LOCKS_EXCLUDED(mutex);
  // Sends a part of a stream. Return false if the caller is gone.
  bool Write(absl::string_view data) ABSL_LOCKS_EXCLUDED(mutex);
  bool Put(std::string bytes, bool is_end) ABSL_LOCKS_EXCLUDED(mutex);
  // Answers 503 in place of an answer that has not begun, and tells its maker that the caller is
  // gone. Returns false if the answer has begun.
  bool Supersede() ABSL_LOCKS_EXCLUDED(mutex);
  // The connection is closed: nothing is sent any more. Returns the function to call, or null.
  std::function<void()> Abandon() ABSL_LOCKS_EXCLUDED(mutex);

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
  std::deque<Piece> ready ABSL_GUARDED_BY(mutex);
  uint64_t held ABSL_GUARDED_BY(mutex);  // of the request and its maker, until the end
  std::string when_silent ABSL_GUARDED_BY(mutex);
  std::function<void()> on_gone ABSL_GUARDED_BY(mutex);
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_HTTP_HTTP_ANSWER_H_
