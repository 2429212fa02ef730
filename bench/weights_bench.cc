// The cost of --weights: of each form of a model's weights the error of its logits against float32,
// over the tokens of a text, and steps against those with weights as they are stored, by turns in
// one run. Wall time and processor time, medians; ratios are medians of those of a turn.
//   weights_bench MODEL_DIR TEXT_FILE [THREADS [avx2]]       default: 2 threads

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "bench/turns.h"
#include "worker/kernels/targets.h"
#include "worker/model/invariant/invariant_gemma.h"
#include "worker/text/tokenizer_loader.h"

namespace hearth {
namespace {

constexpr int kTextTokens = 1024, kTextStep = 64, kContext = 512, kDecoded = 4;

using Model = std::unique_ptr<InvariantGemma>;

Model Load(const std::string& dir, int threads, WeightForm form) {
  InvariantGemmaOptions options;
  options.threads = threads;
  options.weights = form;
  auto model = InvariantGemma::Load(dir, options);
  RequireOk(model.status());
  return *std::move(model);
}

std::vector<int32_t> TokensOf(const std::string& dir, const std::string& file) {
  const auto tokenizer = LoadTokenizer(dir);
  RequireOk(tokenizer.status());
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  std::vector<int32_t> tokens = {tokenizer->tokenizer->bos_id()};
  for (const int32_t token : tokenizer->tokenizer->Encode(text.str().substr(0, 16 * kTextTokens))) {
    if (tokens.size() < kTextTokens) tokens.push_back(token);
  }
  return tokens;
}

// Log of the sum of exponentials.
double LogSum(const float* logits, int vocabulary) {
  const float most = *std::max_element(logits, logits + vocabulary);
  double sum = 0;
  for (int i = 0; i < vocabulary; ++i) sum += std::exp(static_cast<double>(logits[i] - most));
  return most + std::log(sum);
}

// Sums over the tokens of a text.
struct LogitsError {
  double most = 0, squares = 0, divergence = 0, our_loss = 0, their_loss = 0;
  int tokens = 0, foretold = 0, same_first = 0, same_bits = 0;

  // `next`: the token that follows; -1: none does.
  void Add(const float* want, const float* is, int vocabulary, int next) {
    const double want_sum = LogSum(want, vocabulary), is_sum = LogSum(is, vocabulary);
    bool same = true;
    for (int i = 0; i < vocabulary; ++i) {
      const double difference = static_cast<double>(is[i]) - static_cast<double>(want[i]);
      same &= difference == 0;
      most = std::max(most, std::abs(difference));
      squares += difference * difference / vocabulary;
      const double log_want = static_cast<double>(want[i]) - want_sum;
      divergence += std::exp(log_want) * (log_want - (static_cast<double>(is[i]) - is_sum));
    }
    ++tokens;
    same_bits += same;
    same_first += std::max_element(want, want + vocabulary) - want ==
                  std::max_element(is, is + vocabulary) - is;
    if (next < 0) return;
    ++foretold;
    their_loss += want_sum - static_cast<double>(want[next]);
    our_loss += is_sum - static_cast<double>(is[next]);
  }
};

void PrintError(const char* name, const InvariantGemma& want, const InvariantGemma& is,
                const std::vector<int32_t>& text) {
  const int vocabulary = want.config().vocab_size, end = static_cast<int>(text.size());
  InvariantGemma::Kv want_kv = want.NewKv(), is_kv = is.NewKv();
  std::vector<float> want_logits, is_logits;
  LogitsError error;
  for (int at = 0; at < end; at += kTextStep) {
    const int count = std::min(kTextStep, end - at);
    const absl::Span<const int32_t> tokens(text.data() + at, static_cast<size_t>(count));
    RequireOk(want.Step(&want_kv, tokens, count, &want_logits));
    RequireOk(is.Step(&is_kv, tokens, count, &is_logits));
    for (int i = 0; i < count; ++i) {
      const int64_t row = int64_t{i} * vocabulary;
      const int next = at + i + 1 < end ? text[static_cast<size_t>(at + i + 1)] : -1;
      error.Add(want_logits.data() + row, is_logits.data() + row, vocabulary, next);
    }
  }
  const double tokens = error.tokens, foretold = error.foretold;
  std::printf(
      "%-8s of %d tokens: max |d| %.3f, rms %.4f, mean KL %.6f, same first %.4f, same bits "
      "%.4f, perplexity %.4f -> %.4f\n",
      name, error.tokens, error.most, std::sqrt(error.squares / tokens), error.divergence / tokens,
      error.same_first / tokens, error.same_bits / tokens, std::exp(error.their_loss / foretold),
      std::exp(error.our_loss / foretold));
  std::fflush(stdout);
}

// Sequences of kContext tokens that go on.
class Decoders {
 public:
  Decoders(const InvariantGemma& model, const std::vector<int32_t>& text, int sequences)
      : model_(model), logits_(static_cast<size_t>(sequences)) {
    for (int i = 0; i < sequences; ++i) {
      kvs_.push_back(model.NewKv());
      RequireOk(model.Step(&kvs_.back(), {text.data(), kContext}, 0, nullptr));
    }
  }
  void Run() {
    for (int i = 0; i < kDecoded; ++i) {
      std::vector<InvariantGemma::Part> parts;
      for (size_t s = 0; s < kvs_.size(); ++s) parts.push_back({&kvs_[s], token_, 1, &logits_[s]});
      RequireOk(model_.Step(parts));
    }
  }

