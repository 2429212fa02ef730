// Prompt: what a caller sent (text, a chat or token ids) as token ids and breakpoints.
//
// A breakpoint on text is the longest common token prefix of the prompt up to there and the whole
// prompt: a cut that every longer prompt with the same beginning can share.
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

// A declared breakpoint costs a prefill step of its own and a kept tail; a thousand of them in
// 131,072 tokens is one every C = 128.
inline constexpr size_t kMaxDeclaredBreakpoints = 1024;
// The shortest turn has 5 tokens: more messages than this never fit the longest context.
inline constexpr size_t kMaxChatMessages = 131072 / 5;

struct ChatInput {
  std::vector<ChatMessage> messages;
  // No generation prompt: a user message at the end is left unfinished.
  bool omit_generation_prompt = false;
  // A control piece or turn marker in a message counts as plain characters, so that a message
  // cannot end its own turn.
  bool strict = false;
  // The last message is the beginning of the answer: its turn is left open.
  bool continue_final_message = false;
};

struct PromptSource {
  // Text (<bos> is prepended unless it begins with it), token ids, or a chat.
  std::variant<std::string, std::vector<uint32_t>, ChatInput> input;
  // Byte offsets for text, token positions for token ids, in (0, length], in any order. For a chat
  // the parts carry them.
  std::vector<uint32_t> breakpoints;
  bool omit_bos = false;  // of text: no <bos> is prepended
};

struct PromptLimits {
  uint32_t vocab_size = 0;
  uint32_t context_tokens = 0;
  // Asked every few milliseconds: true ends the work with kCancelled. Null: it goes to its end.
  std::function<bool()> stopped = nullptr;
  // For the errors of texts, where there is no tokenizer.
  std::string_view why_no_tokenizer = "this worker has no tokenizer";
  // Not empty: chats are refused, for this reason.
  std::string_view why_no_chats = "";
};

// If a chat has only a system text, a prefill leaves its turn open for a user's message.
enum class PromptPurpose { kGenerate, kPrefill };

// Invariants: token_ids is not empty, each in [0, vocab_size); breakpoints strictly increase, in
// (0, token_ids.size()].
struct Prompt {
  std::vector<int32_t> token_ids;
  std::vector<uint32_t> breakpoints;
  std::vector<uint32_t> declared;  // of the breakpoints; a chat has its own besides
  std::string text;                // the rendered prompt; empty for token ids
};

// `tokenizer` is null for a model folder without one that can be used.
// A text is read no further than twice the context. kInvalidArgument naming field and limit;
// kFailedPrecondition for text or chat without a tokenizer, or for a chat when the tokenizer has no
// turn markers, or why_no_chats is set.
absl::StatusOr<Prompt> BuildPrompt(const PromptSource& source, PromptPurpose purpose,
                                   const Tokenizer* tokenizer, const PromptLimits& limits);

// kInvalidArgument, naming `field` and the byte offset or the limit, unless `text` is well-formed
// UTF-8 of at most kMaxTextBytes.
absl::Status CheckText(std::string_view text, std::string_view field);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_PROMPT_H_
