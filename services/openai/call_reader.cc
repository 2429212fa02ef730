#include "services/openai/call_reader.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "proto/digest.h"

namespace hearth {
namespace {

// Maximum size of a call's text before its parameters: the name has at most 128 bytes, the other
// characters have 24, and the remaining 104 bytes may be white space.
constexpr size_t kMaxHeadBytes = 256;
constexpr size_t kMaxFenceBytes = 64;
constexpr size_t kFenceMarks = 3;
constexpr size_t kIdDigits = 24;

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r'; }
bool IsWhite(char c) { return IsBlank(c) || c == '\n'; }

// Parses a text that may be the beginning of a call.
class Head {
 public:
  enum Match : uint8_t { kNo, kMore, kWhole };

  explicit Head(absl::string_view text) : rest_(text) {}

  // kMore: the text may become a call. kWhole: the text ends with the opening brace of the
  // parameters.
  Match Read(const CallRules& rules) {
    for (const char* const literal : {"{", "\"name\"", ":", "\""}) {
      if (const Match match = Eat(literal); match != kWhole) return match;
    }
    const size_t end = rest_.find('"');
    name_ = rest_.substr(0, end);
    const bool is_known =
        std::any_of(rules.names.begin(), rules.names.end(), [&](const std::string& name) {
          return end == rest_.npos ? absl::StartsWith(name, name_) : name == name_;
        });
    if (!is_known) return kNo;
    if (end == rest_.npos) return kMore;
    rest_.remove_prefix(end + 1);
    const std::string key = absl::StrCat("\"", rules.key, "\"");
    for (const absl::string_view literal : {",", key.c_str(), ":", "{"}) {
      if (const Match match = Eat(literal); match != kWhole) return match;
    }
    return kWhole;
  }
  absl::string_view name() const { return name_; }

 private:
  // Skips blanks, then reads the literal.
  Match Eat(absl::string_view literal) {
    while (!rest_.empty() && IsBlank(rest_[0])) rest_.remove_prefix(1);
    if (absl::ConsumePrefix(&rest_, literal)) return kWhole;
    return absl::StartsWith(literal, rest_) ? kMore : kNo;
  }

