// KeyBatch: the commands of one call to the shared engine, and their answers as they come in.
//
// Made by the caller, who then waits; everything else is done by the loop's thread, until all
// commands are finished. Ownership: shared by the caller and whoever still has a command of it; the
// texts of commands are the caller's, and are not looked at once all are finished, or what is given
// with them owns them.
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

// Each node has a connection for each: what is short waits for no value, and what a request waits
// for not for what is written behind it.
enum class Lane { kShort, kRead, kWrite };

// A command about one key.
struct KeyCommand {
  enum class Verb { kExists, kGet, kSet, kPutOff, kErase };

  Verb verb = Verb::kExists;
  absl::string_view key;
  absl::string_view value;      // kSet
  int64_t ttl_ms = 0;           // kSet, kPutOff; 0 of a kSet: for ever
  bool only_if_absent = false;  // kSet
  uint64_t max_bytes = 0;       // kGet
  bool after_writes = false;    // kErase: in the lane of values that are written

  std::string Format() const;
  ReplyLimits Limits() const { return {verb == Verb::kGet ? max_bytes + 1 : 0, 0}; }
  Lane lane() const;
  // Bytes of it and of its answer, at most.
  uint64_t Cost() const;
};

class KeyBatch {
 public:
  // `texts`: the owner of the commands' texts, unless they outlive the call.
  explicit KeyBatch(std::vector<KeyCommand> commands, std::shared_ptr<const void> texts = nullptr);

  size_t size() const { return commands_.size(); }
  const KeyCommand& command(uint32_t index) const { return commands_[index]; }
  uint16_t slot(uint32_t index) const { return answers_[index].slot; }

  // The caller: waits until all commands are finished.
  void Wait() const { all_.WaitForNotification(); }
  // REQUIRES: Wait has returned.
  absl::StatusOr<RedisReply>& answer(uint32_t index) { return *answers_[index].reply; }

  // The loop's thread.
  bool IsFinished(uint32_t index) const { return answers_[index].reply.has_value(); }
  bool AllFinished() const { return left_ == 0; }
  // A second answer to the same command is ignored.
  void Finish(uint32_t index, absl::StatusOr<RedisReply> reply);
  // Counts a redirection or another try of a command, and returns how many there were.
  int CountTry(uint32_t index) { return ++answers_[index].tries; }

  std::optional<EventLoop::Timer> expiry;  // while one is set

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

// One command on its way to a node.
struct KeyRequest {
  std::shared_ptr<KeyBatch> batch;
  uint32_t index = 0;
  bool asks = false;  // was sent to a node that is to get the slot

  const KeyCommand& command() const { return batch->command(index); }
  bool IsWanted() const { return !batch->IsFinished(index); }
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_KEY_BATCH_H_
