// PromptFlags: the flags that give a prompt on the command line, and their message.
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

// "2,3,4", spaces and new lines allowed, a JSON list too. kInvalidArgument names the bad item.
absl::StatusOr<std::vector<uint32_t>> ParseTokenIds(absl::string_view text);

// --adapter: the one that a prompt goes through.
CLI::Option* DeclareAdapter(CLI::App* command, std::string* adapter);

// --keep, --priority: hints for the store, of what a call keeps.
void DeclareHint(CLI::App* command, KeepHint* hint);

class PromptFlags {
 public:
  // --prompt, --prompt-file, --chat, --token-ids, --token-ids-file: exactly one is required.
  // `takes_word`: so is a text without a flag, as with --prompt.
  void Declare(CLI::App* command, bool takes_word = true);
  // Reads files. kInvalidArgument or kNotFound name the flag or file and the mistake.
  absl::StatusOr<v1::PromptInput> Build() const;

 private:
  std::string prompt_, prompt_file_, chat_file_, token_ids_, token_ids_file_;
  bool has_prompt_ = false;
  std::vector<uint32_t> breakpoints_;
  bool omit_generation_prompt_ = false;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_PROMPT_FLAGS_H_
