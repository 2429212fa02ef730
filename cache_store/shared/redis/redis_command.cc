#include "cache_store/shared/redis/redis_command.h"

#include <hiredis/hiredis.h>

#include <cassert>
#include <utility>
#include <vector>

namespace hearth {
namespace {

constexpr size_t kShortBytes = size_t{4} << 10;
constexpr size_t kJoinedBytes = size_t{64} << 10;

}  // namespace

FormattedCommand::FormattedCommand(absl::Span<const absl::string_view> words) {
  std::vector<const char*> texts;
  std::vector<size_t> sizes;
  for (const absl::string_view word : words) {
    texts.push_back(word.data());
    sizes.push_back(word.size());
  }
  char* bytes = nullptr;
  const int size =
      redisFormatCommandArgv(&bytes, static_cast<int>(words.size()), texts.data(), sizes.data());
  assert(size > 0);
  bytes_.reset(bytes);
  size_ = static_cast<size_t>(size);
}

void FormattedCommand::Free::operator()(char* bytes) const { redisFreeCommand(bytes); }

void OutputQueue::Append(FormattedCommand command) {
  const absl::string_view bytes = command.bytes();
  bytes_ += bytes.size();
  if (bytes.size() > kShortBytes) {
    pieces_.push_back({"", std::make_unique<FormattedCommand>(std::move(command))});
    return;
  }
  if (pieces_.empty() || pieces_.back().whole != nullptr ||
      pieces_.back().joined.size() + bytes.size() > kJoinedBytes) {
    pieces_.emplace_back();
  }
  pieces_.back().joined.append(bytes.data(), bytes.size());
}

absl::string_view OutputQueue::Front() const {
  return pieces_.empty() ? absl::string_view() : pieces_.front().bytes().substr(taken_);
}

void OutputQueue::Consume(size_t count) {
  if (count == 0) return;
  assert(count <= Front().size());
  taken_ += count;
  bytes_ -= count;
  if (taken_ < pieces_.front().bytes().size()) return;
  pieces_.pop_front();
  taken_ = 0;
}

}  // namespace hearth
