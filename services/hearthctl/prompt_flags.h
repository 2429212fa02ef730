// PromptFlags: the command-line flags for a prompt, from which it builds the prompt message.
//
// Thread safety: none.
#ifndef HEARTH_SERVICES_HEARTHCTL_PROMPT_FLAGS_H_
#define HEARTH_SERVICES_HEARTHCTL_PROMPT_FLAGS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/inference.pb.h"
#include "proto/kv_layout.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace hearth {

// Parses token ids: "2,3,4", ids separated by spaces or line ends, or a JSON list. kInvalidArgument
// names the invalid id.
absl::StatusOr<std::vector<uint32_t>> ParseTokenIds(absl::string_view text);

// Declares --adapter, the LoRA adapter that the prompt is computed with.
CLI::Option* DeclareAdapter(CLI::App* command, std::string* adapter);

// Declares --keep and --priority: hints for the store about the restore points of this call.
void DeclareHint(CLI::App* command, KeepHint* hint);

class PromptFlags {
 public:
  // Declares --prompt, --prompt-file, --chat, --token-ids and --token-ids-file; the user must give
  // exactly one of them. If `takes_word` is true, an argument without a flag is also a prompt.
  void Declare(CLI::App* command, bool takes_word = true);
  // Returns the prompt message; reads the files that the flags name. kInvalidArgument and kNotFound
  // name the flag or the file, and what is wrong.
  absl::StatusOr<v1::PromptInput> Build() const;

 private:
  std::string prompt_, prompt_file_, chat_file_, token_ids_, token_ids_file_;
  bool has_prompt_ = false;
  std::vector<uint32_t> breakpoints_;
  bool omit_generation_prompt_ = false;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_PROMPT_FLAGS_H_
