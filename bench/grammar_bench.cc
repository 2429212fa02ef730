// Measures grammars over a model's vocabulary. For each schema of a file {NAME: SCHEMA}: the time
// to compile the schema, then the times of masks, accepted tokens and forced tokens of random
// answers. The column `share` is the share of the tokens after which the next text was forced.
//
// usage: grammar_bench MODEL [SCHEMAS]    (models/gemma-3-270m.gguf bench/grammar_schemas.json)
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "worker/text/grammar.h"
#include "worker/text/tokenizer_loader.h"

namespace hearth {
namespace {

constexpr int32_t kEos = 1;
constexpr int kCompiles = 20, kAnswers = 8, kTokens = 256;

using Times = std::vector<double>;  // microseconds

template <typename Work>
auto Timed(Times* times, Work work) {
  const auto begin = std::chrono::steady_clock::now();
  auto result = work();
  const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
  times->push_back(took.count());
  return result;
}

double Mean(const Times& times) {
  double sum = 0;
  for (const double time : times) sum += time;
  return times.empty() ? 0 : sum / static_cast<double>(times.size());
}

double Quantile(Times times, double q) {
  if (times.empty()) return 0;
  std::sort(times.begin(), times.end());
  return times[static_cast<size_t>(q * static_cast<double>(times.size() - 1))];
}

void Append(const Times& more, Times* all) { all->insert(all->end(), more.begin(), more.end()); }

struct Figures {
  Times compile, clone, mask, accept, forced;
  int tokens = 0, forced_tokens = 0;

  void Add(const Figures& more) {
    Append(more.compile, &compile);
    Append(more.clone, &clone);
    Append(more.mask, &mask);
    Append(more.accept, &accept);
    Append(more.forced, &forced);
    tokens += more.tokens;
    forced_tokens += more.forced_tokens;
  }
  void Print(const std::string& name) const {
    std::printf("%-34.34s %7.0f %7.0f %6.1f %6.1f %6.1f %7.1f %6.1f %6.1f %6.2f\n", name.c_str(),
                Mean(compile), Quantile(compile, 0.99), Mean(clone), Mean(mask),
                Quantile(mask, 0.99), Quantile(mask, 1), Mean(accept), Mean(forced),
                static_cast<double>(forced_tokens) / std::max(tokens, 1));
  }
};

// Returns a random token that the mask allows. Returns -1 if the mask allows no token.
int32_t Draw(absl::Span<const uint32_t> mask, std::mt19937_64* random) {
  std::vector<int32_t> allowed;
  for (size_t word = 0; word < mask.size(); ++word) {
    for (uint32_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      allowed.push_back(static_cast<int32_t>(word * 32) + __builtin_ctz(bits));
    }
  }
  return allowed.empty() ? -1 : allowed[(*random)() % allowed.size()];
}

void Answer(const Grammar& grammar, uint64_t seed, Figures* figures) {
  std::mt19937_64 random(seed);
  const auto state = Timed(&figures->clone, [&] { return grammar.NewState(); });
  for (int i = 0; i < kTokens && !state->MustEnd(); ++i) {
    const auto mask = Timed(&figures->mask, [&] { return state->Allow(); });
    if (!mask.ok()) return void(std::cerr << mask.status() << "\n");
    const int32_t token = Draw(*mask, &random);
    if (token < 0 || token == kEos) return;
    const auto accepted = Timed(&figures->accept, [&] { return state->Accept(token); });
    if (!accepted.ok()) return void(std::cerr << accepted.status() << "\n");
    const auto forced = Timed(&figures->forced, [&] { return state->Forced(15); });
    ++figures->tokens;
    figures->forced_tokens += forced.empty() ? 0 : 1;
  }
}

int Main(const std::string& model, const std::string& file) {
  const auto loaded = LoadTokenizer(model);
  if (!loaded.ok() || loaded->tokenizer == nullptr) {
    std::cerr << model << ": no tokenizer\n";
    return 1;
  }
  const Tokenizer& tokenizer = *loaded->tokenizer;
  GrammarEngine grammars(&tokenizer, {kEos}, tokenizer.size());
  Times set_up;
  (void)Timed(&set_up, [&] { return grammars.Compile({"{}", {}, false}).ok(); });
  std::printf("%d tokens; set-up: %.0f ms, %.0f MiB\n", tokenizer.size(), set_up[0] / 1e3,
              static_cast<double>(grammars.stats().bytes) / (1 << 20));
  std::printf("microseconds %34s %7s %6s %6s %6s %7s %6s %6s %6s\n", "compile", "p99", "clone",
              "mask", "p99", "max", "accept", "forced", "share");
  std::ifstream in(file);
  Figures all;
  const auto schemas = nlohmann::ordered_json::parse(in);
  for (const auto& [name, schema] : schemas.items()) {
    Figures figures;
    const GrammarSpec spec{schema.dump(), {}, true};
    auto grammar = grammars.Compile(spec);
    if (!grammar.ok()) {
      std::printf("%-34.34s refused: %s\n", name.c_str(), grammar.status().ToString().c_str());
      continue;
    }
    for (int i = 0; i < kCompiles; ++i) {
      grammar = Timed(&figures.compile, [&] { return grammars.Compile(spec); });
    }
    for (int i = 0; i < kAnswers; ++i) Answer(**grammar, i, &figures);
    figures.Print(name);
    all.Add(figures);
  }
  all.Print("all");
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::cerr << "usage: grammar_bench MODEL [SCHEMAS]\n";
    return 2;
  }
  return hearth::Main(argv[1], argc == 3 ? argv[2] : "bench/grammar_schemas.json");
}
