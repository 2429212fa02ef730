#include "cache_store/shared/redis/redis_reply.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace hearth {
namespace {

constexpr uint64_t kErrorBytesMax = 1024;
constexpr uint64_t kLongBytes = uint64_t{16} << 10;  // of a text that goes past hiredis
constexpr absl::string_view kLineEnd = "\r\n";
constexpr uint64_t kFrameBytes = 32;  // "$1048576\r\n" and "\r\n"

absl::Status TooLong() {
  return absl::DataLossError("an answer of Redis is longer than its limit");
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

// Shorter ones are malloc's matter, which keeps them itself.
constexpr size_t kShortestBytes = size_t{16} << 10;

}  // namespace

std::string TextPool::Take(size_t bytes) {
  std::string text;
  {
    absl::MutexLock lock(&mutex_);
    // The last one given is the one that a cache still has. One much longer than it need be would
    // hold memory that nobody counts.
    for (size_t i = texts_.size(); i-- > 0;) {
      const size_t capacity = texts_[i].capacity();
      if (capacity < bytes || capacity / 2 > bytes) continue;
      text = std::move(texts_[i]);
      texts_.erase(texts_.begin() + static_cast<ptrdiff_t>(i));
      kept_bytes_ -= capacity;
      break;
    }
  }
  text.resize(bytes);
  return text;
}

void TextPool::Give(std::string text) {
  const size_t capacity = text.capacity();
  if (capacity < kShortestBytes) return;
  absl::MutexLock lock(&mutex_);
  if (capacity > kKeptBytes) return;
  // The oldest make room: sizes that nobody asks for any more would keep the others out.
  size_t oldest = 0;
  for (; kept_bytes_ + capacity > kKeptBytes; ++oldest) kept_bytes_ -= texts_[oldest].capacity();
  texts_.erase(texts_.begin(), texts_.begin() + static_cast<ptrdiff_t>(oldest));
  kept_bytes_ += capacity;
  texts_.push_back(std::move(text));
}

size_t TextPool::kept_bytes() const {
  absl::MutexLock lock(&mutex_);
  return kept_bytes_;
}

ReplyReader::ReplyReader(TextPool* texts)
    : texts_(texts), reader_(redisReaderCreateWithFunctions(Functions())) {
  assert(reader_ != nullptr);
  reader_->privdata = this;
  reader_->maxbuf = 0;  // keeps its buffer: values come one after another
}

void ReplyReader::Feed(const char* bytes, size_t count) {
  const size_t taken = is_long_ ? AddToLongText(bytes, count) : 0;
  if (taken < count) redisReaderFeed(reader_.get(), bytes + taken, count - taken);
}

// "$", a number, the end of the line: where that is all there, and the number is long enough.
void ReplyReader::BeginLongText() {
  const absl::string_view unread(reader_->buf + reader_->pos, reader_->len - reader_->pos);
  const size_t end = unread.substr(0, kFrameBytes).find(kLineEnd);
  if (end == absl::string_view::npos || end < 2 || unread[0] != '$') return;
  const absl::string_view digits = unread.substr(1, end - 1);
  uint64_t bytes = 0;
  if (!std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) ||
      !absl::SimpleAtoi(digits, &bytes) || bytes < kLongBytes || bytes > left_.text_bytes) {
    return;
  }
  is_long_ = true;
  long_text_ = texts_->Take(bytes + kLineEnd.size());
  long_have_ = 0;
  const size_t begin = end + kLineEnd.size();
  reader_->pos += begin + AddToLongText(unread.data() + begin, unread.size() - begin);
  if (reader_->pos < reader_->len) return;
  void* nothing = nullptr;
  redisReaderGetReply(reader_.get(), &nothing);  // lets it drop what was taken
  assert(nothing == nullptr);
}

size_t ReplyReader::AddToLongText(const char* bytes, size_t count) {
  const absl::Span<char> room = Room();
  const size_t taken = std::min(count, room.size());
  std::memcpy(room.data(), bytes, taken);
  Filled(taken);
  return taken;
}

absl::Span<char> ReplyReader::Room() {
  if (!is_long_) return {};
  return absl::MakeSpan(&long_text_[long_have_], long_text_.size() - long_have_);
}

