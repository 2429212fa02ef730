#include "services/hearthctl/ask/question_file.h"

#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "proto/digest.h"
#include "services/serving/json_reader.h"
#include "services/serving/json_value.h"

namespace hearth {
namespace {

absl::Status Bad(size_t line, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", why));
}

struct ReadLine {
  AskedQuestion question;
  bool has_ending = false;
};

// Reads one field. Returns the mistake in it, or an empty text.
std::string ReadField(absl::string_view name, JsonValue value, const std::string& question_template,
                      ReadLine* read) {
  const bool is_ending = name == "question" || name == "prompt" || name == "ending";
  if (is_ending || name == "token_ids") {
    if (std::exchange(read->has_ending, true)) {
      return "has two of question, ending, prompt and token_ids";
    }
  }
  const bool is_whole = value.Count(0, UINT64_MAX).ok() || value.Integer(INT64_MIN, INT64_MAX).ok();
  if (name == "id" && (value.is_string() || is_whole)) {
    read->question.id = value.is_string() ? std::string(*value.Text()) : value.Quote();
  } else if (name == "kind" && value.is_string()) {
    read->question.kind = std::string(*value.Text());
  } else if (is_ending && value.is_string()) {
    std::string text(*value.Text());
    if (name == "question") {
      text = absl::StrReplaceAll(question_template, {{kQuestionPlace, text}});
    }
    read->question.text = std::move(text);
  } else if (name == "token_ids" && value.is_list()) {
    absl::StatusOr<std::vector<uint32_t>> ids = value.Ids();
    if (!ids.ok()) return "has token_ids that are not all token ids";
    read->question.token_ids = *std::move(ids);
  } else {
    return absl::StrCat("has the field ", Quoted(name),
                        " or its type wrong; known are id, kind, question, ending and prompt "
                        "(texts), and token_ids (a list)");
  }
  return "";
}

absl::StatusOr<AskedQuestion> ReadQuestion(absl::string_view text, size_t line,
                                           const std::string& question_template) {
  const absl::StatusOr<JsonDocument> json = JsonDocument::Parse(text, "it");
  if (!json.ok() || !json->root().is_object()) {
    return Bad(
        line, absl::StrCat(R"(is not a JSON object, like {"id": "q1", "question": "Which river?"})",
                           json.ok() ? "" : "; ", json.ok() ? "" : json.status().message()));
  }
  ReadLine read;
  read.question.id = absl::StrCat(line);
  for (const JsonField field : json->root().fields()) {
    const std::string wrong = ReadField(field.name(), field.value(), question_template, &read);
    if (!wrong.empty()) return Bad(line, wrong);
  }
  if (read.question.text.empty() && read.question.token_ids.empty()) {
    return Bad(line, "has nothing in question, ending, prompt or token_ids");
  }
  return std::move(read.question);
}

// Where an answer is kept, and how long, is no part of it.
std::string DigestOf(const AskedQuestion& question, v1::GenerateRequest each) {
  each.clear_cache();
  each.clear_durability();
  each.clear_keep_s();
  each.clear_priority();
  return DigestHex(Sha256(absl::StrCat(each.SerializeAsString(), "\n", question.text, "\n",
                                       absl::StrJoin(question.token_ids, ","))));
}

}  // namespace

absl::StatusOr<std::vector<AskedQuestion>> ParseQuestions(const std::string& json_lines,
                                                          const std::string& question_template,
                                                          const v1::GenerateRequest& each) {
  std::vector<AskedQuestion> questions;
  std::map<std::string, size_t> line_of;
  size_t line = 0;
  for (const absl::string_view text : absl::StrSplit(json_lines, '\n')) {
    ++line;
    if (absl::StripAsciiWhitespace(text).empty()) continue;
    absl::StatusOr<AskedQuestion> question = ReadQuestion(text, line, question_template);
    if (!question.ok()) return question.status();
    const auto [before, is_new] = line_of.emplace(question->id, line);
    if (!is_new) {
      return Bad(line, absl::StrCat("has the id \"", before->first, "\" of line ", before->second));
    }
    question->sha256 = DigestOf(*question, each);
    questions.push_back(*std::move(question));
  }
  if (questions.empty()) return absl::InvalidArgumentError("there is no question in it");
  return questions;
}

}  // namespace hearth
