// Prompt: converts a caller's input (text, chat or token ids) to token ids and breakpoints.
//
// A breakpoint in text becomes a token index: the length of the longest common token prefix of (the
// text before the breakpoint) and (the whole text). Every longer prompt with the same beginning
// gets the same index.
// Thread safety: pure functions; the tokenizer is only read.
#ifndef HEARTH_WORKER_TEXT_PROMPT_H_
#define HEARTH_WORKER_TEXT_PROMPT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/text/chat_template.h"
#include "worker/text/tokenizer.h"

namespace hearth {

class ModelTemplate;

// Each declared breakpoint costs a prefill step and a saved copy of KV. 1,024 breakpoints in
// 131,072 tokens are one per 128 tokens (the default chunk).
inline constexpr size_t kMaxDeclaredBreakpoints = 1024;
// More messages do not fit the longest context: the shortest turn has 5 tokens.
inline constexpr size_t kMaxChatMessages = 131072 / 5;

struct ChatInput {
  std::vector<ChatMessage> messages;
  // Do not open a model turn at the end; a final user turn stays open.
  bool omit_generation_prompt = false;
  // Encode control pieces and turn markers inside messages as plain characters, so that a message
  // cannot end its turn.
  bool strict = false;
  // The last message is the beginning of the model's answer, so the model's turn stays open.
  bool continue_final_message = false;
  // Only for a model's own template that reads tools: the tools (JSON objects), and the beginning
  // of the answer, which follows the generation prompt.
  std::vector<std::string> tools = {};
  std::string answer_prefix = {};
};

struct PromptSource {
  // Text ("<bos>" is added unless the text begins with it), token ids, or a chat.
  std::variant<std::string, std::vector<uint32_t>, ChatInput> input;
  // Byte offsets in text, or token positions in token ids; in (0, length], in any order. For a
  // chat, set ChatPart::cache_breakpoint instead.
  std::vector<uint32_t> breakpoints;
  bool omit_bos = false;  // do not add <bos> to text
};

struct PromptLimits {
  uint32_t vocab_size = 0;
  uint32_t context_tokens = 0;
  // Called every few milliseconds; if it returns true, BuildPrompt returns kCancelled. Null: never
  // cancelled.
  std::function<bool()> stopped = nullptr;
  // If there is no tokenizer: the reason, for error messages.
  std::string_view why_no_tokenizer = "this worker has no tokenizer";
  // If not empty: chats are refused, with this reason.
  std::string_view why_no_chats = "";
  // Renders chats; null: Gemma's template renders them.
  const ModelTemplate* chat_template = nullptr;
};

// With kPrefill, the user turn stays open if a chat has only system text.
enum class PromptPurpose { kGenerate, kPrefill };

// Invariants: token_ids is not empty, and each id is in [0, vocab_size). breakpoints strictly
// increase and are in (0, token_ids.size()].
struct Prompt {
  std::vector<int32_t> token_ids;
  std::vector<uint32_t> breakpoints;
  std::vector<uint32_t> declared;  // those of `breakpoints` that the caller declared
  std::string text;                // the rendered prompt; empty for token ids
};

// Converts `source` to a prompt. `tokenizer`: null if the model has no supported tokenizer. Stops
// encoding at twice the context. kInvalidArgument names the field and the limit.
// kFailedPrecondition: text or chat without a tokenizer; a chat although why_no_chats is set, or
// although Gemma's template renders it and the tokenizer has no turn markers. Errors of
// ModelTemplate::Render are returned unchanged.
absl::StatusOr<Prompt> BuildPrompt(const PromptSource& source, PromptPurpose purpose,
                                   const Tokenizer* tokenizer, const PromptLimits& limits);

// Returns OK if `text` is well-formed UTF-8 of at most kMaxTextBytes. Otherwise kInvalidArgument,
// with `field` and the byte offset or the limit.
absl::Status CheckText(std::string_view text, std::string_view field);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_PROMPT_H_