void ReplyReader::Filled(size_t count) {
  assert(is_long_ && count <= long_text_.size() - long_have_);
  long_have_ += count;
}

absl::StatusOr<std::optional<RedisReply>> ReplyReader::NextLongText() {
  if (long_have_ < long_text_.size()) return std::nullopt;
  is_long_ = false;
  is_between_ = true;
  if (!absl::EndsWith(long_text_, kLineEnd)) {
    return absl::DataLossError("a text of Redis does not end where it should");
  }
  RedisReply reply;
  reply.kind = RedisReply::Kind::kText;
  reply.text = std::move(long_text_);
  reply.text.resize(reply.text.size() - kLineEnd.size());
  return reply;
}

absl::StatusOr<std::optional<RedisReply>> ReplyReader::Next(const ReplyLimits& limits) {
  if (std::exchange(is_between_, false)) {
    left_ = limits;
    left_.text_bytes = std::max(left_.text_bytes, kErrorBytesMax);
    BeginLongText();
  }
  if (is_long_) return NextLongText();
  void* made = nullptr;
  if (redisReaderGetReply(reader_.get(), &made) != REDIS_OK) {
    // What a function below refuses, hiredis takes for a lack of memory.
    if (reader_->err == REDIS_ERR_OOM) return TooLong();
    return absl::DataLossError(absl::StrCat("not an answer of Redis: ", reader_->errstr));
  }
  if (made == nullptr) {
    // What is not taken yet is the beginning of one text.
    if (reader_->len - reader_->pos > left_.text_bytes + kFrameBytes) {
      return TooLong();
    }
    return std::nullopt;
  }
  is_between_ = true;
  const std::unique_ptr<RedisReply> reply(static_cast<RedisReply*>(made));
  return std::move(*reply);
}

// A place in its array, or a root. Arrays have all of their places from the start.
RedisReply* ReplyReader::Place(const redisReadTask* task, RedisReply::Kind kind) {
  RedisReply* reply = nullptr;
  if (task->parent == nullptr) {
    reply = new RedisReply;
  } else {
    auto* array = static_cast<RedisReply*>(task->parent->obj);
    assert(static_cast<size_t>(task->idx) < array->elements.size());
    reply = &array->elements[task->idx];
  }
  reply->kind = kind;
  return reply;
}

// A task has the private data of its root.
ReplyReader* ReplyReader::Of(const redisReadTask* task) {
  return static_cast<ReplyReader*>(task->privdata);
}

void* ReplyReader::MakeText(const redisReadTask* task, char* bytes, size_t count) {
  ReplyReader* self = Of(task);
  if (count > self->left_.text_bytes) return nullptr;
  self->left_.text_bytes -= count;
  const RedisReply::Kind kind = task->type == REDIS_REPLY_ERROR    ? RedisReply::Kind::kError
                                : task->type == REDIS_REPLY_STATUS ? RedisReply::Kind::kStatus
                                                                   : RedisReply::Kind::kText;
  RedisReply* reply = Place(task, kind);
  reply->text.assign(bytes, count);
  return reply;
}

void* ReplyReader::MakeArray(const redisReadTask* task, int elements) {
  ReplyReader* self = Of(task);
  if (elements < 0 || static_cast<uint32_t>(elements) > self->left_.elements) return nullptr;
  self->left_.elements -= static_cast<uint32_t>(elements);
  RedisReply* reply = Place(task, RedisReply::Kind::kArray);
  reply->elements.resize(static_cast<size_t>(elements));
  return reply;
}

void* ReplyReader::MakeInteger(const redisReadTask* task, long long value) {
  RedisReply* reply = Place(task, RedisReply::Kind::kInteger);
  reply->integer = value;
  return reply;
}

void* ReplyReader::MakeNil(const redisReadTask* task) {
  return Place(task, RedisReply::Kind::kNil);
}

void ReplyReader::Drop(void* reply) { delete static_cast<RedisReply*>(reply); }

redisReplyObjectFunctions* ReplyReader::Functions() {
  static redisReplyObjectFunctions functions = {&MakeText, &MakeArray, &MakeInteger, &MakeNil,
                                                &Drop};
  return &functions;
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
  // A proxy before one Redis may not know the command.
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
