#include "cache_store/shared/redis/redis_reply.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace hearth {
namespace {

constexpr uint64_t kErrorBytesMax = 1024;
constexpr absl::string_view kLineEnd = "\r\n";
constexpr uint64_t kFrameBytes = 32;  // bytes around a long text: "$1048576\r\n" and "\r\n"
constexpr int kDepthMax = 8;  // limit of the depth of nested arrays; a reply to CLUSTER SLOTS has 4

absl::Status TooLong() {
  return absl::DataLossError("a reply of Redis is longer than the limit for its command");
}

absl::Status NoAnswer() {
  return absl::DataLossError("the received bytes are not a valid reply of Redis");
}

constexpr size_t kShownBytes = 200;

absl::string_view FirstWord(absl::string_view error) { return error.substr(0, error.find(' ')); }

absl::StatusCode CodeOf(absl::string_view error) {
  static constexpr std::pair<absl::string_view, absl::StatusCode> kCodes[] = {
      {"OOM", absl::StatusCode::kResourceExhausted},
      {"NOPERM", absl::StatusCode::kPermissionDenied},
      {"NOAUTH", absl::StatusCode::kPermissionDenied},
      {"WRONGPASS", absl::StatusCode::kPermissionDenied},
      {"WRONGTYPE", absl::StatusCode::kDataLoss},
      {"MISCONF", absl::StatusCode::kUnavailable},
      {"NOREPLICAS", absl::StatusCode::kUnavailable},
      {"BUSY", absl::StatusCode::kUnavailable},
  };
  for (const auto& [word, code] : kCodes) {
    if (FirstWord(error) == word) return code;
  }
  if (absl::StrContains(error, "not an integer")) return absl::StatusCode::kDataLoss;
  return MeaningOf(error) == ErrorMeaning::kFinal ? absl::StatusCode::kInternal
                                                  : absl::StatusCode::kUnavailable;
}

// Shorter texts are not pooled, because malloc reuses their memory itself.
constexpr size_t kShortestBytes = size_t{16} << 10;

}  // namespace

std::string TextPool::Take(size_t bytes) {
  std::string text;
  // Use a pooled text only if it is not much longer than needed: its surplus memory would not be
  // counted.
  const auto fits = [bytes](const std::string& kept) {
    return kept.capacity() >= bytes && kept.capacity() / 2 <= bytes;
  };
  if (bytes >= kShortestBytes) {
    absl::MutexLock lock(&mutex_);
    // Search from the most recently returned text, which is most likely still in the CPU cache.
    const auto kept = std::find_if(texts_.rbegin(), texts_.rend(), fits);
    if (kept != texts_.rend()) {
      text = std::move(*kept);
      texts_.erase(std::next(kept).base());
    }
  }
  text.resize(bytes);
  return text;
}

void TextPool::Give(std::string text) {
  if (text.capacity() < kShortestBytes || text.capacity() > kLongestBytes) return;
  absl::MutexLock lock(&mutex_);
  // If the pool is full, remove the oldest text: otherwise texts of sizes that nobody needs would
  // fill the pool.
  if (texts_.size() == kKeptTexts) texts_.erase(texts_.begin());
  texts_.push_back(std::move(text));
}

void ReplyReader::Feed(const char* bytes, size_t count) {
  unread_.erase(0, std::exchange(taken_, 0));
  unread_.append(bytes, count);
}

absl::Span<char> ReplyReader::Room() {
  if (text_ == nullptr) return {};
  return absl::MakeSpan(&(*text_)[text_have_], text_->size() - text_have_);
}

void ReplyReader::Filled(size_t count) {
  assert(count <= Room().size());
  text_have_ += count;
}

absl::StatusOr<std::optional<RedisReply>> ReplyReader::Next(const ReplyLimits& limits) {
  if (std::exchange(is_between_, false)) {
    reply_ = RedisReply();
    places_ = {{&reply_, 0}};
    left_ = limits;
    left_.text_bytes = std::max(left_.text_bytes, kErrorBytesMax);
  }
  while (text_ != nullptr || !places_.empty()) {
    const absl::StatusOr<bool> took = text_ == nullptr ? TakeLine() : TakeText();
    if (!took.ok()) return took.status();
    if (!*took) return std::nullopt;
  }
  is_between_ = true;
  return std::move(reply_);
}

