#include "worker/text/chat_template.h"

#include <cassert>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/utf8.h"

namespace hearth {
namespace {

constexpr char kBos[] = "<bos>";
constexpr size_t kMaxQuotedRoleBytes = 32;

absl::Status MessageError(size_t index, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("chat.messages[", index, "]: ", what));
}

bool IsModelRole(const std::string& role) { return role == "assistant" || role == "model"; }

absl::Status CheckRoles(const std::vector<ChatMessage>& messages, ChatEnding ending) {
  if (messages.empty()) return absl::InvalidArgumentError("chat.messages: must not be empty");
  const size_t first_turn = messages[0].role == "system" ? 1 : 0;
  for (size_t i = first_turn; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role == "system") {
      return MessageError(i, "a system message must be the first; there is one at most");
    }
    if (role != "user" && !IsModelRole(role)) {
      return MessageError(i, absl::StrCat("role \"", role.substr(0, kMaxQuotedRoleBytes),
                                          "\" is not one of system, user, assistant, model"));
    }
    const bool want_user = (i - first_turn) % 2 == 0;
    if ((role == "user") != want_user) {
      return MessageError(i, absl::StrCat("roles must alternate, beginning with user: expected ",
                                          want_user ? "user" : "assistant"));
    }
  }
  if (ending == ChatEnding::kContinued && !IsModelRole(messages.back().role)) {
    return MessageError(messages.size() - 1,
                        "must be the assistant's with continue_final_message: it is continued");
  }
  if (messages.size() == first_turn && ending != ChatEnding::kOpen) {
    return MessageError(0, "a system message alone leaves nothing to answer; Prefill accepts it");
  }
  return absl::OkStatus();
}

void AddBreakpoint(bool declared, RenderedChat* chat) {
  if (chat->breakpoints.empty() || chat->breakpoints.back() < chat->text.size()) {
    chat->breakpoints.push_back(chat->text.size());
    chat->declared.push_back(false);
  }
  chat->declared.back() = chat->declared.back() || declared;
}

void AppendText(std::string_view text, RenderedChat* chat) {
  const size_t begin = chat->text.size();
  chat->text += text;
  if (!text.empty()) chat->messages.push_back({begin, chat->text.size()});
}

void AppendSystem(const ChatMessage& message, RenderedChat* chat) {
  for (size_t i = 0; i < message.parts.size(); ++i) {
    AppendText(message.parts[i].text, chat);
    const bool last = i + 1 == message.parts.size();
    if (message.parts[i].cache_breakpoint && !last) AddBreakpoint(/*declared=*/true, chat);
  }
  chat->text += "\n\n";
  AddBreakpoint(!message.parts.empty() && message.parts.back().cache_breakpoint, chat);
}

// `unfinished`: more of the last part may follow, so that the white space at its end stays.
void AppendParts(const ChatMessage& message, bool unfinished, RenderedChat* chat) {
  for (size_t i = 0; i < message.parts.size(); ++i) {
    const ChatPart& part = message.parts[i];
    const bool more_may_follow = unfinished && i + 1 == message.parts.size();
    AppendText(more_may_follow ? StripLeadingWhitespace(part.text) : StripWhitespace(part.text),
               chat);
    if (part.cache_breakpoint) AddBreakpoint(/*declared=*/true, chat);
  }
}

// Of a message whose tokens are known.
void AppendAnswer(const ChatMessage& message, size_t index, RenderedChat* chat) {
  const size_t begin = chat->text.size();
  for (const ChatPart& part : message.parts) chat->text += part.text;
  chat->answers.push_back({begin, chat->text.size(), index});
  if (!message.parts.empty() && message.parts.back().cache_breakpoint)
    AddBreakpoint(/*declared=*/true, chat);
}

}  // namespace

absl::StatusOr<RenderedChat> RenderChat(const std::vector<ChatMessage>& messages,
                                        ChatEnding ending) {
  if (absl::Status status = CheckRoles(messages, ending); !status.ok()) return status;
  RenderedChat chat;
  chat.text = kBos;
  const bool has_system = messages[0].role == "system";
  if (has_system) {
    absl::StrAppend(&chat.text, kStartOfTurn, "user\n");
    AppendSystem(messages[0], &chat);
  }
  for (size_t i = has_system ? 1 : 0; i < messages.size(); ++i) {
    const bool is_model = IsModelRole(messages[i].role);
    const bool turn_is_open = has_system && i == 1;
    if (!turn_is_open) {
      absl::StrAppend(&chat.text, kStartOfTurn, is_model ? "model\n" : "user\n");
    }
    if (is_model) AddBreakpoint(/*declared=*/false, &chat);
    const bool is_continued = ending == ChatEnding::kContinued && i + 1 == messages.size();
    const bool unfinished = ending == ChatEnding::kOpen && !is_model && i + 1 == messages.size();
    if (messages[i].token_ids.empty()) {
      AppendParts(messages[i], unfinished, &chat);
    } else {
      AppendAnswer(messages[i], i, &chat);
    }
    if (!unfinished && !is_continued) absl::StrAppend(&chat.text, kEndOfTurn, "\n");
  }
  if (ending == ChatEnding::kGenerationPrompt) {
    absl::StrAppend(&chat.text, kStartOfTurn, "model\n");
    AddBreakpoint(/*declared=*/false, &chat);
  }
  assert(chat.breakpoints.empty() || chat.breakpoints.back() <= chat.text.size());
  return chat;
}

}  // namespace hearth
