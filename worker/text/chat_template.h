// Gemma 3's chat template: renders messages as the text format that the model was trained on.
//
//  <bos><start_of_turn>user\n{system}\n\n{user}<end_of_turn>\n<start_of_turn>model\n{answer}...
//
// The system text is inserted unchanged into the first user turn. User and model texts are stripped
// of white space at both ends, part by part, like Python's str.strip. The published template
// refuses chats whose roles do not alternate, and drops all but the first part of a system message.
// Here:
// - System and developer messages at the beginning form one system text, with a blank line after
//   each message. If no user message follows, the user turn contains only the system text.
// - A later system or developer message counts as a user message.
// - Adjacent messages of one role form one turn, with a blank line between their texts.
// - All parts of a message are written, one after the other.
// As in the published template, "<end_of_turn>" in a message ends its turn, unless the ranges in
// RenderedChat::messages are tokenized as plain text (ChatInput::strict).
// Thread safety: a pure function. Works on text only; prompt.h makes tokens.
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

// Returns whether a message of this role is system text if it begins a chat.
bool IsSystemRole(std::string_view role);

struct ChatPart {
  std::string text;               // well-formed UTF-8
  bool cache_breakpoint = false;  // declare a breakpoint at the end of this part
};

struct ChatMessage {
  std::string role;  // system, developer, user, assistant or model
  std::vector<ChatPart> parts;
  // For a model message: the tokens of its text, which is then written unchanged, including white
  // space. Empty: the text is encoded.
  std::vector<int32_t> token_ids = {};
};

enum class ChatEnding {
  kGenerationPrompt,  // ends with the opening of a model turn
  kClosed,            // all turns are closed
  kOpen,              // as kClosed, but a final user turn stays open
  kContinued,         // as kClosed, but a final model turn stays open
};

struct RenderedChat {
  std::string text;
  // Byte offsets in `text`, strictly increasing: the end of the system text, the end of each
  // opening of a model turn (both occur in later turns of the same chat, too), and declared
  // breakpoints. A breakpoint declared on the last system part becomes the end of the system text.
  std::vector<size_t> breakpoints;
  std::vector<bool> declared;  // per breakpoint: the caller declared it
  // Byte ranges [begin, end) of the messages' own text, ascending; the rest is the template's text.
  std::vector<std::pair<size_t, size_t>> messages;
  // The text of each message with token ids, ascending.
  struct Answer {
    size_t begin = 0, end = 0;
    size_t message = 0;
  };
  std::vector<Answer> answers;
};

// kInvalidArgument, with the field's path: no messages, an unknown role, or kContinued if the last
// message is not a model's.
absl::StatusOr<RenderedChat> RenderChat(const std::vector<ChatMessage>& messages,
                                        ChatEnding ending);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_CHAT_TEMPLATE_H_
