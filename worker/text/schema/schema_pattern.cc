#include "worker/text/schema/schema_pattern.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"

namespace hearth {
namespace {

constexpr uint64_t kLongest = uint64_t{1} << 40;  // the longest length
constexpr uint64_t kIncomplete = UINT64_MAX;      // no alternative is complete

// ShortestMatchReader: reads a pattern once and keeps the shortest text of each open group.
class ShortestMatchReader {
 public:
  explicit ShortestMatchReader(absl::string_view pattern) : text_(pattern) {}

  uint64_t Read() {
    while (at_ < text_.size()) ReadPart();
    while (groups_.size() > 1) CloseGroup();
    return Shortest(groups_[0]);
  }

 private:
  struct Group {
    uint64_t least = kIncomplete;  // length of the shortest complete alternative
    uint64_t sum = 0;              // length of the current alternative up to now
    uint64_t last = 0;             // length of the last part of the current alternative
  };
  static uint64_t Shortest(const Group& group) { return std::min(group.least, group.sum); }

  bool TakeIf(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  // Skips the text up to and including the first character of `ends`.
  void SkipTo(absl::string_view ends) {
    at_ = text_.find_first_of(ends, at_);
    at_ = at_ == text_.npos ? text_.size() : at_ + 1;
  }
  void Add(uint64_t length) {
    groups_.back().last = length;
    groups_.back().sum = std::min(groups_.back().sum + length, kLongest);
  }
  // A "?" after a repetition makes it lazy, which does not change the shortest text.
  void Repeat(uint64_t times) {
    Group& group = groups_.back();
    group.sum -= std::min(group.sum, group.last);
    group.last = times == 0 ? 0 : group.last > kLongest / times ? kLongest : group.last * times;
    group.sum = std::min(group.sum + group.last, kLongest);
    TakeIf('?');
  }
  void CloseGroup() {
    const uint64_t length = Shortest(groups_.back());
    groups_.pop_back();
    Add(length);
  }

  void ReadPart() {
    const char c = text_[at_++];
    switch (c) {
      case '(':
        return OpenGroup();
      case ')':
        if (groups_.size() > 1) CloseGroup();
        return;
      case '|':
        groups_.back().least = Shortest(groups_.back());
        groups_.back().sum = groups_.back().last = 0;
        return;
      case '*':
      case '?':
        return Repeat(0);
      case '+':
        return Repeat(1);
      case '{':
        return ReadCount();
      case '[':
        SkipClass();
        return Add(1);
      case '\\':
        return ReadEscape();
      default:
        // The bytes of a character after its first one are no further characters.
        if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) Add(c == '^' || c == '$' ? 0 : 1);
    }
  }
  void OpenGroup() {
    groups_.emplace_back();
    if (!TakeIf('?')) return;
    SkipTo(":>)");  // flags or a name
    if (text_[at_ - 1] == ')') groups_.pop_back();
  }
  // Reads {n}, {n,} or {n,m}; {,m} counts as 0.
  void ReadCount() {
    uint64_t times = 0;
    bool is_least = true;
    for (; at_ < text_.size() && text_[at_] != '}'; ++at_) {
      is_least = is_least && text_[at_] != ',';
      if (is_least && absl::ascii_isdigit(static_cast<unsigned char>(text_[at_]))) {
        times = std::min<uint64_t>(times * 10 + static_cast<uint64_t>(text_[at_] - '0'), kLongest);
      }
    }
    TakeIf('}');
    Repeat(times);
  }
  // A "]" directly after the beginning of a class is text. A class may contain classes.
  void SkipClass() {
    size_t depth = 1;
    const auto begin = [this] {
      TakeIf('^');
      TakeIf(']');
    };
    begin();
    while (at_ < text_.size() && depth > 0) {
      const char c = text_[at_++];
      if (c == '\\') {
        at_ = std::min(at_ + 1, text_.size());
      } else if (c == ']') {
        --depth;
      } else if (c == '[') {
        ++depth;
        begin();
      }
    }
  }
  void ReadEscape() {
    const char c = at_ < text_.size() ? text_[at_++] : '\\';
    if (absl::StrContains("bBAzZ<>G", absl::string_view(&c, 1))) return Add(0);
    if (absl::StrContains("pPxuU", absl::string_view(&c, 1))) {
      const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 1;
      if (TakeIf('{')) {
        SkipTo("}");
      } else {
        at_ = std::min(at_ + digits, text_.size());
      }
    }
    Add(1);
  }

  const absl::string_view text_;
  size_t at_ = 0;
  std::vector<Group> groups_ = std::vector<Group>(1);
};

}  // namespace

uint64_t GreatestRepetition(absl::string_view pattern) {
  constexpr uint64_t kGreatest = uint64_t{1} << 32;
  uint64_t greatest = 0;
  for (size_t at = pattern.find('{'); at != pattern.npos; at = pattern.find('{', at + 1)) {
    uint64_t number = 0;
    for (size_t i = at + 1; i < pattern.size(); ++i) {
      const auto c = static_cast<unsigned char>(pattern[i]);
      if (c == ',') number = 0;
      // The library skips white space around the digits, also white space outside of ASCII.
      if (c == ',' || absl::ascii_isspace(c) || c >= 0x80) continue;
      if (!absl::ascii_isdigit(c)) break;
      number = std::min(number * 10 + static_cast<uint64_t>(c - '0'), kGreatest);
      greatest = std::max(greatest, number);
    }
  }
  return greatest;
}

size_t UnicodeClasses(absl::string_view pattern) {
  size_t count = 0;
  for (size_t i = 0; i + 1 < pattern.size(); ++i) {
    count += pattern[i] == '\\' && (pattern[i + 1] == 'p' || pattern[i + 1] == 'P') ? 1 : 0;
  }
  return count;
}

absl::string_view PatternFault(absl::string_view pattern) {
  size_t backslashes = 0;
  while (backslashes < pattern.size() && pattern[pattern.size() - 1 - backslashes] == '\\') {
    ++backslashes;
  }
  if (backslashes % 2 != 0) return "must not end with a lone backslash";
  // The flag x changes what white space and digits mean; JSON schemas have no flags.
  for (size_t at = pattern.find("(?"); at != pattern.npos; at = pattern.find("(?", at + 1)) {
    for (size_t i = at + 2; i < pattern.size(); ++i) {
      if (pattern[i] == 'x') return "must not have the flag x";
      if (pattern[i] != '-' && !absl::ascii_isalpha(static_cast<unsigned char>(pattern[i]))) break;
      if (pattern[i] == 'P') break;  // a name
    }
  }
  return "";
}

uint64_t ShortestMatch(absl::string_view pattern) { return ShortestMatchReader(pattern).Read(); }

}  // namespace hearth