 private:
  const InvariantGemma& model_;
  const std::vector<int32_t> token_ = {1000};
  std::vector<InvariantGemma::Kv> kvs_;
  std::vector<std::vector<float>> logits_;
};

// Ours and theirs by turns; times are told for one of `count` of a turn.
void Compare(const char* what, int turns, int count, const std::function<void()>& ours,
             const std::function<void()>& theirs) {
  const CostTurns cost(turns, count, ours, theirs);
  std::printf("%-24s %8.2f %8.2f  %8.2f %8.2f  %6.2f %6.2f\n", what, cost.our_wall,
              cost.our_processor, cost.their_wall, cost.their_processor, cost.wall_ratio,
              cost.processor_ratio);
  std::fflush(stdout);
}

void CompareSteps(const std::string& name, const InvariantGemma& ours, const InvariantGemma& stored,
                  const std::vector<int32_t>& text) {
  for (const int sequences : {1, 8}) {
    Decoders our(ours, text, sequences), their(stored, text, sequences);
    Compare((name + ", decode " + std::to_string(sequences)).c_str(), 11, kDecoded * sequences,
            [&] { our.Run(); }, [&] { their.Run(); });
  }
  const auto prefill = [&](const InvariantGemma& model) {
    InvariantGemma::Kv kv = model.NewKv();
    std::vector<float> logits;
    RequireOk(model.Step(&kv, {text.data(), kContext}, 1, &logits));
  };
  Compare((name + ", prefill 512").c_str(), 5, 1, [&] { prefill(ours); }, [&] { prefill(stored); });
}

int Main(int argc, char** argv) {
  const int threads = argc > 3 ? std::atoi(argv[3]) : 2;
  const bool avx2 = argc == 5 && std::string(argv[4]) == "avx2";
  if (argc < 3 || argc > 5 || threads < 1 || (argc == 5 && !avx2)) {
    std::fprintf(stderr, "usage: weights_bench MODEL_DIR TEXT_FILE [THREADS [avx2]]\n");
    return 2;
  }
  if (avx2) ForceTarget(KernelTarget::kAvx2);
  const std::string dir = argv[1];
  const std::vector<int32_t> text = TokensOf(dir, argv[2]);
  if (text.size() < kContext) {
    std::fprintf(stderr, "weights_bench: %s has less than %d tokens\n", argv[2], kContext);
    return 2;
  }
  const Model stored = Load(dir, threads, WeightForm::kStored);
  std::printf("kernels: %s, %d threads; ms of a decoded token at %d over all, or of a prefill\n",
              KernelTargetName(ChosenTarget()), threads, kContext);
  std::printf("%-24s %8s %8s  %8s %8s  %6s %6s\n", "", "wall", "proc", "stored", "proc", "x",
              "x proc");
  for (const WeightForm form : {WeightForm::kInt8, WeightForm::kFloat32}) {
    const Model model = Load(dir, threads, form);
    CompareSteps(WeightFormName(form), *model, *stored, text);
    // Weights of 16 bits, widened, are float32's: what is stored stands for it where it does.
    PrintError(WeightFormName(form), *stored, *model, text);
  }
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
