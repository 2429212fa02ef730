#include "services/hearthctl/ask/asked_prompts.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"

namespace hearth {
namespace {

// A text is turned into tokens once where it is longer; its end has at least so many bytes.
constexpr size_t kLongTextBytes = 4096;
constexpr size_t kEndBytes = 512;

std::vector<uint32_t> IdsOf(const v1::TokenizeResponse& made) {
  return {made.token_ids().begin(), made.token_ids().end()};
}

size_t CommonPrefix(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b) {
  const size_t shorter = std::min(a.size(), b.size());
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + shorter, b.begin()).first -
                             a.begin());
}

v1::PromptInput TextInput(std::string text) {
  v1::PromptInput input;
  input.set_text(std::move(text));
  return input;
}

// After a chat a question is the user's next message, or the end of the last one if that is the
// user's.
void AddToChat(const std::string& text, v1::Chat* chat) {
  const int messages = chat->messages_size();
  v1::ChatMessage* last = messages == 0 ? nullptr : chat->mutable_messages(messages - 1);
  if (last == nullptr || last->role() != "user") {
    last = chat->add_messages();
    last->set_role("user");
  }
  last->add_parts()->set_text(text);
}

// Where the last words begin: at a space behind a letter, and 0 where there is none.
size_t LastWords(const std::string& text) {
  if (text.size() <= kLongTextBytes) return 0;
  size_t at = text.size() - kEndBytes;
  while (at > 0 && !(text[at] == ' ' && absl::ascii_isalpha(text[at - 1]))) --at;
  return at;
}

}  // namespace

absl::StatusOr<AskedPrompts> AskedPrompts::Make(const v1::PromptInput& context,
                                                const std::vector<AskedQuestion>& questions,
                                                const Tokenize& tokenize, const ForEach& for_each) {
  AskedPrompts made;
  const absl::Status read = made.ReadContext(context, tokenize);
  if (!read.ok()) return read;
  std::vector<absl::StatusOr<Asked>> all(questions.size());
  for_each(questions.size(),
           [&](size_t i) { all[i] = made.Read(context, questions[i], tokenize); });
  uint32_t boundary = std::numeric_limits<uint32_t>::max();
  for (absl::StatusOr<Asked>& asked : all) {
    if (absl::IsInvalidArgument(asked.status())) {
      Asked refused;
      refused.status = asked.status();
      asked = std::move(refused);
    }
    if (!asked.ok()) return asked.status();
    if (asked->status.ok()) boundary = std::min(boundary, asked->common);
    made.asked_.push_back(*std::move(asked));
  }
  const auto first = std::find_if(made.asked_.begin(), made.asked_.end(),
                                  [](const Asked& asked) { return asked.status.ok(); });
  if (first == made.asked_.end()) return made;
  made.boundary_ = boundary;
  for (const uint32_t at : first->breakpoints) {
    if (at < boundary) made.breakpoints_.push_back(at);
  }
  return made;
}

absl::Status AskedPrompts::ReadContext(const v1::PromptInput& context, const Tokenize& tokenize) {
  if (context.has_token_ids()) {
    context_.assign(context.token_ids().ids().begin(), context.token_ids().ids().end());
    return absl::OkStatus();
  }
  v1::PromptInput alone = context;
  if (alone.has_chat()) alone.mutable_chat()->set_omit_generation_prompt(true);
  const absl::StatusOr<v1::TokenizeResponse> whole = tokenize(alone);
  if (!whole.ok()) return whole.status();
  context_ = IdsOf(*whole);
  return context.has_text() ? FindEnd(context.text(), tokenize) : absl::OkStatus();
}

