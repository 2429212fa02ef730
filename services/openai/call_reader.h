// CallReader: finds tool calls in the text of an answer, while the text is generated.
//
// A call is {"name": NAME, "parameters": OBJECT}, alone or in a list, at the beginning of a line; a
// code fence such as "```json" or CallRules::prefix may precede it. NAME is the name of a tool of
// the request. The rest of the answer is text. The reader holds back text that may be the beginning
// of a call: white space at the beginning of the answer, a fence, and a call up to its parameters.
// After a call, it holds back white space and backticks, and drops them at the end of the answer
// and before another call. It drops the fences around a call, and passes on all other text
// unchanged.
//
//   text --> [line start] --{--> head --"parameters": {--> arguments --}--> after the calls
//               ^   |               |                          ^               |
//               |  any             no call: text               +-- , -- list --+
//               +-- line end <-- in a line
//
// Invariant: after joining adjacent pieces of the same kind, the pieces do not depend on how the
// text was split between calls of Push. Thread safety: none.
#ifndef HEARTH_SERVICES_OPENAI_CALL_READER_H_
#define HEARTH_SERVICES_OPENAI_CALL_READER_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace hearth {

// The calls that are allowed in an answer.
struct CallRules {
  std::vector<std::string> names;  // names of the tools; empty: the whole answer is text
  bool parallel = true;            // false: at most one call
  std::string key = "parameters";  // key of the arguments
  std::string prefix;              // a line that may precede a call; empty: none
};

// A part of the answer: text, the name of a call, or a part of the arguments of a call.
struct CallPiece {
  enum Kind : uint8_t { kText, kName, kArguments };
  Kind kind = kText;
  size_t call = 0;   // index of the call, from 0; not used for text
  std::string text;  // never empty; for kName, the whole name
};

class CallReader {
 public:
  explicit CallReader(CallRules rules) : rules_(std::move(rules)) {}

  // Reads the next part of the answer's text. Appends the pieces whose kind is now certain.
  void Push(absl::string_view text, std::vector<CallPiece>* pieces);
  // Ends the answer: appends the text that is still held back, except white space and backticks
  // after a call.
  void Finish(std::vector<CallPiece>* pieces);
  // Returns the number of calls found so far, including an unfinished call.
  size_t calls() const { return calls_; }
  // Returns whether the answer ended inside the parameters of a call. REQUIRES: Finish was called.
  bool is_cut() const { return is_cut_; }

 private:
  enum class State : uint8_t {
    kLineStart,   // only white space since the line began
    kLine,        // in a line of text
    kFence,       // in a line that may be a fence
    kPrefix,      // in a line that may be the prefix
    kBelowFence,  // in the line below a fence or the prefix, before any text
    kHead,        // in a possible call, before its parameters
    kArguments,   // in the parameters of a call
    kCallEnd,     // after the parameters, before the closing brace of the call
    kListNext,    // in a list of calls, after a call
    kListItem,    // in a list of calls, at the beginning of a possible call
    kAfter,       // after the last call
  };
  // Reads one character. Returns false if the state changed and the caller must pass the same
  // character again.
  bool Take(char c, std::vector<CallPiece>* pieces);
  bool TakeLineStart(char c, std::vector<CallPiece>* pieces);
  bool TakeFence(char c, std::vector<CallPiece>* pieces);
  bool TakePrefix(char c, std::vector<CallPiece>* pieces);
  bool TakeHead(char c, std::vector<CallPiece>* pieces);
  void TakeArgument(char c, std::vector<CallPiece>* pieces);
  bool TakeAfterCall(char c, std::vector<CallPiece>* pieces);
  // Handles the first character after the calls that is neither white space nor a backtick.
  bool LeaveCalls(std::vector<CallPiece>* pieces);
  // Appends the text that was held back, and changes to the state `next`. Returns false.
  bool Release(State next, std::vector<CallPiece>* pieces);
  void BeginHead(bool in_list);
  bool MayCall() const { return !rules_.names.empty() && (rules_.parallel || calls_ == 0); }

  CallRules rules_;
  State state_ = State::kLineStart;
  bool is_first_line_ = true;  // the answer has only white space so far
  std::string held_;           // text that is held back
  size_t head_ = 0;            // start of the possible call or fence in `held_`
  bool in_list_ = false;       // the current call is in a list of calls
  size_t calls_ = 0;
  size_t depth_ = 0;         // number of open braces and brackets in the parameters
  bool in_string_ = false;   // inside a string of the parameters
  bool is_escaped_ = false;  // after a backslash in a string of the parameters
  bool is_fenced_ = false;   // the current call is below a fence
  bool is_cut_ = false;      // the answer ended inside the parameters of a call
};

// A whole answer, split into text and calls.
struct ReadAnswer {
  struct Call {
    std::string name, arguments;
  };
  std::string text;
  std::vector<Call> calls;
  bool is_cut = false;  // the answer ended inside the arguments of a call
};
ReadAnswer ReadCalls(const CallRules& rules, absl::string_view text);

// Returns the id of a call. It depends only on the id of the request, the number of calls in the
// request's chat, and the indexes of the answer and the call. A client may send several requests of
// one chat with the same request id.
std::string CallId(absl::string_view request_id, size_t earlier_calls, size_t answer, size_t call);

}  // namespace hearth

#endif  // HEARTH_SERVICES_OPENAI_CALL_READER_H_
