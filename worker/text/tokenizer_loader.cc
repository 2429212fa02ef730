#include "worker/text/tokenizer_loader.h"

#include <iterator>
#include <map>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "proto/fingerprint.h"
#include "worker/model/gguf.h"
#include "worker/model/model_file.h"
#include "worker/model/model_json.h"
#include "worker/text/added_tokens.h"
#include "worker/text/gguf_vocabulary.h"
#include "worker/text/template_form.h"
#include "worker/text/vocabulary_file.h"

namespace hearth {
namespace {

using Json = nlohmann::json;
using Pieces = std::vector<VocabularyPiece>;
using Variables = std::map<std::string, std::string>;  // of a chat template

constexpr char kOtherWays[] =
    "; send the rendered text as a prompt, or start the worker with --chat-template gemma to use "
    "Gemma 3's template";
// Special tokens that are variables of a chat template.
constexpr const char* kTokenNames[] = {"bos_token", "eos_token", "unk_token", "pad_token"};

// Replaces control characters, for a message of one line: a newline becomes "\x0a".
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

// A chat template and the file from which it was read.
struct FoundTemplate {
  std::string from;
  absl::StatusOr<std::string> text;  // an error if the file is unreadable or has no valid template
};

// Returns the template in a JSON value. If the value is a list of templates, returns the one named
// "default".
absl::StatusOr<std::string> TemplateOf(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_array()) {
    for (const Json& one : value) {
      if (JsonAt(one, {"name"}) == "default" && JsonAt(one, {"template"}).is_string())
        return JsonAt(one, {"template"}).get<std::string>();
    }
  }
  return absl::InvalidArgumentError("chat_template must be a string or a list with a default");
}

// Returns the chat templates that transformers' tokenizer or processor may use. A file that cannot
// be read is returned with its error, since it may contain any template.
std::vector<FoundTemplate> TemplatesOfFolder(const std::string& dir) {
  std::string path = dir + "/chat_template.jinja";
  auto text = ReadModelFile(path, kMaxJsonFileBytes);
  if (text.ok()) return {{path, *std::move(text)}};
  if (!absl::IsNotFound(text.status())) return {{path, text.status()}};
  std::vector<FoundTemplate> found;
  for (const char* name : {"/chat_template.json", "/tokenizer_config.json"}) {
    path = dir + name;
    text = ReadModelFile(path, kMaxJsonFileBytes);
    if (absl::IsNotFound(text.status())) continue;
    const absl::StatusOr<Json> json = text.ok() ? ParseModelJson(*text) : text.status();
    if (!json.ok()) {
      found.push_back({path, json.status()});
      continue;
    }
    const Json& value = JsonAt(*json, {"chat_template"});
    if (!value.is_null()) found.push_back({path, TemplateOf(value)});
  }
  return found;
}

// Returns "PATH (SHA-256 ...)", or "PATH (why it has no template)".
std::string Which(const FoundTemplate& found) {
  return absl::StrCat(
      OneLine(found.from), " (",
      found.text.ok()
          ? absl::StrCat("SHA-256 ", DigestHex(Sha256(absl::StripAsciiWhitespace(*found.text))))
          : OneLine(absl::StripPrefix(found.text.status().message(), found.from + ": ")),
      ")");
}

// Starts the process that renders chats by the template. Sets why_no_chats if that fails.
void UseOwnTemplate(const FoundTemplate& found, const Variables& variables,
                    LoadedTokenizer* loaded) {
  const auto make = [&] {
    return ModelTemplate::Make(OneLine(found.from), *found.text, variables, *loaded->tokenizer);
  };
  auto made = make();
  if (absl::IsUnavailable(made.status())) made = make();  // the machine may be busy
  if (made.ok()) {
    loaded->chat_template = *std::move(made);
    loaded->notes.push_back(
        absl::StrCat("chat_template: ", Which(found), " renders chats, by Python's Jinja"));
    return;
  }
  loaded->why_no_chats = absl::StrCat("the model's chat template, ", OneLine(found.from), ", ",
                                      OneLine(made.status().message()), kOtherWays);
}

// Chooses the template that renders chats, and adds notes about the model's templates. Sets
// why_no_chats if the worker must refuse chats.
void ChooseTemplate(const std::vector<FoundTemplate>& templates, ChatTemplateChoice choice,
                    const Variables& variables, LoadedTokenizer* loaded) {
  const FoundTemplate* own = nullptr;
  for (const FoundTemplate& found : templates) {
    const bool is_known = found.text.ok() && RendersAsGemma(*found.text);
    if (is_known || choice == ChatTemplateChoice::kGemma) {
      loaded->notes.push_back(
          absl::StrCat("chat_template: ", Which(found),
                       is_known ? " renders as Gemma 3's"
                                : " is ignored: --chat-template gemma renders chats by Gemma 3's"));
    } else if (!found.text.ok()) {
      loaded->why_no_chats =
          absl::StrCat("the model's chat template is not known: ", Which(found), kOtherWays);
    } else {
      own = &found;
    }
  }
  if (own != nullptr && loaded->why_no_chats.empty()) {
    for (const FoundTemplate& found : templates) {
      if (*found.text == *own->text) continue;
      loaded->why_no_chats = absl::StrCat("the model has two chat templates that differ, ",
                                          Which(found), " and ", Which(*own), kOtherWays);
    }
  }
  if (own != nullptr && loaded->why_no_chats.empty() && loaded->tokenizer != nullptr)
    UseOwnTemplate(*own, variables, loaded);
  if (!loaded->why_no_chats.empty())
    loaded->notes.push_back(
        absl::StrCat("chat_template: chats are refused: ", loaded->why_no_chats));
  if (templates.empty())
    loaded->notes.push_back("chat_template: the model has none: Gemma 3's is used");
}

// Returns the value of why_none for a file that needs the unsupported feature `what`.
std::string UnsupportedReason(absl::string_view what) {
  return absl::StrCat(OneLine(what), "; only tokenizers like Gemma's are supported");
}

// Makes the tokenizer from the pieces read from `path`.
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
    loaded->why_none = UnsupportedReason(absl::StrCat(path, ": ", status.message()));
  } else if (!status.ok()) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": ", OneLine(status.message())));
  }
  return absl::OkStatus();
}

