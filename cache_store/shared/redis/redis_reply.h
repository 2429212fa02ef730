// ReplyReader: parses the replies of a Redis server. TextPool: reuses the memory of long texts.
// Also: the meaning of error replies, and the encoding of commands.
//
// The bytes are untrusted. Each reply has limits, which are known before the reply is read. A reply
// that is malformed or exceeds its limits ends the connection. Thread safety: none, except
// TextPool. Ownership: the caller owns replies. Invariant: the reader holds at most the bytes of
// the current reply's limit and of one Feed().
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

// Reuses the memory of long texts. Values arrive on the loop's thread, and other threads free them.
// Without the pool, each value would get new memory from the system, which the kernel clears page
// by page. Thread safety: all methods from any thread.
class TextPool {
 public:
  // Number of pooled texts, and the longest pooled text. Their product is the limit of bytes in
  // flight on one connection.
  static constexpr size_t kKeptTexts = 32, kLongestBytes = size_t{1} << 20;

  // Returns a text with `bytes` bytes of undefined contents.
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
  std::string text;  // contents of a kText, kStatus or kError
  std::vector<RedisReply> elements;
};

struct ReplyLimits {
  // limit for all texts of the reply together; an error reply may always have 1 KiB
  uint64_t text_bytes = 0;
  uint32_t elements = 0;  // limit for all arrays of the reply together; 0: arrays are malformed
};

class ReplyReader {
 public:
  // `texts`: gives memory for long texts, and outlives the reader.
  explicit ReplyReader(TextPool* texts) : texts_(texts) {}
  ReplyReader(const ReplyReader&) = delete;
  ReplyReader& operator=(const ReplyReader&) = delete;

  void Feed(const char* bytes, size_t count);
  // Returns the memory in which the next bytes of a long text can be stored without a copy; then
  // call Filled(). Empty if the next bytes do not belong to a long text.
  absl::Span<char> Room();
  void Filled(size_t count);
  // Returns the next reply; nullopt if it is incomplete. kDataLoss: it is malformed, and no further
  // reply can be read. Pass the same `limits` until the reply is complete.
  absl::StatusOr<std::optional<RedisReply>> Next(const ReplyLimits& limits);
  // Returns whether received bytes remain that do not belong to a returned reply.
  bool HasBytes() const { return text_ != nullptr || unread_.size() > taken_; }

 private:
  // Parse the next part of the reply. Return false if more bytes are needed.
  absl::StatusOr<bool> TakeLine();
  absl::StatusOr<bool> TakeText();

  TextPool* const texts_;
  std::string unread_;
  size_t taken_ = 0;  // number of bytes of unread_ that were parsed
  bool is_between_ = true;
  RedisReply reply_;
  ReplyLimits left_;  // remaining limits of the current reply
  // elements of reply_ that are still to be filled, with their depth; the last one is next
  std::vector<std::pair<RedisReply*, int>> places_;
  std::string* text_ = nullptr;  // text that is being received, with its line end; null: none
  size_t text_have_ = 0;         // number of received bytes of text_
};

std::string FormatCommand(absl::Span<const absl::string_view> words);

enum class ErrorMeaning {
  kMoved,     // the hash slot is on another node
  kAsk,       // another node, which is importing the slot, has the key already
  kTryAgain,  // the keys are being moved; repeat the command later
  kReadOnly,  // the node is a replica
  kNotNow,    // the node is loading its data, or the cluster is down
  kNoCluster,
  kFinal,  // a permanent error of the command
};

ErrorMeaning MeaningOf(absl::string_view error);

// Returns the address in a kMoved or kAsk error; nullopt if it has none. An empty host means the
// host of `teller`, the node that sent the error.
std::optional<NodeAddress> TargetOf(absl::string_view error, const NodeAddress& teller);

// Converts an error reply to a status: kResourceExhausted, kPermissionDenied, kUnavailable,
// kDataLoss (the value has another type), otherwise kInternal. The text is shortened, and control
// characters are removed.
absl::Status StatusOfError(absl::string_view error);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_REDIS_REPLY_H_
