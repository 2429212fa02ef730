// PromptFlags: the flags for a prompt on the command line, and the prompt's message.
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

// Parses "2,3,4", ids separated by spaces or line ends, or a JSON list. kInvalidArgument names the
// bad item.
absl::StatusOr<std::vector<uint32_t>> ParseTokenIds(absl::string_view text);

// Declares --adapter, the adapter for the prompt.
CLI::Option* DeclareAdapter(CLI::App* command, std::string* adapter);

// Declares --keep and --priority, hints for the store about the entries that a call keeps.
void DeclareHint(CLI::App* command, KeepHint* hint);

class PromptFlags {
 public:
  // Declares --prompt, --prompt-file, --chat, --token-ids and --token-ids-file, of which exactly
  // one is required. `takes_word`: an argument without a flag is also a prompt.
  void Declare(CLI::App* command, bool takes_word = true);
  // Returns the prompt; reads the named files. kInvalidArgument and kNotFound name the flag or file
  // and the mistake.
  absl::StatusOr<v1::PromptInput> Build() const;

 private:
  std::string prompt_, prompt_file_, chat_file_, token_ids_, token_ids_file_;
  bool has_prompt_ = false;
  std::vector<uint32_t> breakpoints_;
  bool omit_generation_prompt_ = false;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_PROMPT_FLAGS_H_