// Returns the special tokens that tokenizer_config.json names.
Variables VariablesOfFolder(const std::string& folder) {
  const auto text = ReadModelFile(folder + "/tokenizer_config.json", kMaxJsonFileBytes);
  const absl::StatusOr<Json> json = text.ok() ? ParseModelJson(*text) : text.status();
  Variables variables;
  for (const char* const name : kTokenNames) {
    if (!json.ok()) break;
    const Json& token = JsonAt(*json, {name});
    const Json& content = token.is_object() ? JsonAt(token, {"content"}) : token;
    if (content.is_string()) variables[name] = content.get<std::string>();
  }
  return variables;
}

// Returns the special tokens whose ids the header has.
Variables VariablesOfGguf(const GgufHeader& header, const Tokenizer& tokenizer) {
  constexpr const char* kIds[] = {"bos_token_id", "eos_token_id", "unknown_token_id",
                                  "padding_token_id"};
  Variables variables;
  for (size_t i = 0; i < std::size(kIds); ++i) {
    const auto* const id = std::get_if<uint64_t>(&header.Field(kIds[i]));
    if (id != nullptr && *id < static_cast<uint64_t>(tokenizer.size()))
      variables[kTokenNames[i]] = std::string(tokenizer.TokenBytes(static_cast<int32_t>(*id)));
  }
  return variables;
}

absl::Status LoadFromGguf(const std::string& model, ChatTemplateChoice choice,
                          LoadedTokenizer* loaded) {
  const absl::StatusOr<GgufHeader> header = ReadGgufHeader(model, /*with_vocabulary=*/true);
  if (!header.ok()) return header.status();
  loaded->file = model;
  std::vector<FoundTemplate> templates;
  const GgufValue& field = header->Field("tokenizer.chat_template");
  if (!std::holds_alternative<std::monostate>(field)) {
    const auto* text = std::get_if<std::string>(&field);
    templates.push_back({model, text == nullptr
                                    ? absl::StatusOr<std::string>(absl::InvalidArgumentError(
                                          "tokenizer.chat_template must be a string"))
                                    : *text});
  }
  for (const auto& [name, usual] :
       {std::pair("add_bos_token", true), std::pair("add_eos_token", false)}) {
    const auto* says = std::get_if<bool>(&header->Field(name));
    if (says == nullptr || *says == usual) continue;
    loaded->notes.push_back(
        absl::StrCat("tokenizer: ", name, usual ? " = false" : " = true",
                     " is ignored: a text prompt begins with <bos> and gets no end token"));
  }
  const absl::Status made = Make(model, ReadGgufVocabulary(*header, &loaded->notes), loaded);
  if (!made.ok()) return made;
  const Variables variables =
      loaded->tokenizer == nullptr ? Variables() : VariablesOfGguf(*header, *loaded->tokenizer);
  ChooseTemplate(templates, choice, variables, loaded);
  return absl::OkStatus();
}

absl::Status LoadFromFolder(const std::string& folder, LoadedTokenizer* loaded) {
  for (const char* const name : {"tokenizer.json", "tokenizer.model"}) {
    const std::string path = absl::StrCat(folder, "/", name);
    absl::StatusOr<std::string> bytes = ReadModelFile(path, kMaxTokenizerBytes);
    if (absl::IsNotFound(bytes.status())) continue;
    if (!bytes.ok()) return bytes.status();
    loaded->file = name;
    absl::StatusOr<Pieces> pieces = loaded->file == "tokenizer.model"
                                        ? ReadTokenizerModel(*bytes)
                                        : ReadTokenizerJson(*bytes, &loaded->notes);
    *bytes = std::string();  // frees the file's bytes before the tokenizer is made
    if (pieces.ok()) {
      const absl::Status added = AddTokens(folder, name, &*pieces, &loaded->notes);
      if (absl::IsUnimplemented(added)) {
        loaded->why_none = UnsupportedReason(added.message());
        return absl::OkStatus();
      }
      if (!added.ok()) return absl::Status(added.code(), OneLine(added.message()));
    }
    return Make(path, pieces, loaded);
  }
  loaded->why_none = "this worker's model folder has no tokenizer.json and no tokenizer.model";
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LoadedTokenizer> LoadTokenizer(const std::string& model, ChatTemplateChoice choice) {
  LoadedTokenizer loaded;
  absl::Status status;
  if (IsGgufFile(model)) {
    status = LoadFromGguf(model, choice, &loaded);
  } else {
    status = LoadFromFolder(model, &loaded);
    if (status.ok())
      ChooseTemplate(TemplatesOfFolder(model), choice, VariablesOfFolder(model), &loaded);
  }
  if (!status.ok()) return status;
  return loaded;
}

}  // namespace hearth
