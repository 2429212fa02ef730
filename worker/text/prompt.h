// Prompt: converts a caller's input (text, chat or token ids) to token ids and breakpoints.
//
// A breakpoint in text becomes the longest common token prefix of the text up to there and the
// whole prompt. Every longer prompt with the same beginning shares this cut.
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

// Each declared breakpoint costs a prefill step and a kept tail. 1,024 of them in 131,072 tokens
// are one per C = 128 tokens.
inline constexpr size_t kMaxDeclaredBreakpoints = 1024;
// The shortest turn has 5 tokens, so more messages do not fit the longest context.
inline constexpr size_t kMaxChatMessages = 131072 / 5;

struct ChatInput {
  std::vector<ChatMessage> messages;
  // Add no generation prompt; a final user message stays open.
  bool omit_generation_prompt = false;
  // Control pieces and turn markers in a message are plain characters, so a message cannot end its
  // own turn.
  bool strict = false;
  // The last message is the beginning of the answer; its turn stays open.
  bool continue_final_message = false;
};

struct PromptSource {
  // Text (gets <bos> unless it begins with it), token ids, or a chat.
  std::variant<std::string, std::vector<uint32_t>, ChatInput> input;
  // Byte offsets in text, or token positions in token ids, in (0, length], in any order. For a
  // chat, set cache_breakpoint on its parts.
  std::vector<uint32_t> breakpoints;
  bool omit_bos = false;  // do not add <bos> to text
};

struct PromptLimits {
  uint32_t vocab_size = 0;
  uint32_t context_tokens = 0;
  // Polled every few milliseconds; true ends the work with kCancelled. Null: never cancelled.
  std::function<bool()> stopped = nullptr;
  // Reason, for errors, if there is no tokenizer.
  std::string_view why_no_tokenizer = "this worker has no tokenizer";
  // If not empty, chats are refused with this reason.
  std::string_view why_no_chats = "";
};

// For kPrefill, a chat with only a system text leaves the user turn open.
enum class PromptPurpose { kGenerate, kPrefill };

// Invariants: token_ids is not empty, each in [0, vocab_size); breakpoints strictly increase, in
// (0, token_ids.size()].
struct Prompt {
  std::vector<int32_t> token_ids;
  std::vector<uint32_t> breakpoints;
  std::vector<uint32_t> declared;  // the breakpoints that the caller declared
  std::string text;                // the rendered prompt; empty for token ids
};

// `tokenizer`: null if the model folder has none that is supported. Encodes at most twice the
// context. kInvalidArgument names the field and the limit. kFailedPrecondition: text or chat
// without a tokenizer, a chat if the tokenizer has no turn markers, or a chat if why_no_chats is
// set.
absl::StatusOr<Prompt> BuildPrompt(const PromptSource& source, PromptPurpose purpose,
                                   const Tokenizer* tokenizer, const PromptLimits& limits);

// kInvalidArgument, with `field` and the byte offset or the limit, unless `text` is well-formed
// UTF-8 of at most kMaxTextBytes.
absl::Status CheckText(std::string_view text, std::string_view field);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_PROMPT_H_
