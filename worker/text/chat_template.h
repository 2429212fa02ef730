// Gemma 3's chat template: renders messages as the text format that the model was trained on.
//
//  <bos><start_of_turn>user\n{system}\n\n{user}<end_of_turn>\n<start_of_turn>model\n{answer}...
//
// The system text is inserted unchanged into the first user turn. Each part of a user or model
// message is stripped of white space at both ends, like Python's str.strip. The published template
// refuses chats whose roles do not alternate, and drops all but the first part of a system message.
// This renderer differs:
//  - System and developer messages at the beginning form one system text, with a blank line after
//    each message. If no user message follows, the user turn has only the system text.
//  - A later system or developer message is rendered as a user message.
//  - Adjacent messages of the same role form one turn, with a blank line between their texts.
//  - All parts of a message are written, one after the other.
// As in the published template, "<end_of_turn>" inside a message ends its turn, unless the caller
// tokenizes the ranges RenderedChat::messages as plain text (ChatInput::strict).
// Thread safety: a pure function. It renders text only; prompt.h converts the text to tokens.
#ifndef HEARTH_WORKER_TEXT_CHAT_TEMPLATE_H_
#define HEARTH_WORKER_TEXT_CHAT_TEMPLATE_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace hearth {

inline constexpr char kStartOfTurn[] = "<start_of_turn>";
inline constexpr char kEndOfTurn[] = "<end_of_turn>";

// Returns whether messages of this role, at the beginning of a chat, form the system text.
bool IsSystemRole(std::string_view role);
// Returns whether the model wrote messages of this role.
bool IsModelRole(std::string_view role);

struct ChatPart {
  std::string text;  // well-formed UTF-8
  // The caller wants a cached prefix that ends at the end of this part.
  bool cache_breakpoint = false;
};

// A call of a function in an assistant message.
struct ChatCall {
  std::string id, name;
  std::string arguments;  // JSON
};

struct ChatMessage {
  std::string role;  // system, developer, user, assistant or model
  std::vector<ChatPart> parts;
  // For a model message: the tokens that the model generated. The message's text is then written
  // unchanged, including white space. Empty: the text is rendered and encoded as usual.
  std::vector<int32_t> token_ids = {};
  // Only for a model's own template that reads tools: the calls of an assistant message. A message
  // of the role `tool` has the id of the call that it answers, and the name of the function.
  std::vector<ChatCall> calls = {};
  std::string call_id = {}, name = {};
};

enum class ChatEnding {
  kGenerationPrompt,  // ends with an opened model turn, for the answer
  kClosed,            // all turns are closed
  kOpen,              // as kClosed, but if the last turn is a user turn, it stays open
  kContinued,         // as kClosed, but the last turn, a model turn, stays open
};

struct RenderedChat {
  std::string text;
  // Byte offsets in `text`, strictly increasing: the end of the system text, the end of each
  // opening of a model turn, and the ends of parts with cache_breakpoint. Later turns of the same
  // chat have the same offsets again. A cache_breakpoint on the last system part moves to the end
  // of the system text.
  std::vector<size_t> breakpoints;
  std::vector<bool> declared;  // for each breakpoint: whether a cache_breakpoint declared it
  // Byte ranges [begin, end) of text that came from messages, ascending. All other text is the
  // template's.
  std::vector<std::pair<size_t, size_t>> messages;
  // Byte range of each message that has token ids, ascending; `message` is its index.
  struct Answer {
    size_t begin = 0, end = 0;
    size_t message = 0;
  };
  std::vector<Answer> answers;
};

// kInvalidArgument, with the path of the field: there are no messages, or `ending` is kContinued
// and the last message is not a model message.
absl::Status CheckEnding(const std::vector<ChatMessage>& messages, ChatEnding ending);

// kInvalidArgument, with the path of the field: CheckEnding fails, or a role is unknown.
absl::StatusOr<RenderedChat> RenderChat(const std::vector<ChatMessage>& messages,
                                        ChatEnding ending);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_CHAT_TEMPLATE_H_
