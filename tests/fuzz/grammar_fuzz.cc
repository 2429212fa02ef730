// Fuzz target: a JSON schema of an untrusted caller, and the tokens of an answer under it.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "services/serving/canonical_json.h"
#include "tests/fuzz/fuzz_input.h"
#include "worker/text/grammar.h"
#include "worker/text/tokenizer.h"

namespace hearth {
namespace {

constexpr int32_t kEos = 1;
constexpr size_t kMaxMessageBytes = 1024;  // a gRPC status with details has no more room
constexpr size_t kForced = 15;

// A vocabulary with all bytes, printable characters, and some pieces that cross the borders of JSON
// values.
const Tokenizer& FuzzTokenizer() {
  static const Tokenizer& tokenizer = *[] {
    std::vector<VocabularyPiece> pieces = {{"<pad>", PieceType::kControl},
                                           {"<eos>", PieceType::kControl},
                                           {"<bos>", PieceType::kControl},
                                           {"<unk>", PieceType::kUnknown}};
    for (int byte = 0; byte < 256; ++byte) {
      pieces.push_back({absl::StrFormat("<0x%02X>", byte), PieceType::kByte});
    }
    for (char c = '!'; c <= '~'; ++c) pieces.push_back({std::string(1, c)});
    for (const char* text :
         {"\u2581",      "\u00e9", "{\"",     "\":", "\":\u2581", "\",",    "\",\u2581",
          "\",\u2581\"", "\"}",    ",\u2581", "[{",  "[{\"",      "}]",     "tr",
          "ue",          "true",   "na",      "me",  "name",      "name\"", "\n\n"}) {
      pieces.push_back({text, PieceType::kNormal, -static_cast<float>(pieces.size())});
    }
    auto made = Tokenizer::Make(pieces);
    Require(made.ok(), "no tokenizer");
    return made->release();
  }();
  return tokenizer;
}

// Checks that the error is one of the client. Returns false.
bool Fails(const absl::Status& status) {
  Require(absl::IsInvalidArgument(status), "an error that is not the client's");
  Require(!status.message().empty() && status.message().size() <= kMaxMessageBytes,
          "a long error, or an empty one");
  Require(nlohmann::json::accept(nlohmann::json(std::string(status.message())).dump()),
          "an error that is not UTF-8");
  return false;
}

std::vector<int32_t> Allowed(absl::Span<const uint32_t> mask) {
  std::vector<int32_t> allowed;
  for (int32_t id = 0; id < FuzzTokenizer().size(); ++id) {
    const uint32_t bits = mask.empty() ? UINT32_MAX : mask[static_cast<size_t>(id) / 32];
    if ((bits >> (id % 32) & 1) != 0) allowed.push_back(id);
  }
  return allowed;
}

// Answer: draws tokens that the grammar allows, as the choices say.
class Answer {
 public:
  explicit Answer(const Grammar* grammar) : grammar_(grammar), state_(grammar->NewState()) {}

  // Appends a token, or checks a method that must not change the answer. Returns whether the answer
  // may continue.
  bool Step(uint8_t choice) {
    switch (choice % 16) {
      case 0:
        return CheckForced();
      case 1:
        return CheckClone();
      case 2:
        return CheckUnknown(choice);
      default:
        return Draw(choice / 16 * 13 + choice % 16);
    }
  }
  // Checks that the answer's tokens lead to the same state again.
  void CheckContinued() {
    const auto again = ContinueGrammar(*grammar_, drawn_, [] { return absl::OkStatus(); });
    if (!again.ok()) return Require(false, "an answer that its own grammar refuses");
    Require(IsSame((*again)->NewState().get()), "a continued answer must have the same mask");
  }

 private:
  bool IsSame(GrammarState* other) {
    const auto mask = state_->Allow(), others = other->Allow();
    if (!mask.ok() || !others.ok()) return mask.status() == others.status();
    return *mask == *others;
  }
  bool CheckForced() {
    const std::vector<int32_t> forced = state_->Forced(kForced);
    Require(forced.size() <= kForced, "too many forced tokens");
    const absl::StatusOr<size_t> count = state_->CountAllowed(forced);
    if (!count.ok()) return Fails(count.status());
    Require(*count == forced.size(), "a forced token that is not allowed");
    return true;
  }
  bool CheckClone() {
    auto clone = state_->Clone();
    Require(IsSame(clone.get()), "a clone must have the same mask");
    state_ = std::move(clone);
    return true;
  }
  bool CheckUnknown(uint8_t choice) {
    const int32_t ids[] = {choice, FuzzTokenizer().size(), -1};
    const absl::StatusOr<size_t> count = state_->CountAllowed(ids);
    if (!count.ok()) return Fails(count.status());
    Require(*count <= std::size(ids), "more tokens than were asked for");
    return true;
  }
  bool Draw(size_t choice) {
    const auto mask = state_->Allow();
    if (!mask.ok()) return Fails(mask.status());
    const bool is_free = mask->empty();
    const std::vector<int32_t> allowed = Allowed(*mask);
    Require(!allowed.empty(), "no token is allowed, not even an end token");
    Require(!state_->MustEnd() || allowed == std::vector<int32_t>{kEos}, "the end of an answer");
    const int32_t token = allowed[choice % allowed.size()];
    if (token == kEos) {
      if (grammar_->spec()->triggers.empty()) CheckText();
      return false;
    }
    const absl::StatusOr<bool> accepted = state_->Accept(token);
    if (!accepted.ok()) return Fails(accepted.status());
    Require(*accepted || is_free || !grammar_->spec()->triggers.empty(), "an allowed token");
    if (*accepted) drawn_.push_back(token);
    return true;
  }
  void CheckText() {
    std::string text, canonical;
    for (const int32_t id : drawn_) text += FuzzTokenizer().TokenBytes(id);
    try {
      (void)nlohmann::json::parse(text);
    } catch (const nlohmann::json::out_of_range&) {
      return;  // JSON with a number out of a double's range, which AppendCanonicalJson refuses
    } catch (const nlohmann::json::exception&) {
      Require(false, "an answer that is not JSON");
    }
    Require(AppendCanonicalJson(text, &canonical) && canonical == text,
            "an answer that is not canonical JSON");
  }

  const Grammar* const grammar_;
  std::unique_ptr<GrammarState> state_;
  std::vector<int32_t> drawn_;
};

void TrySchema(GrammarSpec spec, absl::string_view choices) {
  static auto& grammars = *new GrammarEngine(&FuzzTokenizer(), {kEos}, FuzzTokenizer().size());
  const auto grammar = grammars.Compile(spec);
  if (!grammar.ok()) return void(Fails(grammar.status()));
  const auto again = grammars.Compile(*(*grammar)->spec());
  Require(again.ok() && (*again)->spec()->json_schema == (*grammar)->spec()->json_schema,
          "a checked schema must stay as it is");
  Answer answer(grammar->get());
  for (const char choice : choices) {
    if (!answer.Step(static_cast<uint8_t>(choice))) break;
  }
  answer.CheckContinued();
}

}  // namespace
}  // namespace hearth

// The first byte chooses `lenient` and `triggers`. The schema ends at a zero byte; choices follow.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t end = std::min(bytes.find('\0'), bytes.size());
  hearth::GrammarSpec spec{std::string(bytes.substr(0, end)), {}, data[0] % 2 == 1};
  if (data[0] % 4 >= 2) spec.triggers = {"{\"name\":", "[{"};
  hearth::TrySchema(std::move(spec), bytes.substr(std::min(end + 1, bytes.size())).substr(0, 64));
  return 0;
}
