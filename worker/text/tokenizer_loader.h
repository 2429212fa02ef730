// Loads the tokenizer of a model. Reports faults of its files as absl::Status.
//
// Thread safety: a pure function of the files' contents.
#ifndef HEARTH_WORKER_TEXT_TOKENIZER_LOADER_H_
#define HEARTH_WORKER_TEXT_TOKENIZER_LOADER_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/text/jinja/model_template.h"
#include "worker/text/tokenizer.h"

namespace hearth {

// Gemma's tokenizer files have 4.7 MB (tokenizer.model) and 33 MB (tokenizer.json).
inline constexpr size_t kMaxTokenizerBytes = size_t{64} << 20;

// Which template renders chats.
enum class ChatTemplateChoice {
  kAuto,   // the model's; Gemma's if the model has none
  kGemma,  // Gemma's, even if the model has another template
};

// Without a tokenizer, the worker accepts only token ids, and its errors state the reason
// `why_none`.
struct LoadedTokenizer {
  std::unique_ptr<Tokenizer> tokenizer;
  std::string file;          // file from which the tokenizer was read
  std::string why_none;      // empty if there is a tokenizer
  std::string why_no_chats;  // reason for refusing chats; empty if chats are accepted
  // Null if Gemma's template renders chats (chat_template.h).
  std::unique_ptr<ModelTemplate> chat_template;
  // Lines for the log: the tokenizer's file, differences from the file, and the model's chat
  // template.
  std::vector<std::string> notes;
};

// Loads a tokenizer from a GGUF file's header or from a folder: from tokenizer.json, else from
// tokenizer.model (the order of transformers). Adds the tokens of the folder's other files
// (added_tokens.h). The tokenizer is null if there is no such file, or if a file needs a feature
// that Gemma's tokenizer does not have. Errors are one line that names the file and its fault.
absl::StatusOr<LoadedTokenizer> LoadTokenizer(
    const std::string& model, ChatTemplateChoice choice = ChatTemplateChoice::kAuto);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_TOKENIZER_LOADER_H_
