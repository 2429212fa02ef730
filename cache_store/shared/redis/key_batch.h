// KeyBatch: the Redis commands of one call of the shared engine, and their replies.
//
// The caller creates a batch and waits, until the loop's thread has finished all commands.
// Ownership: the caller and the commands in progress share the batch. The texts of the commands
// (keys and values) belong to the caller, which keeps them until all commands are finished, or to
// `texts`.
#ifndef HEARTH_CACHE_STORE_SHARED_REDIS_KEY_BATCH_H_
#define HEARTH_CACHE_STORE_SHARED_REDIS_KEY_BATCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/notification.h"
#include "cache_store/shared/redis/event_loop.h"
#include "cache_store/shared/redis/redis_reply.h"

namespace hearth {

// The kind of a command. Each node has one connection for each lane, so that short commands do not
// wait for long values, and reads for a request do not wait for background writes.
enum class Lane { kShort, kRead, kWrite };

// One Redis command for one key.
struct KeyCommand {
  enum class Verb { kExists, kGet, kSet, kExtend, kErase };

  Verb verb = Verb::kExists;
  absl::string_view key;
  absl::string_view value;      // used by kSet
  int64_t ttl_ms = 0;           // used by kSet and kExtend; kSet with 0: no expiry
  bool only_if_absent = false;  // used by kSet: keep an existing value
  uint64_t max_bytes = 0;       // used by kGet: limit of the value
  bool after_writes = false;    // used by kErase: sent after all earlier writes

  std::string Format() const;
  ReplyLimits Limits() const { return {verb == Verb::kGet ? max_bytes + 1 : 0, 0}; }
  Lane lane() const;
  // Returns an upper bound of the bytes of the command and its reply.
  uint64_t Cost() const;
};

class KeyBatch {
 public:
  // `texts`: owns the keys and values of the commands; null if they outlive the call.
  explicit KeyBatch(std::vector<KeyCommand> commands, std::shared_ptr<const void> texts = nullptr);

  size_t size() const { return commands_.size(); }
  const KeyCommand& command(uint32_t index) const { return commands_[index]; }
  uint16_t slot(uint32_t index) const { return answers_[index].slot; }

  // Waits until all commands are finished. For the caller's thread.
  void Wait() const { all_.WaitForNotification(); }
  // Returns the reply of a command. REQUIRES: Wait() has returned.
  absl::StatusOr<RedisReply>& answer(uint32_t index) { return *answers_[index].reply; }

  // The following methods are only for the loop's thread.
  bool IsFinished(uint32_t index) const { return answers_[index].reply.has_value(); }
  bool AllFinished() const { return left_ == 0; }
  // Finishes a command with its reply. Ignores a second reply to the same command.
  void Finish(uint32_t index, absl::StatusOr<RedisReply> reply);
  // Counts a redirection or retry of a command, and returns their number so far.
  int CountTry(uint32_t index) { return ++answers_[index].tries; }

  std::optional<EventLoop::Timer> expiry;  // timer of the batch's deadline; nullopt: no deadline

 private:
  struct Answer {
    std::optional<absl::StatusOr<RedisReply>> reply;
    uint16_t slot = 0;
    int tries = 0;
  };

  const std::shared_ptr<const void> texts_;
  const std::vector<KeyCommand> commands_;
  std::vector<Answer> answers_;
  size_t left_;
  absl::Notification all_;
};

// One command of a batch, on its way to a node.
struct KeyRequest {
  std::shared_ptr<KeyBatch> batch;
  uint32_t index = 0;
  bool asks = false;  // send ASKING before the command, because the node is importing the slot

  const KeyCommand& command() const { return batch->command(index); }
  bool IsWanted() const { return !batch->IsFinished(index); }
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_KEY_BATCH_H_
