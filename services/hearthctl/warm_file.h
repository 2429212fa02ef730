// Parses the YAML file of prompts for `hearthctl warm`:
//
//     prompts:                          # optional
//       - name: handbook                # shown in progress; default prompts[0], prompts[1], ...
//         text: "Text itself"           # or text_file (relative to this file), or token_ids
//         breakpoints: [120, 4096]      # byte offsets for text, token positions for token_ids
//         pin: true                     # never evicted; default false
//         ttl: 36h                      # time to live; default: the store's
//         adapter: legal                # an adapter of the worker; default: none
//       - token_ids: [2, 10, 11]
//     chats:                            # optional
//       - name: assistant
//         messages:                     # as in a chat file
//           - role: system
//             content: "You are brief." # or a list of {text, cache_breakpoint}
//             cache_breakpoint: true    # at the end of this message; default false
//         generation_prompt: false      # the last message is unfinished; default true
//         pin: true                     # ttl and adapter too, as above
//
// Unknown keys are errors that name the line, so that a misspelt `pin` is not ignored.
// Thread safety: pure functions.
#ifndef HEARTH_SERVICES_HEARTHCTL_WARM_FILE_H_
#define HEARTH_SERVICES_HEARTHCTL_WARM_FILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/inference.pb.h"

namespace hearth {

struct WarmEntry {
  std::string name;
  v1::PromptInput prompt;
  bool pin = false;
  uint32_t ttl_s = 0;   // time to live in seconds; 0: not given
  std::string adapter;  // name of the LoRA adapter; empty: none
};

// Parses a duration such as "36h" into seconds. Returns kInvalidArgument if `text` is not a
// duration.
absl::StatusOr<uint32_t> ParseTtl(const std::string& text);

// Parses the YAML text. Relative paths in `text_file` start at `folder`. kInvalidArgument names the
// line and what is wrong.
absl::StatusOr<std::vector<WarmEntry>> ParseWarmFile(const std::string& yaml,
                                                     const std::string& folder);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_WARM_FILE_H_
