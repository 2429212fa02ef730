#include "worker/text/tokenizer_loader.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "proto/fingerprint.h"
#include "worker/model/gguf.h"
#include "worker/model/model_file.h"
#include "worker/model/model_json.h"
#include "worker/text/gguf_vocabulary.h"
#include "worker/text/vocabulary_file.h"

namespace hearth {
namespace {

using Json = nlohmann::json;
using Pieces = std::vector<VocabularyPiece>;

// SHA-256 of Gemma 3's published templates, white space at the ends left out: with line ends as
// they are, and written "\n".
constexpr std::string_view kPublishedTemplates[] = {
    "8d9e3a3c114fb2053ec500184677af4f7e5f8ec2582443cd535834e68b3ade29",
    "86327804b5430b642274fe55ba95199e91cf7eca7b1e1240ca5469f23839e223"};

// Only the default one of a list counts.
std::optional<std::string> TemplateOf(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return std::nullopt;
  for (const Json& one : value) {
    if (JsonAt(one, {"name"}) == "default" && !JsonAt(one, {"template"}).is_null())
      return TemplateOf(JsonAt(one, {"template"}));
  }
  return std::nullopt;
}

// A file that cannot be read is none: it only tells about the model.
std::optional<std::string> TemplateOfFolder(const std::string& dir) {
  auto text = ReadModelFile(dir + "/chat_template.jinja", kMaxJsonFileBytes);
  if (text.ok()) return *std::move(text);
  for (const char* name : {"/chat_template.json", "/tokenizer_config.json"}) {
    text = ReadModelFile(dir + name, kMaxJsonFileBytes);
    if (!text.ok()) continue;
    const absl::StatusOr<Json> json = ParseModelJson(*text);
    if (!json.ok()) continue;
    if (auto found = TemplateOf(JsonAt(*json, {"chat_template"})); found.has_value()) return found;
  }
  return std::nullopt;
}

void NoteTemplate(const std::optional<std::string>& text, std::vector<std::string>* notes) {
  if (!text.has_value()) {
    notes->push_back("chat_template: the model has none: chats are written by Gemma 3's");
    return;
  }
  const std::string digest = DigestHex(Sha256(absl::StripAsciiWhitespace(*text)));
  const auto known = std::find(std::begin(kPublishedTemplates), std::end(kPublishedTemplates),
                               std::string_view(digest));
  notes->push_back(absl::StrCat(
      "chat_template: the model's, of SHA-256 ", digest,
      known != std::end(kPublishedTemplates)
          ? ", is Gemma 3's published one"
          : ", is not Gemma 3's published one, by which chats are written here: render them by "
            "yours, and send the text as a prompt"));
}

// What a message quotes of a file may have any characters: control characters as "\x0a".
std::string OneLine(absl::string_view message) {
  std::string line;
  for (const char c : message) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) {
      absl::StrAppend(&line, "\\x", absl::Hex(c, absl::kZeroPad2));
    } else {
      line += c;
    }
  }
  return line;
}

// Makes a tokenizer of what was read of `path`.
absl::Status Make(const std::string& path, const absl::StatusOr<Pieces>& pieces,
                  LoadedTokenizer* loaded) {
  absl::Status status = pieces.status();
  if (status.ok()) {
    absl::StatusOr<std::unique_ptr<Tokenizer>> made = Tokenizer::Make(*pieces);
    status = made.status();
    if (made.ok()) {
      loaded->tokenizer = *std::move(made);
      loaded->notes.push_back(absl::StrCat("tokenizer: ", loaded->file, ", with ",
                                           loaded->tokenizer->size(), " pieces"));
    }
  }
  if (absl::IsUnimplemented(status)) {
    loaded->why_none =
        absl::StrCat(path, ": ", OneLine(status.message()), ", which Gemma's tokenizer does not");
  } else if (!status.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": ", OneLine(status.message())));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LoadedTokenizer> LoadTokenizer(const std::string& model) {
  LoadedTokenizer loaded;
  if (IsGgufFile(model)) {
    const absl::StatusOr<GgufHeader> header = ReadGgufHeader(model, /*with_vocabulary=*/true);
    if (!header.ok()) return header.status();
    loaded.file = model;
    const auto* text = std::get_if<std::string>(&header->Field("tokenizer.chat_template"));
    NoteTemplate(text == nullptr ? std::nullopt : std::optional(*text), &loaded.notes);
    const absl::Status made = Make(model, ReadGgufVocabulary(*header, &loaded.notes), &loaded);
    if (!made.ok()) return made;
    return loaded;
  }
  NoteTemplate(TemplateOfFolder(model), &loaded.notes);
  for (const char* const name : {"tokenizer.model", "tokenizer.json"}) {
    const std::string path = absl::StrCat(model, "/", name);
    absl::StatusOr<std::string> bytes = ReadModelFile(path, kMaxTokenizerBytes);
    if (absl::IsNotFound(bytes.status())) continue;
    if (!bytes.ok()) return bytes.status();
    const bool is_model = std::string_view(name) == "tokenizer.model";
    loaded.file = name;
    const absl::StatusOr<Pieces> pieces =
        is_model ? ReadTokenizerModel(*bytes) : ReadTokenizerJson(*bytes);
    *bytes = std::string();  // a tokenizer takes memory of its own
    if (absl::Status made = Make(path, pieces, &loaded); !made.ok()) return made;
    return loaded;
  }
  loaded.why_none = "this worker's model folder has no tokenizer.model and no tokenizer.json";
  return loaded;
}

}  // namespace hearth
