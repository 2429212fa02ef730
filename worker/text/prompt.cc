#include "worker/text/prompt.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/caller_gone.h"
#include "proto/error_reason.h"
#include "proto/utf8.h"
#include "worker/text/jinja/model_template.h"

namespace hearth {
namespace {

// A text that is too long is encoded up to this multiple of the context, to report its length if
// that is less.
constexpr size_t kCountedContexts = 2;

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

absl::Status CheckDeclared(const std::vector<uint32_t>& breakpoints, size_t length,
                           absl::string_view unit) {
  if (breakpoints.size() > kMaxDeclaredBreakpoints) {
    return Invalid("breakpoints: has ", breakpoints.size(), " positions; the limit is ",
                   kMaxDeclaredBreakpoints);
  }
  for (size_t i = 0; i < breakpoints.size(); ++i) {
    if (breakpoints[i] == 0 || breakpoints[i] > length) {
      return Invalid("breakpoints[", i, "]: is ", breakpoints[i], "; must be in (0, ", length,
                     "], a position in ", unit);
    }
  }
  return absl::OkStatus();
}

absl::Status UnknownToken(size_t i, uint32_t id, const PromptLimits& limits) {
  return Invalid("prompt: token_ids[", i, "] is ", id, "; the vocabulary has ", limits.vocab_size);
}

std::vector<uint32_t> SortedUnique(std::vector<uint32_t> positions) {
  std::sort(positions.begin(), positions.end());
  positions.erase(std::unique(positions.begin(), positions.end()), positions.end());
  if (!positions.empty() && positions.front() == 0) positions.erase(positions.begin());
  return positions;
}

// `field`: path of the prompt in the request.
absl::Status CheckIds(const Prompt& prompt, absl::string_view field, const PromptLimits& limits) {
  if (prompt.token_ids.empty()) return Invalid("prompt: must not be empty");
  if (prompt.token_ids.size() > limits.context_tokens) {
    return PromptTooLong(field, limits.context_tokens, prompt.token_ids.size());
  }
  for (size_t i = 0; i < prompt.token_ids.size(); ++i) {
    // The tokenizer may have ids that have no row in the model's embedding matrix, such as the
    // image placeholder.
    if (static_cast<uint32_t>(prompt.token_ids[i]) >= limits.vocab_size) {
      return UnknownToken(i, prompt.token_ids[i], limits);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Prompt> FromIds(const std::vector<uint32_t>& ids,
                               const std::vector<uint32_t>& breakpoints,
                               const PromptLimits& limits) {
  // Check the ids while they are unsigned.
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= limits.vocab_size) {
      return UnknownToken(i, ids[i], limits);
    }
  }
  Prompt prompt;
  prompt.token_ids.assign(ids.begin(), ids.end());
  if (absl::Status status = CheckIds(prompt, "prompt", limits); !status.ok()) return status;
  if (absl::Status s = CheckDeclared(breakpoints, ids.size(), "tokens"); !s.ok()) return s;
  prompt.breakpoints = SortedUnique(breakpoints);
  prompt.declared = prompt.breakpoints;
  return prompt;
}

absl::Status WhyNotEncoded(EncodeEnd end, absl::string_view field, const PromptLimits& limits) {
  switch (end) {
    case EncodeEnd::kTooManyTokens:
      return PromptTooLong(field, limits.context_tokens,
                           absl::StrCat("more than ", kCountedContexts * limits.context_tokens));
    case EncodeEnd::kStopped:
      return CallerGone();
    case EncodeEnd::kTooCostly:
      return Invalid("breakpoints: too many lie inside one very long word");
    case EncodeEnd::kDone:
      break;
  }
  return absl::OkStatus();
}

// Encodes the rendered text. Answers with token ids are inserted from `messages`. `field`: path of
// the prompt in the request. The text between two answers is encoded separately. It begins and ends
// at a turn marker of the template, or at the blank line between two messages of a turn; no token
// crosses these borders. REQUIRES: breakpoints are ascending (repeats are allowed) and lie between
// characters; `declared` has one entry per breakpoint.
absl::StatusOr<Prompt> FromRendered(RenderedChat rendered, const std::vector<ChatMessage>& messages,
                                    absl::string_view field, const Tokenizer& tokenizer,
                                    const PromptLimits& limits) {
  Prompt prompt;
  const size_t most_tokens = kCountedContexts * limits.context_tokens;
  size_t begin = 0, next_offset = 0;
  for (size_t i = 0; i <= rendered.answers.size(); ++i) {
    const bool last = i == rendered.answers.size();
    const size_t end = last ? rendered.text.size() : rendered.answers[i].begin;
    std::vector<size_t> offsets;
    while (next_offset < rendered.breakpoints.size() && rendered.breakpoints[next_offset] <= end)
      offsets.push_back(rendered.breakpoints[next_offset++] - begin);
    EncodeRules rules{most_tokens - prompt.token_ids.size(), limits.stopped, {}};
    for (const auto& [from, to] : rendered.messages) {
      if (from >= begin && to <= end) rules.plain.emplace_back(from - begin, to - begin);
    }
    Encoding piece;
    const EncodeEnd ended = tokenizer.EncodeWithOffsets(
        std::string_view(rendered.text).substr(begin, end - begin), offsets, rules, &piece);
    if (absl::Status status = WhyNotEncoded(ended, field, limits); !status.ok()) return status;
    const size_t first_offset = next_offset - offsets.size();
    for (size_t at = 0; at < piece.common_tokens.size(); ++at) {
      const auto token = static_cast<uint32_t>(prompt.token_ids.size()) + piece.common_tokens[at];
      prompt.breakpoints.push_back(token);
      if (rendered.declared[first_offset + at]) prompt.declared.push_back(token);
    }
    prompt.token_ids.insert(prompt.token_ids.end(), piece.ids.begin(), piece.ids.end());
    if (last) break;
    const std::vector<int32_t>& answer = messages[rendered.answers[i].message].token_ids;
    if (prompt.token_ids.size() + answer.size() > most_tokens)
      return WhyNotEncoded(EncodeEnd::kTooManyTokens, field, limits);
    prompt.token_ids.insert(prompt.token_ids.end(), answer.begin(), answer.end());
    begin = rendered.answers[i].end;
  }
  prompt.breakpoints = SortedUnique(std::move(prompt.breakpoints));
  prompt.declared = SortedUnique(std::move(prompt.declared));
  prompt.text = std::move(rendered.text);
  if (absl::Status status = CheckIds(prompt, field, limits); !status.ok()) return status;
  assert(prompt.breakpoints.empty() || prompt.breakpoints.back() <= prompt.token_ids.size());
  return prompt;
}

// Returns "<bos>" if the text does not begin with it and the vocabulary has it; else "".
std::string_view MissingBos(std::string_view text, const Tokenizer& tokenizer) {
  const std::string_view bos = tokenizer.TokenBytes(tokenizer.bos_id());
  return text.substr(0, bos.size()) == bos ? std::string_view() : bos;
}

absl::StatusOr<Prompt> FromText(const std::string& text, const std::vector<uint32_t>& breakpoints,
                                bool omit_bos, const Tokenizer& tokenizer,
                                const PromptLimits& limits) {
  if (text.empty()) return Invalid("prompt: text must not be empty");
  if (absl::Status status = CheckText(text, "prompt: text"); !status.ok()) return status;
  if (absl::Status s = CheckDeclared(breakpoints, text.size(), "bytes"); !s.ok()) return s;
  const std::string_view bos = omit_bos ? std::string_view() : MissingBos(text, tokenizer);
  RenderedChat rendered;
  for (size_t i = 0; i < breakpoints.size(); ++i) {
    if (!IsUtf8Boundary(text, breakpoints[i])) {
      return Invalid("breakpoints[", i, "]: byte ", breakpoints[i], " lies inside a character");
    }
    rendered.breakpoints.push_back(bos.size() + breakpoints[i]);
  }
  std::sort(rendered.breakpoints.begin(), rendered.breakpoints.end());
  rendered.declared.assign(breakpoints.size(), true);
  rendered.text = std::string(bos) + text;
  return FromRendered(std::move(rendered), {}, "prompt", tokenizer, limits);
}

absl::Status CheckChat(const ChatInput& chat) {
  if (chat.messages.size() > kMaxChatMessages) {
    return Invalid("chat.messages: has ", chat.messages.size(), " messages; the limit is ",
                   kMaxChatMessages);
  }
  size_t declared = 0;
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    for (size_t j = 0; j < chat.messages[i].parts.size(); ++j) {
      const ChatPart& part = chat.messages[i].parts[j];
      const std::string field = absl::StrCat("chat.messages[", i, "].parts[", j, "]");
      if (absl::Status status = CheckText(part.text, field); !status.ok()) return status;
      declared += part.cache_breakpoint;
    }
    const std::string& role = chat.messages[i].role;
    if (!chat.messages[i].token_ids.empty() && role != "model" && role != "assistant") {
      return Invalid("chat.messages[", i, "].token_ids: only model messages may have token ids");
    }
  }
  if (declared > kMaxDeclaredBreakpoints) {
    return Invalid("chat: has ", declared, " parts with cache_breakpoint; the limit is ",
                   kMaxDeclaredBreakpoints);
  }
  return absl::OkStatus();
}

// Refuses the fields of a chat that only a template that reads tools can render.
absl::Status CheckNoTools(const ChatInput& chat) {
  constexpr char kWhy[] = "must be empty: the model's chat template reads no tools";
  if (!chat.tools.empty()) return Invalid("chat.tools: ", kWhy);
  if (!chat.answer_prefix.empty()) return Invalid("chat.answer_prefix: ", kWhy);
  for (size_t i = 0; i < chat.messages.size(); ++i) {
    if (!chat.messages[i].calls.empty())
      return Invalid("chat.messages[", i, "].tool_calls: ", kWhy);
  }
  return absl::OkStatus();
}

// Returns whether the token ids decode to exactly the message's text. This is false if the text was
// edited, or if the ids include control pieces.
bool SpellText(const ChatMessage& message, const Tokenizer& tokenizer, const PromptLimits& limits) {
  if (message.token_ids.empty() || message.token_ids.size() > limits.context_tokens) return false;
  std::string text, spelt;
  for (size_t i = 0; i < message.parts.size(); ++i) {
    text += message.parts[i].text;
    if (message.parts[i].cache_breakpoint && i + 1 < message.parts.size()) return false;
  }
  for (const int32_t id : message.token_ids) {
    const bool known = id >= 0 && static_cast<uint32_t>(id) < limits.vocab_size &&
                       id < tokenizer.size() && !tokenizer.IsSpecial(id);
    if (!known) return false;
    spelt += tokenizer.TokenBytes(id);
    if (spelt.size() > text.size()) return false;
  }
  return spelt == text;
}

ChatEnding EndingOf(const ChatInput& chat, PromptPurpose purpose) {
  const bool system_alone =
      std::all_of(chat.messages.begin(), chat.messages.end(),
                  [](const ChatMessage& message) { return IsSystemRole(message.role); });
  const bool open =
      chat.omit_generation_prompt || (system_alone && purpose == PromptPurpose::kPrefill);
  return chat.continue_final_message ? ChatEnding::kContinued
         : open                      ? ChatEnding::kOpen
                                     : ChatEnding::kGenerationPrompt;
}

// Renders a chat by the model's own template.
absl::StatusOr<Prompt> FromOwnTemplate(const ChatInput& chat, ChatEnding ending,
                                       const Tokenizer& tokenizer, const PromptLimits& limits) {
  absl::StatusOr<RenderedChat> rendered =
      limits.chat_template->Render(chat, ending, limits.stopped);
  if (!rendered.ok()) return rendered.status();
  if (rendered->text.empty()) return Invalid("chat: the chat template renders it to no text");
  if (absl::Status s = CheckText(rendered->text, "chat: the rendered text"); !s.ok()) return s;
  const std::string_view bos = MissingBos(rendered->text, tokenizer);
  rendered->text.insert(0, bos);
  for (size_t& at : rendered->breakpoints) at += bos.size();
  for (auto& [begin, end] : rendered->messages) {
    begin += bos.size();
    end += bos.size();
  }
  return FromRendered(*std::move(rendered), {}, "chat.messages", tokenizer, limits);
}

absl::StatusOr<Prompt> FromChat(const ChatInput& chat, PromptPurpose purpose,
                                const Tokenizer& tokenizer, const PromptLimits& limits) {
  if (!limits.why_no_chats.empty())
    return absl::FailedPreconditionError(absl::StrCat("chat: ", std::string(limits.why_no_chats)));
  if (absl::Status status = CheckChat(chat); !status.ok()) return status;
  const ChatEnding ending = EndingOf(chat, purpose);
  const ModelTemplate* const own = limits.chat_template;
  if (own == nullptr || !own->tools().reads_tools) {
    if (absl::Status status = CheckNoTools(chat); !status.ok()) return status;
  }
  if (own != nullptr) return FromOwnTemplate(chat, ending, tokenizer, limits);
  for (const char* marker : {kStartOfTurn, kEndOfTurn}) {
    if (!tokenizer.FindPiece(marker).has_value()) {
      return absl::FailedPreconditionError(
          absl::StrCat("chat: the model's tokenizer lacks the token ", marker));
    }
  }
  std::vector<ChatMessage> messages = chat.messages;
  for (ChatMessage& message : messages) {
    if (!SpellText(message, tokenizer, limits)) message.token_ids.clear();
  }
  absl::StatusOr<RenderedChat> rendered = RenderChat(messages, ending);
  if (!rendered.ok()) return rendered.status();
  if (absl::Status s = CheckText(rendered->text, "chat: the rendered text"); !s.ok()) return s;
  if (!chat.strict) rendered->messages.clear();
  return FromRendered(*std::move(rendered), messages, "chat.messages", tokenizer, limits);
}

}  // namespace

absl::StatusOr<Prompt> BuildPrompt(const PromptSource& source, PromptPurpose purpose,
                                   const Tokenizer* tokenizer, const PromptLimits& limits) {
  if (const auto* ids = std::get_if<std::vector<uint32_t>>(&source.input)) {
    return FromIds(*ids, source.breakpoints, limits);
  }
  if (tokenizer == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("prompt: ", std::string(limits.why_no_tokenizer), "; send token ids"));
  }
  if (const auto* text = std::get_if<std::string>(&source.input)) {
    return FromText(*text, source.breakpoints, source.omit_bos, *tokenizer, limits);
  }
  if (!source.breakpoints.empty()) {
    return Invalid("breakpoints: must be empty with a chat: set cache_breakpoint on its parts");
  }
  return FromChat(std::get<ChatInput>(source.input), purpose, *tokenizer, limits);
}

absl::Status CheckText(std::string_view text, std::string_view field) {
  if (text.size() > kMaxTextBytes) {
    return Invalid(View(field), ": has ", text.size(), " bytes; the limit is ", kMaxTextBytes);
  }
  if (const auto offset = FindInvalidUtf8(text); offset.has_value()) {
    return Invalid(View(field), ": is not valid UTF-8 at byte ", *offset);
  }
  return absl::OkStatus();
}

}  // namespace hearth
