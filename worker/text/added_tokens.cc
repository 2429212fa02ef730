#include "worker/text/added_tokens.h"

#include <algorithm>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "worker/model/model_file.h"
#include "worker/model/model_json.h"

namespace hearth {
namespace {

using Json = nlohmann::json;
using Pieces = std::vector<VocabularyPiece>;

constexpr char kConfigFile[] = "/tokenizer_config.json";
constexpr char kAddedFile[] = "/added_tokens.json";
constexpr char kSpecialFile[] = "/special_tokens_map.json";
constexpr char kAdvice[] =
    "; transformers may read either file: save the tokenizer again (save_pretrained), or remove "
    "the file that is out of date";

struct AddedToken {
  uint64_t id = 0;
  std::string text;
  bool is_special = false;
  bool is_normalized = false;
  bool says_normalized = false;  // whether the file sets `normalized`
};

// Tokens listed in files other than the vocabulary file.
struct Additions {
  std::string file;                   // file that lists `tokens`
  bool is_whole = false;              // `tokens` lists every never-merged token
  std::vector<AddedToken> tokens;     // ascending ids
  std::vector<std::string> specials;  // texts of special tokens, without duplicates
};

template <typename... Parts>
absl::Status Refused(const Parts&... parts) {
  return absl::FailedPreconditionError(absl::StrCat(parts...));
}

// Returns the JSON object in the file, or null if the file does not exist.
absl::StatusOr<Json> ReadObject(const std::string& path) {
  absl::StatusOr<std::string> text = ReadModelFile(path, kMaxJsonFileBytes);
  if (absl::IsNotFound(text.status())) return Json();
  if (!text.ok()) return Refused(text.status().message());
  absl::StatusOr<Json> json = ParseModelJson(*text);
  if (!json.ok()) return Refused(path, ": is not readable JSON: it ", json.status().message());
  if (!json->is_object()) return Refused(path, ": is not a JSON object");
  return json;
}

const std::string* TextOf(const Json& token) {
  const Json& text = token.is_object() ? JsonAt(token, {"content"}) : token;
  return text.get_ptr<const std::string*>();
}

absl::StatusOr<AddedToken> ReadToken(const std::string& file, const std::string& id,
                                     const Json& json) {
  AddedToken token;
  const std::string* text = json.is_object() ? TextOf(json) : nullptr;
  if (text == nullptr || !absl::SimpleAtoi(id, &token.id))
    return Refused(file, ": added_tokens_decoder has an entry \"", ShownText(id),
                   "\" that is not a token with an id");
  for (const char* name : {"single_word", "lstrip", "rstrip"}) {
    if (JsonAt(json, {name}) == true) {
      return absl::UnimplementedError(
          absl::StrCat(file, ": the added token \"", ShownText(*text), "\" must not have ", name));
    }
  }
  token.text = *text;
  token.is_special = JsonAt(json, {"special"}) == true;
  const Json& normalized = JsonAt(json, {"normalized"});
  token.says_normalized = normalized.is_boolean();
  token.is_normalized = token.says_normalized ? normalized.get<bool>() : !token.is_special;
  return token;
}

// Adds the texts of special tokens: from fields such as bos_token and image_token, and from the two
// lists of further special tokens.
void AddSpecials(const Json& json, std::vector<std::string>* specials) {
  for (const auto& [name, value] : json.items()) {
    const bool is_list = name == "additional_special_tokens" || name == "extra_special_tokens";
    if (is_list && value.is_structured()) {
      for (const Json& token : value) {
        if (const std::string* text = TextOf(token)) specials->push_back(*text);
      }
    } else if (absl::EndsWith(name, "_token")) {
      if (const std::string* text = TextOf(value)) specials->push_back(*text);
    }
  }
}

absl::Status ReadAddedFile(const std::string& path, Additions* additions) {
  const absl::StatusOr<Json> json = ReadObject(path);
  if (!json.ok() || json->is_null()) return json.status();
  const absl::flat_hash_set<std::string_view> specials(additions->specials.begin(),
                                                       additions->specials.end());
  for (const auto& [text, id] : json->items()) {
    if (!id.is_number_unsigned())
      return Refused(path, ": the id of \"", ShownText(text), "\" must be a number");
    const bool is_special = specials.count(text) > 0;
    additions->tokens.push_back({id.get<uint64_t>(), text, is_special, !is_special});
  }
  return absl::OkStatus();
}

absl::StatusOr<Additions> ReadAdditions(const std::string& folder) {
  Additions additions;
  const std::string config_file = folder + kConfigFile;
  const absl::StatusOr<Json> config = ReadObject(config_file);
  if (!config.ok()) return config.status();
  const Json& decoder = JsonAt(*config, {"added_tokens_decoder"});
  AddSpecials(*config, &additions.specials);
  additions.is_whole = decoder.is_object();
  if (additions.is_whole) {
    additions.file = config_file;
    for (const auto& [id, json] : decoder.items()) {
      absl::StatusOr<AddedToken> token = ReadToken(config_file, id, json);
      if (!token.ok()) return token.status();
      additions.tokens.push_back(*std::move(token));
    }
  } else {
    const absl::StatusOr<Json> specials = ReadObject(folder + kSpecialFile);
    if (!specials.ok()) return specials.status();
    AddSpecials(*specials, &additions.specials);
    additions.file = folder + kAddedFile;
    if (absl::Status s = ReadAddedFile(additions.file, &additions); !s.ok()) return s;
  }
  std::sort(additions.tokens.begin(), additions.tokens.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  std::sort(additions.specials.begin(), additions.specials.end());
  additions.specials.erase(std::unique(additions.specials.begin(), additions.specials.end()),
                           additions.specials.end());
  return additions;
}

// Adds tokens to a list of pieces. A hash table maps texts to ids.
class PieceAdder {
 public:
  // `most`: maximum number of tokens to add. Memory is reserved for them, because ids_ refers to
  // the texts.
  PieceAdder(const std::string& source, size_t most, Pieces* pieces,
             std::vector<std::string>* notes)
      : source_(source), pieces_(pieces), notes_(notes) {
    pieces_->reserve(pieces_->size() + most);
    ids_.reserve(pieces_->size() + most);
    for (size_t id = 0; id < pieces_->size(); ++id) {
      if ((*pieces_)[id].text.empty()) {
        has_gap_ = true;
        continue;
      }
      ids_[(*pieces_)[id].text] = id;
      bytes_ += (*pieces_)[id].text.size();
    }
  }

  std::optional<size_t> Find(std::string_view text) const {
    const auto found = ids_.find(text);
    return found == ids_.end() ? std::nullopt : std::optional(found->second);
  }

  absl::Status Add(const std::string& file, const AddedToken& token) {
    const std::optional<size_t> found = Find(token.text);
    if (found.has_value() && *found == token.id) return NeverMerge(file, token);
    const std::string shown = absl::StrCat(file, ": token ", token.id, " is \"",
                                           ShownText(token.text), "\", but ", source_);
    if (found.has_value()) return Refused(shown, " has this token with the id ", *found, kAdvice);
    if (token.id < pieces_->size()) {
      return Refused(shown, " has \"", ShownText((*pieces_)[token.id].text), "\" instead", kAdvice);
    }
    if (has_gap_) return Refused(shown, " has ids without a token", kAdvice);
    if (token.id > pieces_->size())
      notes_->push_back(IdNote(token.text, pieces_->size(), token.id));
    bytes_ += token.text.size();
    absl::Status room = CheckPieceRoom(pieces_->size() + 1, bytes_);
    if (!room.ok()) return Refused(file, ": ", room.message());
    if (token.text.empty() || token.text.size() > kMaxPieceBytes)
      return Refused(file, ": token ", token.id, " has ", token.text.size(),
                     " bytes; must be 1 to ", kMaxPieceBytes);
    // ids_ refers to the texts of the pieces, which a reallocation would move.
    assert(pieces_->size() < pieces_->capacity());
    pieces_->push_back({token.text, token.is_special ? PieceType::kControl : PieceType::kWhole, 0,
                        token.is_normalized});
    ids_[pieces_->back().text] = pieces_->size() - 1;
    return absl::OkStatus();
  }

 private:
  absl::Status NeverMerge(const std::string& file, const AddedToken& token) {
    assert(token.id < pieces_->size() && (*pieces_)[token.id].text == token.text);
    PieceType& type = (*pieces_)[token.id].type;
    bool& is_normalized = (*pieces_)[token.id].is_normalized;
    if (!IsNeverMerged(type) || (token.says_normalized && absl::EndsWith(source_, ".model"))) {
      is_normalized = token.is_normalized;
    } else if (token.says_normalized && token.is_normalized != is_normalized) {
      return Refused(file, ": the added token \"", ShownText(token.text), "\" is ",
                     is_normalized ? "not " : "", "normalized, unlike in ", source_, kAdvice);
    }
    if (type == PieceType::kByte) {
      return absl::UnimplementedError(absl::StrCat(
          file, ": the added token \"", ShownText(token.text), "\" must not be a byte piece"));
    }
    if (token.is_special && type != PieceType::kUnknown) {
      type = PieceType::kControl;
    } else if (type == PieceType::kNormal) {
      type = PieceType::kUserDefined;
    }
    return absl::OkStatus();
  }

  const std::string& source_;
  Pieces* pieces_;
  std::vector<std::string>* notes_;
  bool has_gap_ = false;  // some ids below the highest have no piece
  absl::flat_hash_map<std::string_view, size_t> ids_;
  size_t bytes_ = 0;
};

// Adds special tokens of which the files give only the text. A new token gets the next id. Two new
// tokens are refused, because transformers' versions differ in their order.
absl::Status AddNamed(const std::string& file, const std::vector<std::string>& specials,
                      size_t next_id, PieceAdder* adder) {
  const std::string* added = nullptr;
  for (const std::string& text : specials) {
    const std::optional<size_t> found = adder->Find(text);
    if (!found.has_value() && added != nullptr) {
      return Refused(file, ": names the special tokens \"", ShownText(*added), "\" and \"",
                     ShownText(text), "\", which have no id in any file");
    }
    if (!found.has_value()) added = &text;
    const absl::Status status = adder->Add(file, {found.value_or(next_id), text, true, false});
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// Returns an error if tokenizer.json has an added token that added_tokens_decoder does not list.
// This includes an empty added_tokens_decoder: transformers' Gemma class then drops the added
// tokens of tokenizer.json.
absl::Status CheckWhole(const Additions& additions, const std::string& source,
                        const Pieces& pieces) {
  absl::flat_hash_set<std::string_view> listed(additions.specials.begin(),
                                               additions.specials.end());
  for (const AddedToken& token : additions.tokens) listed.insert(token.text);
  for (size_t id = 0; id < pieces.size(); ++id) {
    if (!IsNeverMerged(pieces[id].type) || listed.count(pieces[id].text) > 0) continue;
    return Refused(source, ": has the added token ", id, ", \"", ShownText(pieces[id].text),
                   "\"; the added_tokens_decoder of ", additions.file, " does not", kAdvice);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status AddTokens(const std::string& folder, const std::string& source,
                       std::vector<VocabularyPiece>* pieces, std::vector<std::string>* notes) {
  const absl::StatusOr<Additions> read = ReadAdditions(folder);
  if (!read.ok()) return read.status();
  if (read->tokens.empty() && read->specials.empty() && !read->is_whole) return absl::OkStatus();
  const std::string path = absl::StrCat(folder, "/", source);
  if (read->is_whole && source == "tokenizer.json") {
    if (absl::Status status = CheckWhole(*read, path, *pieces); !status.ok()) return status;
  }
  PieceAdder adder(path, read->tokens.size() + 1, pieces, notes);
  for (const AddedToken& token : read->tokens) {
    if (absl::Status status = adder.Add(read->file, token); !status.ok()) return status;
  }
  return AddNamed(folder + kConfigFile, read->specials, pieces->size(), &adder);
}

}  // namespace hearth
