// Measures the quality of weight forms and arithmetics: each model's perplexity on texts, the mean
// divergence (KL) of its next-token distributions from the first model's, and how often the most
// likely token is the same.
//   quality_bench TEXT,TEXT,... MODEL[:WEIGHTS[:ARITHMETIC[:KV]]]...
// WEIGHTS: stored (the default), q8_0 or q4_0. ARITHMETIC: float32 (the default), int8 or bf16. KV,
// keys and values: float32 (the default, but for bf16) or bfloat16. TEXT: a file, of which the
// first 2,048 tokens are used. All models must have the vocabulary of the first.
// transformers_quality.py measures transformers' bfloat16 in the same way.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "bench/turns.h"
#include "worker/model/invariant/invariant_gemma.h"
#include "worker/text/tokenizer_loader.h"

namespace hearth {
namespace {

constexpr size_t kTextTokens = 2048;
constexpr int kStep = 64;

std::unique_ptr<InvariantGemma> LoadForm(const std::string& form) {
  const std::vector<std::string> parts = absl::StrSplit(form, ':');
  InvariantGemmaOptions options;
  options.threads = ThreadPool::PhysicalCores();
  if (parts.size() > 1 && parts[1] == "q8_0") options.weights = WeightForm::kQ8_0;
  if (parts.size() > 1 && parts[1] == "q4_0") options.weights = WeightForm::kQ4_0;
  if (parts.size() > 2 && parts[2] == "int8") options.arithmetic = Arithmetic::kInt8;
  if (parts.size() > 2 && parts[2] == "bf16") {
    options.arithmetic = Arithmetic::kBFloat16;
    options.kv_dtype = KvDtype::kBFloat16;
  }
  if (parts.size() > 3 && parts[3] == "bfloat16") options.kv_dtype = KvDtype::kBFloat16;
  auto gemma = InvariantGemma::Load(parts[0], options);
  RequireOk(gemma.status());
  return *std::move(gemma);
}

// Logits that are this much smaller than the largest one of the row count as probability zero: all
// 262,144 of them together have a probability of at most 1e-8.
constexpr float kNothing = 31;

// Replaces the logits of a row by log probabilities.
void LogSoftmax(float* row, int64_t count) {
  const float most = *std::max_element(row, row + count);
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (row[i] > most - kNothing) sum += std::exp(static_cast<double>(row[i] - most));
  }
  const float shift = most + static_cast<float>(std::log(sum));
  for (int64_t i = 0; i < count; ++i) row[i] -= shift;
}

// Sums over the tokens of a text, for one model.
struct Quality {
  double loss = 0, divergence = 0;
  int64_t same = 0, tokens = 0;

  void Add(const float* base, const float* row, int64_t count, int32_t next) {
    loss -= row[next];
    for (int64_t i = 0; i < count; ++i) {
      if (base[i] < -kNothing) continue;
      divergence += std::exp(static_cast<double>(base[i])) * static_cast<double>(base[i] - row[i]);
    }
    same += std::max_element(base, base + count) - base == std::max_element(row, row + count) - row;
    ++tokens;
  }
};

std::vector<float> LogitsOfStep(const InvariantGemma& gemma, InvariantGemma::Kv* kv,
                                absl::Span<const int32_t> tokens) {
  std::vector<float> logits;
  RequireOk(gemma.Step(kv, tokens, static_cast<int>(tokens.size()), &logits));
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t count = gemma.config().vocab_size;
    LogSoftmax(logits.data() + static_cast<int64_t>(i) * count, count);
  }
  return logits;
}

using Models = std::vector<std::unique_ptr<InvariantGemma>>;

// Compares each model with the first model, whose logits are computed only once.
std::vector<Quality> Compare(const Models& models, const std::vector<int32_t>& text) {
  std::vector<InvariantGemma::Kv> kvs;
  for (const auto& model : models) kvs.push_back(model->NewKv());
  const int64_t vocabulary = models[0]->config().vocab_size;
  std::vector<Quality> qualities(models.size());
  for (size_t at = 0; at + 1 < text.size(); at += kStep) {
    const size_t count = std::min<size_t>(kStep, text.size() - 1 - at);
    const absl::Span<const int32_t> tokens(text.data() + at, count);
    std::vector<float> want, got;
    for (size_t model = 0; model < models.size(); ++model) {
      got = LogitsOfStep(*models[model], &kvs[model], tokens);
      if (model == 0) want = got;
      for (size_t i = 0; i < count; ++i) {
        const int64_t row = static_cast<int64_t>(i) * vocabulary;
        qualities[model].Add(want.data() + row, got.data() + row, vocabulary, text[at + i + 1]);
      }
    }
  }
  return qualities;
}

std::vector<int32_t> TokensOf(const Tokenizer& tokenizer, const std::string& file) {
  std::ifstream in(file);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  std::vector<int32_t> tokens = tokenizer.Encode(text);
  tokens.insert(tokens.begin(), 2);  // 2 is <bos>
  tokens.resize(std::min(tokens.size(), kTextTokens));
  return tokens;
}

int Main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: quality_bench TEXT,... MODEL[:WEIGHTS[:ARITHMETIC[:KV]]]...\n");
    return 2;
  }
  const std::vector<std::string> files = absl::StrSplit(argv[1], ',');
  const std::string first = std::string(argv[2]).substr(0, std::string(argv[2]).find(':'));
  const auto tokenizer = LoadTokenizer(first);
  RequireOk(tokenizer.status());
  Models models;
  for (int i = 2; i < argc; ++i) models.push_back(LoadForm(argv[i]));
  for (const std::string& file : files) {
    std::printf("%s\n", file.c_str());
    const std::vector<Quality> all = Compare(models, TokensOf(*tokenizer->tokenizer, file));
    for (size_t i = 0; i < all.size(); ++i) {
      const auto tokens = static_cast<double>(all[i].tokens);
      std::printf("  %-40s %5.0f tokens  perplexity %9.4f  KL %.5f  same first choice %.2f %%\n",
                  argv[2 + i], tokens, std::exp(all[i].loss / tokens), all[i].divergence / tokens,
                  100 * static_cast<double>(all[i].same) / tokens);
    }
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
