// Lets Python tests use GrammarEngine: reads a JSON request from each line of stdin, and writes a
// JSON response as one line to stdout.
//   Request: {"schema": TEXT, "lenient": BOOL, "texts": [TEXT, ...]}.
//   Response: {"error": TEXT, "ms": NUMBER} or {"valid": [BOOL, ...], "ms": NUMBER}. `valid`: for
//   each text, whether the grammar accepts it as a whole answer. `ms`: duration of Compile.
#include <chrono>
#include <iostream>
#include <string>

#include "nlohmann/json.hpp"
#include "worker/text/grammar.h"
#include "worker/text/tokenizer_loader.h"

namespace hearth {
namespace {

using Json = nlohmann::json;

constexpr int32_t kEos = 1;

bool Allows(GrammarState* state, int32_t token) {
  const auto mask = state->Allow();
  return mask.ok() && (((*mask)[static_cast<size_t>(token) / 32] >> (token % 32)) & 1) != 0;
}

// Whether the grammar accepts the text's tokens as a whole answer. Uses CountAllowed instead of the
// masks: where the text is forced, a mask may allow only one of the tokens that continue the text.
bool IsValid(const Grammar& grammar, const Tokenizer& tokenizer, const std::string& text) {
  const auto state = grammar.NewState();
  for (const int32_t token : tokenizer.EncodePlain(text)) {
    if (state->MustEnd() || state->CountAllowed({&token, 1}) == 0) return false;
    const auto accepted = state->Accept(token);
    if (!accepted.ok() || !*accepted) return false;
  }
  return state->MustEnd() || Allows(state.get(), kEos);
}

int Main(const char* model) {
  const auto loaded = LoadTokenizer(model, ChatTemplateChoice::kAuto);
  if (!loaded.ok() || loaded->tokenizer == nullptr) {
    std::cerr << model << ": no tokenizer: " << loaded.status() << "\n";
    return 1;
  }
  const Tokenizer& tokenizer = *loaded->tokenizer;
  GrammarEngine grammars(&tokenizer, {kEos}, tokenizer.size());
  (void)grammars.Compile({"{}", {}, false});  // builds the tables
  for (std::string line; std::getline(std::cin, line);) {
    const Json request = Json::parse(line);
    const auto begin = std::chrono::steady_clock::now();
    const auto grammar = grammars.Compile({request.at("schema"), {}, request.at("lenient")});
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    Json answer = {{"ms", took.count()}};
    if (grammar.ok()) {
      answer["valid"] = Json::array();
      for (const Json& text : request.at("texts")) {
        answer["valid"].push_back(IsValid(**grammar, tokenizer, text));
      }
    } else {
      answer["error"] = std::string(grammar.status().message());
    }
    std::cout << answer.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: grammar_probe MODEL\n";
    return 2;
  }
  return hearth::Main(argv[1]);
}