  absl::string_view rest_;
  absl::string_view name_;
};

// Appends `text` to the last piece if that has the same kind and call, otherwise as a new piece.
void Add(CallPiece::Kind kind, size_t call, absl::string_view text,
         std::vector<CallPiece>* pieces) {
  if (text.empty()) return;
  const bool is_more =
      !pieces->empty() && pieces->back().kind == kind && pieces->back().call == call;
  if (!is_more) pieces->push_back({kind, call, ""});
  absl::StrAppend(&pieces->back().text, text);
}

}  // namespace

void CallReader::Push(absl::string_view text, std::vector<CallPiece>* pieces) {
  for (const char c : text) {
    while (!Take(c, pieces)) {
    }
  }
}

void CallReader::Finish(std::vector<CallPiece>* pieces) {
  is_cut_ = state_ == State::kArguments;
  const bool is_after_call =
      state_ == State::kCallEnd || state_ == State::kListNext || state_ == State::kAfter;
  if (is_after_call) held_.clear();
  Release(State::kAfter, pieces);
}

bool CallReader::Release(State next, std::vector<CallPiece>* pieces) {
  Add(CallPiece::kText, 0, held_, pieces);
  held_.clear();
  is_first_line_ = false;
  state_ = next;
  return false;
}

bool CallReader::Take(char c, std::vector<CallPiece>* pieces) {
  switch (state_) {
    case State::kLineStart:
      return TakeLineStart(c, pieces);
    case State::kLine:
      Add(CallPiece::kText, 0, {&c, 1}, pieces);
      if (c == '\n') state_ = State::kLineStart;
      return true;
    case State::kFence:
    case State::kBelowFence:
      return TakeFence(c, pieces);
    case State::kPrefix:
      return TakePrefix(c, pieces);
    case State::kHead:
    case State::kListItem:
      return TakeHead(c, pieces);
    case State::kArguments:
      TakeArgument(c, pieces);
      return true;
    case State::kCallEnd:
    case State::kListNext:
    case State::kAfter:
      return TakeAfterCall(c, pieces);
  }
  return true;
}

bool CallReader::TakeLineStart(char c, std::vector<CallPiece>* pieces) {
  if (IsWhite(c)) {
    if (is_first_line_) {
      held_ += c;
    } else {
      Add(CallPiece::kText, 0, {&c, 1}, pieces);
    }
    return true;
  }
  const bool may_be_prefix = !rules_.prefix.empty() && c == rules_.prefix[0];
  if (!MayCall() || (c != '{' && c != '[' && c != '`' && !may_be_prefix))
    return Release(State::kLine, pieces);
  if (c == '`' || may_be_prefix) {
    head_ = held_.size();
    held_ += c;
    state_ = may_be_prefix ? State::kPrefix : State::kFence;
    return true;
  }
  is_fenced_ = false;
  BeginHead(/*in_list=*/false);
  return false;
}

// A fence is a line of at least three backticks and at most one word. The line below has blanks,
// then a call.
bool CallReader::TakeFence(char c, std::vector<CallPiece>* pieces) {
  if (state_ == State::kBelowFence) {
    if (c == '{' || c == '[') {
      is_fenced_ = true;
      BeginHead(/*in_list=*/false);
      return false;
    }
    if (!IsBlank(c) || held_.size() - head_ >= kMaxFenceBytes) {
      return Release(State::kLineStart, pieces);
    }
    held_ += c;
    return true;
  }
  const absl::string_view line = absl::string_view(held_).substr(head_);
  assert(!line.empty());
  const size_t marks = std::min(line.find_first_not_of('`'), line.size());
  const bool is_word = c != '`' && c != '\n' && !IsBlank(c);
  const bool is_after_word = IsBlank(line.back());
  const bool fits =
      c == '`' ? marks == line.size() : marks >= kFenceMarks && !(is_word && is_after_word);
  if (!fits || line.size() >= kMaxFenceBytes) return Release(State::kLine, pieces);
  held_ += c;
  if (c == '\n') state_ = State::kBelowFence;
  return true;
}

bool CallReader::TakePrefix(char c, std::vector<CallPiece>* pieces) {
  held_ += c;
  const absl::string_view line = absl::string_view(held_).substr(head_);
  if (!absl::StartsWith(rules_.prefix, line)) {
    held_.pop_back();
    return Release(State::kLine, pieces);
  }
  if (line.size() == rules_.prefix.size()) state_ = State::kBelowFence;
  return true;
}

void CallReader::BeginHead(bool in_list) {
  state_ = in_list ? State::kListItem : State::kHead;
  in_list_ = in_list;
  head_ = held_.size();
}

bool CallReader::TakeHead(char c, std::vector<CallPiece>* pieces) {
  if (held_.size() == head_ && c == '[' && state_ == State::kHead && rules_.parallel) {
    held_ += c;
    BeginHead(/*in_list=*/true);
    return true;
  }
  held_ += c;
  assert(head_ < held_.size());
  Head head(absl::string_view(held_).substr(head_));
  Head::Match match = head.Read(rules_);
  if (held_.size() - head_ > kMaxHeadBytes) match = Head::kNo;
  if (match == Head::kMore) return true;
  if (match == Head::kNo) {
    held_.pop_back();
    return Release(State::kLine, pieces);
  }
  pieces->push_back({CallPiece::kName, calls_, std::string(head.name())});
  held_.clear();
  is_first_line_ = false;
  ++calls_;
  state_ = State::kArguments;
  depth_ = 0;
  in_string_ = is_escaped_ = false;
  TakeArgument(c, pieces);
  return true;
}

void CallReader::TakeArgument(char c, std::vector<CallPiece>* pieces) {
  assert(calls_ > 0);
  Add(CallPiece::kArguments, calls_ - 1, {&c, 1}, pieces);
  if (in_string_) {
    in_string_ = is_escaped_ || c != '"';
    is_escaped_ = !is_escaped_ && c == '\\';
    return;
  }
  in_string_ = c == '"';
  if (c == '{' || c == '[') ++depth_;
  assert(depth_ > 0);
  if ((c == '}' || c == ']') && --depth_ == 0) state_ = State::kCallEnd;
}

bool CallReader::TakeAfterCall(char c, std::vector<CallPiece>* pieces) {
  if (IsWhite(c) || (state_ == State::kAfter && c == '`')) {
    held_ += c;
    return true;
  }
  if (state_ == State::kAfter) return LeaveCalls(pieces);
  if (state_ == State::kListNext && c == ',') {
    held_.clear();
    BeginHead(/*in_list=*/true);
    return true;
  }
  const char end = state_ == State::kCallEnd ? '}' : ']';
  if (c != end) return Release(State::kLine, pieces);
  held_.clear();
  const bool goes_on = state_ == State::kCallEnd && in_list_;
  state_ = goes_on ? State::kListNext : State::kAfter;
  return true;
}

bool CallReader::LeaveCalls(std::vector<CallPiece>* pieces) {
  // Drop the closing fence of the call: a line of backticks alone.
  const size_t marks = std::min(held_.find('`'), held_.size());
  const size_t rest = std::min(held_.find_first_not_of('`', marks), held_.size());
  if (is_fenced_ && rest - marks >= kFenceMarks && held_.find('\n', rest) != held_.npos) {
    held_.erase(0, rest);
  }
  const size_t line_end = held_.rfind('\n');
  if (line_end == held_.npos || !MayCall()) return Release(State::kLine, pieces);
  head_ = std::min(held_.find('`', line_end), held_.size());
  state_ = head_ == held_.size() ? State::kLineStart : State::kFence;
  return false;
}

ReadAnswer ReadCalls(const CallRules& rules, absl::string_view text) {
  CallReader reader(rules);
  std::vector<CallPiece> pieces;
  reader.Push(text, &pieces);
  reader.Finish(&pieces);
  ReadAnswer answer;
  for (CallPiece& piece : pieces) {
    if (piece.kind == CallPiece::kText) {
      answer.text += piece.text;
    } else if (piece.kind == CallPiece::kName) {
      answer.calls.push_back({std::move(piece.text), ""});
    } else {
      assert(piece.call + 1 == answer.calls.size());  // arguments follow their name
      answer.calls[piece.call].arguments += piece.text;
    }
  }
  answer.is_cut = reader.is_cut();
  return answer;
}

std::string CallId(absl::string_view request_id, size_t earlier_calls, size_t answer, size_t call) {
  const Digest digest =
      Sha256(absl::StrCat(request_id, " ", earlier_calls, " ", answer, " ", call));
  return absl::StrCat("call_", DigestHex(digest).substr(0, kIdDigits));
}

}  // namespace hearth
