// The questions that `hearthctl ask` asks about one context, a JSON object a line:
//
//   {"id": "q1", "question": "Which river?"}        put into --template, where {question} is
//   {"ending": " and the river is called"}          goes on where the context ends; or "prompt"
//   {"token_ids": [5, 7], "kind": "ids"}            after a context of token ids
//
// `id` is a text or a whole number, and the line's number where there is none; no two are equal.
// `kind` is what the report has a row for. Unknown fields are refused with their line.
// Thread safety: pure functions.
#ifndef HEARTH_SERVICES_HEARTHCTL_ASK_QUESTION_FILE_H_
#define HEARTH_SERVICES_HEARTHCTL_ASK_QUESTION_FILE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/inference.pb.h"

namespace hearth {

inline constexpr char kDefaultQuestionTemplate[] = "\n\nQuestion: {question}\nAnswer:";
// What stands for the question in a template.
inline constexpr char kQuestionPlace[] = "{question}";

struct AskedQuestion {
  v1::Question question;
  std::string kind;    // may be empty
  std::string sha256;  // of the ending and of how it is to be answered
};

// `each`: how the questions are to be answered. kInvalidArgument says what is wrong in which line.
absl::StatusOr<std::vector<AskedQuestion>> ParseQuestions(const std::string& json_lines,
                                                          const std::string& question_template,
                                                          const v1::GenerateRequest& each);

}  // namespace hearth

#endif  // HEARTH_SERVICES_HEARTHCTL_ASK_QUESTION_FILE_H_
