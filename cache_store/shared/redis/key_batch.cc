#include "cache_store/shared/redis/key_batch.h"

#include <cassert>
#include <string>

#include "absl/strings/str_cat.h"
#include "cache_store/shared/redis/slot_map.h"

namespace hearth {
namespace {

constexpr uint64_t kWordsBytes = 128;  // bytes of a command's fixed words, and of a short reply
// limit of short values, such as a tenant's numbers
constexpr uint64_t kShortValueBytes = uint64_t{4} << 10;

}  // namespace

std::string KeyCommand::Format() const {
  const std::string number =
      absl::StrCat(verb == Verb::kGet ? static_cast<int64_t>(max_bytes) : ttl_ms);
  switch (verb) {
    case Verb::kExists:
      return FormatCommand({"EXISTS", key});
    case Verb::kGet:
      // The end of GETRANGE is inclusive, so this command reads max_bytes + 1 bytes: a longer value
      // is noticed without reading all of it.
      return FormatCommand({"GETRANGE", key, "0", number});
    case Verb::kSet: {
      std::vector<absl::string_view> words = {"SET", key, value};
      if (ttl_ms > 0) words.insert(words.end(), {"PX", number});
      if (only_if_absent) words.push_back("NX");
      return FormatCommand(words);
    }
    case Verb::kExtend:
      return FormatCommand({"PEXPIRE", key, number, "GT"});
    case Verb::kErase:
      break;
  }
  return FormatCommand({"UNLINK", key});
}

Lane KeyCommand::lane() const {
  if (value.size() > kShortValueBytes || after_writes) return Lane::kWrite;
  return max_bytes > kShortValueBytes ? Lane::kRead : Lane::kShort;
}

uint64_t KeyCommand::Cost() const { return kWordsBytes + key.size() + value.size() + max_bytes; }

KeyBatch::KeyBatch(std::vector<KeyCommand> commands, std::shared_ptr<const void> texts)
    : texts_(std::move(texts)),
      commands_(std::move(commands)),
      answers_(commands_.size()),
      left_(commands_.size()) {
  for (size_t i = 0; i < commands_.size(); ++i) answers_[i].slot = KeySlot(commands_[i].key);
  if (left_ == 0) all_.Notify();
}

void KeyBatch::Finish(uint32_t index, absl::StatusOr<RedisReply> reply) {
  if (IsFinished(index)) return;
  if (reply.ok()) {
    answers_[index].reply = std::move(reply);
  } else {
    // Copy the status, because the loop's thread keeps the original and gives it to several
    // commands.
    answers_[index].reply = absl::Status(reply.status().code(), reply.status().message());
  }
  assert(left_ > 0);
  if (--left_ == 0) all_.Notify();
}

}  // namespace hearth
