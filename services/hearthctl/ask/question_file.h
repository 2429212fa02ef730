// Parses the questions for `hearthctl ask` about one context, a JSON object a line:
//
//   {"id": "q1", "question": "Which river?"}        put into --template, where {question} is
//   {"ending": " and the river is called"}          goes on where the context ends; or "prompt"
//   {"token_ids": [5, 7], "kind": "ids"}            after a context of token ids
//
// `id` is a text or a whole number, by default the line's number; no two are equal. `kind` is a
// word that comes back with the answer. Unknown fields are refused with their line.
// Thread safety: pure functions.
#ifndef HEARTH_SERVICES_HEARTHCTL_ASK_QUESTION_FILE_H_
#define HEARTH_SERVICES_HEARTHCTL_ASK_QUESTION_FILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/inference.pb.h"

namespace hearth {

inline constexpr char kDefaultQuestionTemplate[] = "\n\nQuestion: {question}\nAnswer:";
// The placeholder of the question in a template.
inline constexpr char kQuestionPlace[] = "{question}";

struct AskedQuestion {
  std::string id;
  // What the context goes on with: one of them. After a chat, text is the user's next message, or
  // the end of the last one if that is the user's.
  std::string text;
  std::vector<uint32_t> token_ids;
  std::string kind;    // may be empty
  std::string sha256;  // of the ending and the settings of its answer
};

// `each`: the settings of the answers. kInvalidArgument names the line and the mistake.
absl::StatusOr<std::vector<AskedQuestion>> ParseQuestions(const std::string& json_lines,
                                                          const std::string& question_template,
                                                          const v1::GenerateRequest& each);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_ASK_QUESTION_FILE_H_
