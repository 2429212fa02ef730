#include "worker/text/chat_template.h"

#include <algorithm>
#include <cassert>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/utf8.h"

namespace hearth {
namespace {

constexpr char kBos[] = "<bos>";
constexpr size_t kMaxQuotedRoleBytes = 32;

absl::Status CheckRoles(const std::vector<ChatMessage>& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role == "user" || IsModelRole(role) || IsSystemRole(role)) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "chat.messages[", i, "].role: must be system, developer, user, assistant or model; got \"",
        role.substr(0, kMaxQuotedRoleBytes), "\""));
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

// `unfinished`: the last part may be continued later, so keep the white space at its end.
void AppendParts(const ChatMessage& message, bool unfinished, RenderedChat* chat) {
  for (size_t i = 0; i < message.parts.size(); ++i) {
    const ChatPart& part = message.parts[i];
    const bool more_may_follow = unfinished && i + 1 == message.parts.size();
    AppendText(more_may_follow ? StripLeadingWhitespace(part.text) : StripWhitespace(part.text),
               chat);
    if (part.cache_breakpoint) AddBreakpoint(/*declared=*/true, chat);
  }
}

// REQUIRES: the message has token ids.
void AppendAnswer(const ChatMessage& message, size_t index, RenderedChat* chat) {
  const size_t begin = chat->text.size();
  for (const ChatPart& part : message.parts) chat->text += part.text;
  chat->answers.push_back({begin, chat->text.size(), index});
  if (!message.parts.empty() && message.parts.back().cache_breakpoint)
    AddBreakpoint(/*declared=*/true, chat);
}

bool HasText(const ChatMessage& message) {
  const auto has_text = [](const ChatPart& part) { return !StripWhitespace(part.text).empty(); };
  return !message.token_ids.empty() ||
         std::any_of(message.parts.begin(), message.parts.end(), has_text);
}

}  // namespace

bool IsSystemRole(std::string_view role) { return role == "system" || role == "developer"; }
bool IsModelRole(std::string_view role) { return role == "assistant" || role == "model"; }

absl::Status CheckEnding(const std::vector<ChatMessage>& messages, ChatEnding ending) {
  if (messages.empty()) return absl::InvalidArgumentError("chat.messages: must not be empty");
  if (ending != ChatEnding::kContinued || IsModelRole(messages.back().role))
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("chat.messages[", messages.size() - 1,
                   "].role: must be assistant or model if continue_final_message is set"));
}

absl::StatusOr<RenderedChat> RenderChat(const std::vector<ChatMessage>& messages,
                                        ChatEnding ending) {
  if (absl::Status status = CheckEnding(messages, ending); !status.ok()) return status;
  if (absl::Status status = CheckRoles(messages); !status.ok()) return status;
  RenderedChat chat;
  chat.text = kBos;
  bool is_open = false, is_model = false;  // state of the current turn
  const auto open = [&](bool of_model) {
    if (is_open) absl::StrAppend(&chat.text, kEndOfTurn, "\n");
    absl::StrAppend(&chat.text, kStartOfTurn, of_model ? "model\n" : "user\n");
    if (of_model) AddBreakpoint(/*declared=*/false, &chat);
    is_open = true;
    is_model = of_model;
  };
  size_t i = 0;
  for (; i < messages.size() && IsSystemRole(messages[i].role); ++i) {
    if (i == 0) open(/*of_model=*/false);
    AppendSystem(messages[i], &chat);
  }
  size_t begin = chat.text.size();  // offset of the first message of the current turn
  for (; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    if (!is_open || IsModelRole(message.role) != is_model) {
      open(IsModelRole(message.role));
      begin = chat.text.size();
    }
    if (chat.text.size() > begin && HasText(message)) chat.text += "\n\n";
    if (message.token_ids.empty()) {
      const bool is_last = i + 1 == messages.size();
      AppendParts(message, ending == ChatEnding::kOpen && !is_model && is_last, &chat);
    } else {
      AppendAnswer(message, i, &chat);
    }
  }
  if (ending == ChatEnding::kGenerationPrompt) {
    open(/*of_model=*/true);
  } else if (is_model ? ending != ChatEnding::kContinued : ending != ChatEnding::kOpen) {
    absl::StrAppend(&chat.text, kEndOfTurn, "\n");
  }
  assert(chat.breakpoints.empty() || chat.breakpoints.back() <= chat.text.size());
  return chat;
}

}  // namespace hearth
