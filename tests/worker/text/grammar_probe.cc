// Lets Python tests use GrammarEngine: reads a JSON request from each line of stdin, and writes a
// JSON response as one line to stdout.
//   Request: {"schema": TEXT, "lenient": BOOL, "texts": [TEXT, ...], "walk": NUMBER}.
//   Response: {"error": TEXT, "ms": NUMBER} or {"valid": [BOOL, ...], "ms": NUMBER, "mask_ms":
//   NUMBER, "limit": TEXT}. `valid`: for each text, whether the grammar accepts it as a whole
//   answer. `ms`: processor time of Compile. `mask_ms`: the longest processor time of one mask in a
//   random answer of at most `walk` tokens. `limit`: the error that ended this answer, if any.
#include <time.h>

#include <algorithm>
#include <iostream>
#include <random>
#include <string>
#include <vector>

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
    if (state->MustEnd() || state->CountAllowed({&token, 1}).value_or(0) == 0) return false;
    const auto accepted = state->Accept(token);
    if (!accepted.ok() || !*accepted) return false;
  }
  return state->MustEnd() || Allows(state.get(), kEos);
}

// Returns the processor time that this thread has used, in milliseconds.
double ThreadMs() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

std::vector<int32_t> TextTokens(absl::Span<const uint32_t> mask) {
  std::vector<int32_t> tokens;
  for (size_t word = 0; word < mask.size(); ++word) {
    for (uint32_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      tokens.push_back(static_cast<int32_t>(word * 32) + __builtin_ctz(bits));
    }
  }
  tokens.erase(std::remove(tokens.begin(), tokens.end(), kEos), tokens.end());
  return tokens;
}

// Draws at most `tokens` tokens, and no end token.
void Walk(const Grammar& grammar, int tokens, Json* response) {
  std::mt19937_64 random(tokens);
  const auto state = grammar.NewState();
  double longest = 0;
  absl::Status status;
  for (int i = 0; i < tokens && status.ok() && !state->MustEnd(); ++i) {
    const double begin = ThreadMs();
    const auto mask = state->Allow();
    longest = std::max(longest, ThreadMs() - begin);
    status = mask.status();
    if (!status.ok()) break;
    const std::vector<int32_t> allowed = TextTokens(*mask);
    if (allowed.empty()) break;
    status = state->Accept(allowed[random() % allowed.size()]).status();
  }
  if (!status.ok()) (*response)["limit"] = std::string(status.message());
  (*response)["mask_ms"] = longest;
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
    const double begin = ThreadMs();
    const auto grammar = grammars.Compile({request.at("schema"), {}, request.at("lenient")});
    Json answer = {{"ms", ThreadMs() - begin}};
    if (grammar.ok()) {
      answer["valid"] = Json::array();
      for (const Json& text : request.at("texts")) {
        answer["valid"].push_back(IsValid(**grammar, tokenizer, text));
      }
      Walk(**grammar, request.value("walk", 0), &answer);
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
