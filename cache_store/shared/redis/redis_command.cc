#include "cache_store/shared/redis/redis_command.h"

#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

constexpr size_t kShortBytes = size_t{4} << 10;
constexpr size_t kJoinedBytes = size_t{64} << 10;
constexpr size_t kFrameBytes = 24;  // of a word: "$", its length, the ends of two lines

}  // namespace

std::string FormatCommand(absl::Span<const absl::string_view> words) {
  size_t bytes = kFrameBytes;
  for (const absl::string_view word : words) bytes += kFrameBytes + word.size();
  std::string command;
  command.reserve(bytes);
  absl::StrAppend(&command, "*", words.size(), "\r\n");
  for (const absl::string_view word : words) {
    absl::StrAppend(&command, "$", word.size(), "\r\n", word, "\r\n");
  }
  return command;
}

void OutputQueue::Append(std::string command) {
  bytes_ += command.size();
  const bool is_joined = command.size() <= kShortBytes && !pieces_.empty() &&
                         pieces_.back().size() + command.size() <= kJoinedBytes;
  if (is_joined) {
    pieces_.back().append(command);
  } else {
    pieces_.push_back(std::move(command));
  }
}

absl::string_view OutputQueue::Front() const {
  return pieces_.empty() ? absl::string_view() : absl::string_view(pieces_.front()).substr(taken_);
}

void OutputQueue::Consume(size_t count) {
  if (count == 0) return;
  assert(count <= Front().size());
  taken_ += count;
  bytes_ -= count;
  if (taken_ < pieces_.front().size()) return;
  pieces_.pop_front();
  taken_ = 0;
}

}  // namespace hearth
