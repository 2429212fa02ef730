// Reads the tokenizer of a model: where a file's faults become absl::Status.
//
// Thread safety: a pure function of the file's contents.
#ifndef HEARTH_WORKER_TEXT_TOKENIZER_LOADER_H_
#define HEARTH_WORKER_TEXT_TOKENIZER_LOADER_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/text/tokenizer.h"

namespace hearth {

// Gemma's files have 4.7 MB and 33 MB.
inline constexpr size_t kMaxTokenizerBytes = size_t{64} << 20;

// Which template chats are rendered by. Hearth renders Gemma's alone (chat_template.h).
enum class ChatTemplateChoice {
  kAuto,   // the model's: none, unless it is known to render as Gemma's, or the model has none
  kGemma,  // Gemma's, whatever template the model has
};

// Without a tokenizer a worker serves token ids, and says why to whoever sends text.
struct LoadedTokenizer {
  std::unique_ptr<Tokenizer> tokenizer;
  std::string file;          // that it was made of
  std::string why_none;      // empty where there is one
  std::string why_no_chats;  // a clause; empty where chats are rendered
  // What the tokenizer was made of, what was not taken as the file has it, and which chat template
  // comes with the model.
  std::vector<std::string> notes;
};

// Reads the header of a GGUF file. In a folder, reads tokenizer.json; if there is none,
// tokenizer.model, which is transformers' order; and the tokens that other files add
// (added_tokens.h). The tokenizer is null if the folder has neither file, or if a file asks for
// what Gemma's tokenizer does not do. Errors are one line that names the file and what is wrong
// with it.
absl::StatusOr<LoadedTokenizer> LoadTokenizer(
    const std::string& model, ChatTemplateChoice choice = ChatTemplateChoice::kAuto);

}  // namespace hearth

#endif  // HEARTH_WORKER_TEXT_TOKENIZER_LOADER_H_
