// KeyBatch: the commands of one call to the shared engine, and their replies.
//
// The caller creates a batch and waits; the loop's thread does the rest until all commands are
// finished. Ownership: shared by the caller and the holders of its commands. The commands' texts
// belong to the caller and are not read after all commands are finished, or `texts` owns them.
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

// Each node has a connection per lane, so that short commands do not wait for values, and reads for
// a request do not wait for background writes.
enum class Lane { kShort, kRead, kWrite };

// A command about one key.
struct KeyCommand {
  enum class Verb { kExists, kGet, kSet, kExtend, kErase };

  Verb verb = Verb::kExists;
  absl::string_view key;
  absl::string_view value;      // kSet
  int64_t ttl_ms = 0;           // kSet, kExtend; kSet with 0: no expiry
  bool only_if_absent = false;  // kSet
  uint64_t max_bytes = 0;       // kGet
  bool after_writes = false;    // kErase: use the write lane

  std::string Format() const;
  ReplyLimits Limits() const { return {verb == Verb::kGet ? max_bytes + 1 : 0, 0}; }
  Lane lane() const;
  // Upper bound of the bytes of the command and its reply.
  uint64_t Cost() const;
};

class KeyBatch {
 public:
  // `texts` owns the commands' texts unless they outlive the call.
  explicit KeyBatch(std::vector<KeyCommand> commands, std::shared_ptr<const void> texts = nullptr);

  size_t size() const { return commands_.size(); }
  const KeyCommand& command(uint32_t index) const { return commands_[index]; }
  uint16_t slot(uint32_t index) const { return answers_[index].slot; }

  // Called by the caller: waits until all commands are finished.
  void Wait() const { all_.WaitForNotification(); }
  // REQUIRES: Wait() has returned.
  absl::StatusOr<RedisReply>& answer(uint32_t index) { return *answers_[index].reply; }

  // The rest: only the loop's thread.
  bool IsFinished(uint32_t index) const { return answers_[index].reply.has_value(); }
  bool AllFinished() const { return left_ == 0; }
  // Ignores a second reply to the same command.
  void Finish(uint32_t index, absl::StatusOr<RedisReply> reply);
  // Counts a redirection or retry of a command and returns their number.
  int CountTry(uint32_t index) { return ++answers_[index].tries; }

  std::optional<EventLoop::Timer> expiry;  // nullopt: none

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

// One command that is being sent to a node.
struct KeyRequest {
  std::shared_ptr<KeyBatch> batch;
  uint32_t index = 0;
  bool asks = false;  // send ASKING first: the node is importing the slot

  const KeyCommand& command() const { return batch->command(index); }
  bool IsWanted() const { return !batch->IsFinished(index); }
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_KEY_BATCH_H_
