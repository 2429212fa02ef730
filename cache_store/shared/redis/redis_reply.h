// ReplyReader: takes the answers of a Redis server out of the bytes that it sends. Beside it, the
// memory of long ones, what an error among them means for a client, and commands as bytes.
//
// The bytes are a stranger's. Each answer has limits that are known before it is read; what goes
// beyond them, or is no answer, ends the connection. Thread safety: none, TextPool apart.
// Ownership: answers are the caller's.
// Invariant: it holds at most the limit of the answer that is read and the bytes of one Feed.
#ifndef HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_REPLY_H_
#define HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_REPLY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "cache_store/shared/redis/redis_options.h"

namespace hearth {

// Keeps the memory of long texts for those that come next. Values come one after another, on the
// loop's thread, and are done with on others: each would be memory new from the system, cleared
// page by page. Thread safety: all methods from any thread.
class TextPool {
 public:
  // Together as much as may be under way on one connection.
  static constexpr size_t kKeptTexts = 32, kLongestBytes = size_t{1} << 20;

  // Of that many bytes; which ones is not said.
  std::string Take(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void Give(std::string text) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::Mutex mutex_;
  std::vector<std::string> texts_ ABSL_GUARDED_BY(mutex_);
};

struct RedisReply {
  enum class Kind { kNil, kInteger, kText, kStatus, kError, kArray };

  Kind kind = Kind::kNil;
  int64_t integer = 0;
  std::string text;  // of kText, kStatus and kError
  std::vector<RedisReply> elements;
};

struct ReplyLimits {
  uint64_t text_bytes = 0;  // in all of its texts together; an error may always have 1 KiB
  uint32_t elements = 0;    // of all of its arrays together; 0: an array is no answer
};

class ReplyReader {
 public:
  // `texts`: where the memory of long ones comes from. It outlives the reader.
  explicit ReplyReader(TextPool* texts) : texts_(texts) {}
  ReplyReader(const ReplyReader&) = delete;
  ReplyReader& operator=(const ReplyReader&) = delete;

  void Feed(const char* bytes, size_t count);
  // Where the next bytes can be put without a copy, as Filled then says; empty while they are not
  // those of a text.
  absl::Span<char> Room();
  void Filled(size_t count);
  // The next answer; null: its end has not come yet. kDataLoss: no further one can be read. The
  // limits stay the same until the answer is whole.
  absl::StatusOr<std::optional<RedisReply>> Next(const ReplyLimits& limits);
  // Whether bytes are left that no answer has.
  bool HasBytes() const { return text_ != nullptr || unread_.size() > taken_; }

 private:
  // Each goes on with the answer. False: more bytes must come first.
  absl::StatusOr<bool> TakeLine();
  absl::StatusOr<bool> TakeText();

  TextPool* const texts_;
  std::string unread_;
  size_t taken_ = 0;  // of these
  bool is_between_ = true;
  RedisReply reply_;
  ReplyLimits left_;                                 // of the answer that is read
  std::vector<std::pair<RedisReply*, int>> places_;  // of it, to be filled, and in how many arrays
                                                     // each lies; the next one is last
  std::string* text_ = nullptr;                      // while one comes, with the end of its line
  size_t text_have_ = 0;                             // bytes of it that came
};

std::string FormatCommand(absl::Span<const absl::string_view> words);

enum class ErrorMeaning {
  kMoved,     // another node has the slot
  kAsk,       // another node has this key already, and is to have the slot
  kTryAgain,  // keys are on their way
  kReadOnly,  // it was a primary, and is none any more
  kNotNow,    // it loads, or its cluster is down
  kNoCluster,
  kFinal,  // the command's own error
};

ErrorMeaning MeaningOf(absl::string_view error);

// Where an error of kMoved or kAsk points to; null: nowhere. A host that is left out is `teller`'s.
std::optional<NodeAddress> TargetOf(absl::string_view error, const NodeAddress& teller);

// As a caller gets it: kResourceExhausted, kPermissionDenied, kUnavailable, kDataLoss (the value is
// of another kind), else kInternal. Its text is cut, and free of control characters.
absl::Status StatusOfError(absl::string_view error);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_REPLY_H_
