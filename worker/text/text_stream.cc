#include "worker/text/text_stream.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {

absl::Status ValidateStopStrings(const std::vector<std::string>& stop_strings) {
  if (stop_strings.size() > kMaxStopStrings) {
    return absl::InvalidArgumentError(absl::StrCat("stop: has ", stop_strings.size(),
                                                   " strings; the limit is ", kMaxStopStrings));
  }
  for (size_t i = 0; i < stop_strings.size(); ++i) {
    const std::string& stop = stop_strings[i];
    if (stop.empty() || stop.size() > kMaxStopStringBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "stop[", i, "]: has ", stop.size(), " bytes; must be in [1, ", kMaxStopStringBytes, "]"));
    }
    if (const auto offset = FindInvalidUtf8(stop); offset.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat("stop[", i, "]: is not valid UTF-8 at byte ", *offset));
    }
  }
  return absl::OkStatus();
}

// Decodes only the last tokens, from the start of a character: kMaxStopStringBytes bytes or more
// before the last token.
bool EndsWithStopString(const Tokenizer& tokenizer, const std::vector<std::string>& stop_strings,
                        absl::Span<const int32_t> ids) {
  assert(!ids.empty());
  if (stop_strings.empty()) return false;
  const size_t last = ids.size() - 1;
  size_t begin = last, bytes = 0;
  bool within_character = false;
  while (begin > 0 && (bytes < kMaxStopStringBytes || within_character)) {
    --begin;
    if (tokenizer.IsSpecial(ids[begin])) continue;
    const std::string_view piece = tokenizer.TokenBytes(ids[begin]);
    bytes += piece.size();
    within_character = !piece.empty() && (static_cast<unsigned char>(piece[0]) & 0xC0) == 0x80;
  }
  assert(begin <= last);
  TextStream stream(&tokenizer, stop_strings);
  for (; begin < last; ++begin) stream.Push(ids[begin]);
  stream.Push(ids[last]);
  return stream.stopped();
}

TextStream::TextStream(const Tokenizer* tokenizer, std::vector<std::string> stop_strings)
    : tokenizer_(tokenizer), stop_strings_(std::move(stop_strings)) {
  assert(tokenizer_ != nullptr);
  assert(ValidateStopStrings(stop_strings_).ok());
}

std::string TextStream::Push(int32_t token_id) {
  if (stopped() || tokenizer_->IsSpecial(token_id)) return "";
  repairer_.Append(tokenizer_->TokenBytes(token_id), &pending_);
  return Release();
}

std::string TextStream::Finish() {
  if (stopped()) return "";
  repairer_.Finish(&pending_);
  std::string delta = Release();
  if (!stopped()) delta += std::exchange(pending_, "");
  return delta;
}

std::string TextStream::Release() {
  if (CutAtStopString()) return std::exchange(pending_, "");
  const size_t held_bytes = HeldBackBytes();
  assert(held_bytes <= pending_.size());
  std::string delta = pending_.substr(0, pending_.size() - held_bytes);
  pending_.erase(0, delta.size());
  return delta;
}

// Searches only pending_: the beginning of a stop string is always held back there.
bool TextStream::CutAtStopString() {
  size_t first_end = std::string::npos, begin = std::string::npos;
  const std::string* found = nullptr;
  for (const std::string& stop : stop_strings_) {
    const size_t at = pending_.find(stop);
    if (at == std::string::npos) continue;
    const size_t end = at + stop.size();
    if (end < first_end || (end == first_end && at < begin)) {
      first_end = end;
      begin = at;
      found = &stop;
    }
  }
  if (found == nullptr) return false;
  assert(begin + found->size() == first_end && first_end <= pending_.size());
  pending_.resize(begin);
  stop_string_ = *found;
  return true;
}

// Returns the length of the longest suffix of pending_ that is the beginning of a stop string. The
// suffix starts at a whole character, because stop strings are well-formed UTF-8.
size_t TextStream::HeldBackBytes() const {
  size_t held_bytes = 0;
  for (const std::string& stop : stop_strings_) {
    const size_t most = std::min(stop.size() - 1, pending_.size());
    for (size_t length = most; length > held_bytes; --length) {
      if (pending_.compare(pending_.size() - length, length, stop, 0, length) == 0) {
        held_bytes = length;
        break;
      }
    }
  }
  return held_bytes;
}

}  // namespace hearth
