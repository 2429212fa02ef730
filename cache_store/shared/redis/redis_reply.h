// ReplyReader: parses the replies of a Redis server. Also: a pool for long texts, the meaning of
// error replies, and the encoding of commands.
//
// The bytes are untrusted. Each reply has limits that are known before it is read; a reply that
// exceeds them or is malformed ends the connection. Thread safety: none, except TextPool.
// Ownership: the caller owns replies. Invariant: the reader holds at most the current reply's limit
// and the bytes of one Feed().
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

// Reuses the memory of long texts. Values arrive on the loop's thread and are released on other
// threads: without the pool each value would use new system memory, which the kernel clears page by
// page. Thread safety: all methods from any thread.
class TextPool {
 public:
  // Together the limit of bytes in flight on one connection.
  static constexpr size_t kKeptTexts = 32, kLongestBytes = size_t{1} << 20;

  // Returns a text of `bytes` bytes with undefined content.
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
  std::string text;  // for kText, kStatus and kError
  std::vector<RedisReply> elements;
};

struct ReplyLimits {
  uint64_t text_bytes = 0;  // of all texts of the reply together; an error may always have 1 KiB
  uint32_t elements = 0;    // of all arrays of the reply together; 0: arrays are malformed
};

class ReplyReader {
 public:
  // `texts` provides memory for long texts, and outlives the reader.
  explicit ReplyReader(TextPool* texts) : texts_(texts) {}
  ReplyReader(const ReplyReader&) = delete;
  ReplyReader& operator=(const ReplyReader&) = delete;

  void Feed(const char* bytes, size_t count);
  // Returns where the next bytes of a long text can be stored without a copy (then call Filled);
  // empty if the next bytes belong to no such text.
  absl::Span<char> Room();
  void Filled(size_t count);
  // Returns the next reply; nullopt if it is incomplete. kDataLoss: malformed; no further reply can
  // be read. Pass the same limits until the reply is complete.
  absl::StatusOr<std::optional<RedisReply>> Next(const ReplyLimits& limits);
  // Returns whether bytes remain that belong to no returned reply.
  bool HasBytes() const { return text_ != nullptr || unread_.size() > taken_; }

 private:
  // Parse the next part of the reply. False: more bytes are needed.
  absl::StatusOr<bool> TakeLine();
  absl::StatusOr<bool> TakeText();

  TextPool* const texts_;
  std::string unread_;
  size_t taken_ = 0;  // bytes of unread_ that were parsed
  bool is_between_ = true;
  RedisReply reply_;
  ReplyLimits left_;  // rest of the current reply's limits
  std::vector<std::pair<RedisReply*, int>>
      places_;  // elements of reply_ to fill, with their depth; the next one is last
  std::string* text_ = nullptr;  // text being received, including its line end; null: none
  size_t text_have_ = 0;         // received bytes of text_
};

std::string FormatCommand(absl::Span<const absl::string_view> words);

enum class ErrorMeaning {
  kMoved,     // another node has the slot
  kAsk,       // another node, which is importing the slot, already has this key
  kTryAgain,  // keys are being moved
  kReadOnly,  // the node is no longer a primary
  kNotNow,    // the node is loading, or its cluster is down
  kNoCluster,
  kFinal,  // an error of the command itself
};

ErrorMeaning MeaningOf(absl::string_view error);

// Returns the target of a kMoved or kAsk error; nullopt if it names none. An empty host means
// `teller`'s host.
std::optional<NodeAddress> TargetOf(absl::string_view error, const NodeAddress& teller);

// Returns the status for callers: kResourceExhausted, kPermissionDenied, kUnavailable, kDataLoss
// (the value has another type), else kInternal. The text is shortened and has no control
// characters.
absl::Status StatusOfError(absl::string_view error);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_REPLY_H_