absl::Status AskedPrompts::FindEnd(const std::string& text, const Tokenize& tokenize) {
  const size_t at = LastWords(text);
  if (at == 0) return absl::OkStatus();
  const absl::StatusOr<v1::TokenizeResponse> made = tokenize(TextInput(text.substr(at)));
  if (!made.ok()) return made.status();
  const std::vector<uint32_t> ids = IdsOf(*made);
  // Each begins with the token that begins every text; else the whole text is taken each time.
  const bool fits = !ids.empty() && ids.size() <= context_.size() && ids[0] == context_[0] &&
                    std::equal(ids.rbegin(), ids.rend() - 1, context_.rbegin());
  if (!fits) return absl::OkStatus();
  end_ = text.substr(at);
  end_ids_ = ids;
  return absl::OkStatus();
}

absl::StatusOr<AskedPrompts::Asked> AskedPrompts::Read(const v1::PromptInput& context,
                                                       const AskedQuestion& question,
                                                       const Tokenize& tokenize) const {
  if (context.has_token_ids() != question.text.empty()) {
    return absl::InvalidArgumentError(
        context.has_token_ids() ? "text: the context has token_ids, so this is to have them too"
                                : "token_ids: the context has none, so this is to be a text");
  }
  if (context.has_token_ids()) {
    return Asked{absl::OkStatus(), static_cast<uint32_t>(context_.size()), question.token_ids, {}};
  }
  if (!end_.empty()) {
    absl::StatusOr<Asked> asked = BehindEnd(question, tokenize);
    if (!asked.ok() || asked->common > 0) return asked;
  }
  v1::PromptInput input = context;
  if (input.has_chat()) {
    AddToChat(question.text, input.mutable_chat());
  } else {
    input.mutable_text()->append(question.text);
  }
  const absl::StatusOr<v1::TokenizeResponse> whole = tokenize(input);
  if (!whole.ok()) return whole.status();
  return Behind(*whole);
}

// common 0: the question changes the end's first token, so that it may reach further back.
absl::StatusOr<AskedPrompts::Asked> AskedPrompts::BehindEnd(const AskedQuestion& question,
                                                            const Tokenize& tokenize) const {
  const absl::StatusOr<v1::TokenizeResponse> made = tokenize(TextInput(end_ + question.text));
  if (!made.ok()) return made.status();
  const std::vector<uint32_t> ids = IdsOf(*made);
  const size_t same = CommonPrefix(end_ids_, ids);
  if (same < 2) return Asked();
  Asked asked;
  asked.common = static_cast<uint32_t>(context_.size() - end_ids_.size() + same);
  asked.rest.assign(ids.begin() + same, ids.end());
  return asked;
}

AskedPrompts::Asked AskedPrompts::Behind(const v1::TokenizeResponse& whole) const {
  const std::vector<uint32_t> ids = IdsOf(whole);
  Asked asked;
  asked.common = static_cast<uint32_t>(CommonPrefix(context_, ids));
  asked.rest.assign(ids.begin() + asked.common, ids.end());
  asked.breakpoints.assign(whole.breakpoints().begin(), whole.breakpoints().end());
  return asked;
}

v1::PromptInput AskedPrompts::Shared() const {
  assert(boundary_ > 0);
  v1::PromptInput input;
  input.mutable_token_ids()->mutable_ids()->Add(context_.begin(), context_.begin() + boundary_);
  input.mutable_breakpoints()->Add(breakpoints_.begin(), breakpoints_.end());
  input.add_breakpoints(boundary_);
  return input;
}

absl::StatusOr<v1::PromptInput> AskedPrompts::PromptOf(size_t question) const {
  const Asked& asked = asked_.at(question);
  if (!asked.status.ok()) return asked.status;
  v1::PromptInput input;
  auto* ids = input.mutable_token_ids()->mutable_ids();
  ids->Add(context_.begin(), context_.begin() + asked.common);
  ids->Add(asked.rest.begin(), asked.rest.end());
  if (boundary_ > 0) input.add_breakpoints(boundary_);
  for (const uint32_t at : asked.breakpoints) {
    if (at != boundary_) input.add_breakpoints(at);
  }
  return input;
}

}  // namespace hearth
