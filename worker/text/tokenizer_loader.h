// Loads the tokenizer of a model, and reports faults of its files as absl::Status.
//
// Thread safety: a pure function of the files' contents.
#ifndef HEARTH_WORKER_TEXT_TOKENIZER_LOADER_H_
#define HEARTH_WORKER_TEXT_TOKENIZER_LOADER_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/text/tokenizer.h"

namespace hearth {

// Gemma's tokenizer files have 4.7 MB and 33 MB.
inline constexpr size_t kMaxTokenizerBytes = size_t{64} << 20;

// The template that renders chats. Only Gemma's is implemented (chat_template.h).
enum class ChatTemplateChoice {
  kAuto,   // the model's, if known to render as Gemma's; Gemma's if the model has none
  kGemma,  // Gemma's, ignoring the model's template
};

// Without a tokenizer a worker accepts only token ids; `why_none` is the reason given to callers.
struct LoadedTokenizer {
  std::unique_ptr<Tokenizer> tokenizer;
  std::string file;          // source of the tokenizer
  std::string why_none;      // empty if there is a tokenizer
  std::string why_no_chats;  // a clause; empty if chats are supported
  // For the log: the tokenizer's source, differences from the file, and the model's chat template.
  std::vector<std::string> notes;
};

// Loads a tokenizer from a GGUF file's header or, in a folder, from tokenizer.json or else
// tokenizer.model (transformers' order), and adds tokens of other files (added_tokens.h). The
// tokenizer is null if there is no such file, or if a file needs a feature that Gemma's tokenizer
// does not have. Errors are one line with the file and its fault.
absl::StatusOr<LoadedTokenizer> LoadTokenizer(
    const std::string& model, ChatTemplateChoice choice = ChatTemplateChoice::kAuto);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_TOKENIZER_LOADER_H_