absl::StatusOr<bool> ReplyReader::TakeText() {
  const absl::Span<char> room = Room();
  const size_t count = std::min(room.size(), unread_.size() - taken_);
  std::memcpy(room.data(), unread_.data() + taken_, count);
  taken_ += count;
  Filled(count);
  if (count < room.size()) return false;
  if (!absl::EndsWith(*text_, kLineEnd)) return NoAnswer();
  text_->resize(text_->size() - kLineEnd.size());
  text_ = nullptr;
  return true;
}

// Parses one line: a value, the header of a text, or the header of an array whose elements follow.
absl::StatusOr<bool> ReplyReader::TakeLine() {
  const absl::string_view unread = absl::string_view(unread_).substr(taken_);
  const size_t end = unread.find(kLineEnd);
  if (std::min(end, unread.size()) > kErrorBytesMax + kFrameBytes) return TooLong();
  if (end == absl::string_view::npos) return false;
  if (end == 0) return NoAnswer();
  const absl::string_view line = unread.substr(1, end - 1);
  taken_ += end + kLineEnd.size();
  const auto [reply, depth] = places_.back();
  places_.pop_back();
  int64_t number = 0;
  const bool is_text = unread[0] == '+' || unread[0] == '-';
  if (!is_text && !absl::SimpleAtoi(line, &number)) return NoAnswer();
  switch (unread[0]) {
    case '+':
    case '-':
      if (line.size() > left_.text_bytes) return TooLong();
      left_.text_bytes -= line.size();
      reply->kind = unread[0] == '+' ? RedisReply::Kind::kStatus : RedisReply::Kind::kError;
      reply->text = std::string(line);
      return true;
    case ':':
      reply->kind = RedisReply::Kind::kInteger;
      reply->integer = number;
      return true;
    case '$':
      if (number < 0) return true;  // nil, which is the default kind
      if (static_cast<uint64_t>(number) > left_.text_bytes) return TooLong();
      left_.text_bytes -= static_cast<uint64_t>(number);
      reply->kind = RedisReply::Kind::kText;
      reply->text = texts_->Take(static_cast<size_t>(number) + kLineEnd.size());
      text_ = &reply->text;
      text_have_ = 0;
      return true;
    case '*':
      if (number < 0) return true;
      if (number > int64_t{left_.elements} || depth == kDepthMax) return TooLong();
      left_.elements -= static_cast<uint32_t>(number);
      reply->kind = RedisReply::Kind::kArray;
      reply->elements.resize(static_cast<size_t>(number));
      for (size_t i = reply->elements.size(); i-- > 0;) {
        places_.emplace_back(&reply->elements[i], depth + 1);
      }
      return true;
    default:
      return NoAnswer();
  }
}

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

ErrorMeaning MeaningOf(absl::string_view error) {
  static constexpr std::pair<absl::string_view, ErrorMeaning> kMeanings[] = {
      {"MOVED", ErrorMeaning::kMoved},        {"ASK", ErrorMeaning::kAsk},
      {"TRYAGAIN", ErrorMeaning::kTryAgain},  {"READONLY", ErrorMeaning::kReadOnly},
      {"CLUSTERDOWN", ErrorMeaning::kNotNow}, {"LOADING", ErrorMeaning::kNotNow},
      {"MASTERDOWN", ErrorMeaning::kNotNow},
  };
  for (const auto& [word, meaning] : kMeanings) {
    if (FirstWord(error) == word) return meaning;
  }
  // A proxy in front of a single Redis server may not know CLUSTER SLOTS.
  if (absl::StrContains(error, "cluster support disabled") ||
      absl::StartsWith(error, "ERR unknown command")) {
    return ErrorMeaning::kNoCluster;
  }
  return ErrorMeaning::kFinal;
}

std::optional<NodeAddress> TargetOf(absl::string_view error, const NodeAddress& teller) {
  const std::vector<absl::string_view> words = absl::StrSplit(error, ' ');
  if (words.size() != 3) return std::nullopt;
  absl::StatusOr<NodeAddress> address = ParseNodeAddress(words[2], teller.host);
  if (!address.ok()) return std::nullopt;
  return *std::move(address);
}

absl::Status StatusOfError(absl::string_view error) {
  return absl::Status(CodeOf(error), absl::StrCat("redis answers: ",
                                                  absl::CHexEscape(error.substr(0, kShownBytes))));
}

}  // namespace hearth
