// Fuzzes CallReader with answers that are cut into parts, and AppendCanonicalJson.
#include <string>
#include <vector>

#include "services/openai/call_reader.h"
#include "services/serving/canonical_json.h"
#include "tests/fuzz/fuzz_input.h"

namespace hearth {
namespace {

// Appends a piece. Joins it to the last piece if both have the same kind and call.
void Join(const CallPiece& piece, std::vector<CallPiece>* joined) {
  Require(!piece.text.empty(), "pieces must not be empty");
  const bool is_more = piece.kind != CallPiece::kName && !joined->empty() &&
                       joined->back().kind == piece.kind && joined->back().call == piece.call;
  if (!is_more) {
    joined->push_back(piece);
  } else {
    joined->back().text += piece.text;
  }
}

std::vector<CallPiece> Read(const CallRules& rules, absl::string_view text, size_t part) {
  CallReader reader(rules);
  std::vector<CallPiece> joined;
  const auto take = [&joined](std::vector<CallPiece> pieces) {
    for (const CallPiece& piece : pieces) Join(piece, &joined);
  };
  for (size_t at = 0; at < text.size(); at += part) {
    std::vector<CallPiece> pieces;
    reader.Push(text.substr(at, part), &pieces);
    take(std::move(pieces));
  }
  std::vector<CallPiece> pieces;
  reader.Finish(&pieces);
  take(std::move(pieces));
  return joined;
}

void TryAnswer(const CallRules& rules, absl::string_view text, size_t part) {
  const std::vector<CallPiece> whole = Read(rules, text, text.size() + 1);
  const std::vector<CallPiece> cut = Read(rules, text, part);
  Require(whole.size() == cut.size(), "a cut must not change the pieces");
  size_t bytes = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    Require(whole[i].kind == cut[i].kind && whole[i].call == cut[i].call &&
                whole[i].text == cut[i].text,
            "a cut must not change a piece");
    bytes += whole[i].text.size();
  }
  Require(bytes <= text.size(), "pieces must not have more text than the answer");
  const ReadAnswer answer = ReadCalls(rules, text);
  Require(!answer.calls.empty() || answer.text == text, "text without calls must stay unchanged");
  Require(rules.parallel || answer.calls.size() <= 1, "there must be at most one call");
}

void TryJson(absl::string_view text) {
  std::string once, twice;
  if (!AppendCanonicalJson(text, &once)) return;
  Require(AppendCanonicalJson(once, &twice) && once == twice, "canonical JSON must stay unchanged");
}

}  // namespace
}  // namespace hearth

// The first byte chooses whether several calls are allowed, and the size of the parts.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const bool parallel = data[0] % 2 == 0;
  hearth::TryAnswer({{"get", "f-1"}, parallel}, text, 1 + data[0] / 2 % 9);
  hearth::TryJson(text);
  return 0;
}
