// Gemma 3's chat template: messages to the one text that the model was trained on.
//
//   <bos><start_of_turn>user\n{system}\n\n{user}<end_of_turn>\n<start_of_turn>model\n{answer}...
//
// The system text is folded into the first user turn as it is; user and model texts are stripped of
// white space at both ends, part by part, as Python's str.strip does. The published template
// refuses chats whose roles do not alternate, and drops all parts of a system message but the
// first. Here:
// - System and developer messages at the beginning are one system text, with a blank line after
//   each message. If no user message follows, the user turn is the system text.
// - A later system or developer message is a user's.
// - Neighbours of one role are one turn, with a blank line between their texts.
// - All parts of a message are written, one after the other.
// As there, a message that contains the words "<end_of_turn>" ends its turn, unless the ranges in
// RenderedChat::messages are tokenized as plain text (ChatInput::strict).
// Thread safety: a pure function. Knows no tokens: see prompt.h.
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

// Whether messages of the role are a system text, if they begin a chat.
bool IsSystemRole(std::string_view role);

struct ChatPart {
  std::string text;               // well-formed UTF-8
  bool cache_breakpoint = false;  // the end of this part is worth keeping
};

struct ChatMessage {
  std::string role;  // system, developer, user, assistant or model
  std::vector<ChatPart> parts;
  // Of a model's message: the tokens that spell its text, which is then written as it is, white
  // space included. Empty: the text is encoded.
  std::vector<int32_t> token_ids = {};
};

enum class ChatEnding {
  kGenerationPrompt,  // the model's turn is opened: ready to answer
  kClosed,            // every turn is ended, none is opened
  kOpen,              // as kClosed, but a user's turn at the end is left unfinished
  kContinued,         // as kClosed, but a model's turn at the end is left unfinished
};

struct RenderedChat {
  std::string text;
  // Byte offsets in `text`, strictly increasing: the end of the system text and of every opening of
  // a model's turn (a later turn of the same chat has them too), and the declared ones. A declared
  // one on the last system part is the end of the system text.
  std::vector<size_t> breakpoints;
  std::vector<bool> declared;  // of each, whether the caller did
  // The messages' own text, as ranges of bytes [begin, end), ascending; the rest is the template's.
  std::vector<std::pair<size_t, size_t>> messages;
  // Of the messages with tokens of their own: where their text lies, ascending.
  struct Answer {
    size_t begin = 0, end = 0;
    size_t message = 0;
  };
  std::vector<Answer> answers;
};

// kInvalidArgument, with the field's path: there is no message, a role is unknown, or the last
// message is not a model's and the ending is kContinued.
absl::StatusOr<RenderedChat> RenderChat(const std::vector<ChatMessage>& messages,
                                        ChatEnding ending);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_CHAT_TEMPLATE_H_
