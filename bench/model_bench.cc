// Compares steps of a model: class invariant with class exact, and with the machine's memory
// bandwidth, by turns in one run. Wall time and processor time are medians; a ratio is the median
// of the ratios of each turn.
//   model_bench MODEL_DIR [THREADS [avx2]]       default: 2 threads, the best instruction set
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/turns.h"
#include "worker/kernels/base/kernel_memory.h"
#include "worker/kernels/targets.h"
#include "worker/model/invariant/invariant_gemma.h"
#include "worker/model/thread_pool.h"
#include "worker/model/torch/gemma.h"

namespace hearth {
namespace {

// Tokens per prefill step, as in the engine.
constexpr int kExactStep = 128, kInvariantStep = 512;

std::vector<int32_t> Text(int begin, int end, int vocabulary) {
  std::vector<int32_t> tokens;
  for (int i = begin; i < end; ++i) {
    tokens.push_back(static_cast<int32_t>((int64_t{i} * 7919 + 300) % vocabulary));
  }
  return tokens;
}

// Runs both implementations by turns, with `tokens` tokens per turn, and prints their times per
// token.
void Compare(const char* what, int turns, int tokens, const std::function<void()>& ours,
             const std::function<void()>& theirs) {
  const CostTurns cost(turns, tokens, ours, theirs);
  std::printf("%-28s %9.2f %9.2f  %9.2f %9.2f  %6.2f %6.2f\n", what, cost.our_wall,
              cost.our_processor, cost.their_wall, cost.their_processor, cost.wall_ratio,
              cost.processor_ratio);
  std::fflush(stdout);
}

class Models {
 public:
  Models(const std::string& dir, int threads) {
    GemmaOptions options;
    options.threads = threads;
    options.dtype = "float32";
    auto exact = Gemma::Load(dir, options);
    RequireOk(exact.status());
    exact_ = *std::move(exact);
    auto invariant = InvariantGemma::Load(dir, {threads, kExactStep});
    RequireOk(invariant.status());
    invariant_ = *std::move(invariant);
  }
  int vocabulary() const { return exact_->config().vocab_size; }

  InvariantGemma::Kv Prefilled(int tokens) const {
    InvariantGemma::Kv kv = invariant_->NewKv();
    std::vector<float> logits;
    for (int at = 0; at < tokens; at += kInvariantStep) {
      const int end = std::min(tokens, at + kInvariantStep);
      RequireOk(invariant_->Step(&kv, Text(at, end, vocabulary()), end == tokens ? 1 : 0, &logits));
    }
    return kv;
  }
  KvCache ExactPrefilled(int tokens, int room) const {
    auto kv = exact_->NewKvCache(tokens + room);
    RequireOk(kv.status());
    ExactPrefill(tokens, &*kv);
    return *std::move(kv);
  }
  void ExactPrefill(int tokens, KvCache* kv) const {
    std::vector<float> logits;
    for (int at = 0; at < tokens; at += kExactStep) {
      const int end = std::min(tokens, at + kExactStep);
      RequireOk(exact_->Step(kv, Text(at, end, vocabulary()), end == tokens ? &logits : nullptr));
    }
  }

  void ComparePrefill(int tokens, int turns) const {
    KvCache theirs = ExactPrefilled(tokens, 1);
    Prefilled(tokens);
    Compare(("prefill " + std::to_string(tokens)).c_str(), turns, 1, [&] { Prefilled(tokens); },
            [&] {
              theirs.Reset();
              ExactPrefill(tokens, &theirs);
            });
  }

  // In each turn, each sequence decodes kDecoded tokens. Class exact decodes one sequence after
  // another.
  void CompareDecode(int context, int sequences, int turns) {
    constexpr int kDecoded = 4;
    const int room = (turns + 1) * kDecoded;
    std::vector<InvariantGemma::Kv> ours;
    std::vector<KvCache> theirs;
    std::vector<StepLogits> logits(static_cast<size_t>(sequences));
    std::vector<float> their_logits;
    for (int i = 0; i < sequences; ++i) {
      ours.push_back(Prefilled(context));
      theirs.push_back(ExactPrefilled(context, room));
    }
    const std::vector<int32_t> token = {1000};
    const auto our_turn = [&] {
      for (int i = 0; i < kDecoded; ++i) {
        std::vector<InvariantGemma::Part> parts;
        for (size_t s = 0; s < ours.size(); ++s) parts.push_back({&ours[s], token, 1, &logits[s]});
        RequireOk(invariant_->Step(parts));
      }
    };
    const auto their_turn = [&] {
      for (int i = 0; i < kDecoded; ++i) {
        for (size_t s = 0; s < theirs.size(); ++s) {
          RequireOk(exact_->Step(&theirs[s], token, &their_logits));
        }
      }
    };
    our_turn();
    their_turn();
    const std::string what =
        "decode " + std::to_string(sequences) + " at " + std::to_string(context);
    Compare(what.c_str(), turns - 1, kDecoded * sequences, our_turn, their_turn);
  }

  // Compares decoding one token with only reading the bytes that the token needs, with the same
  // number of threads.
  void CompareMemory(int context, int turns) {
    const ModelConfig& config = exact_->config();
    const int64_t hidden = config.hidden_size, dim = config.attention.head_dim;
    const int64_t layer =
        hidden * dim * (2 * config.attention.num_heads + 2 * config.attention.num_kv_heads) +
        3 * hidden * config.intermediate_size;
    int64_t bytes = 2 * (config.num_layers * layer + hidden * config.vocab_size);
    for (int i = 0; i < config.num_layers; ++i) {
      const int rows =
          config.is_local(i) ? std::min(context, config.attention.sliding_window) : context;
      bytes += int64_t{4} * 2 * rows * dim * config.attention.num_kv_heads;
    }
    ThreadPool pool(invariant_->threads());
    // Allocate the memory like weights, in huge pages if available.
    const size_t words = static_cast<size_t>(bytes) / 8;
    const KernelBytes owned = AllocateKernelBytes(words * 8);
    uint64_t* memory = reinterpret_cast<uint64_t*>(owned.get());
    std::fill_n(memory, words, 1);
    InvariantGemma::Kv kv = Prefilled(context);
    std::vector<float> logits;
    const std::vector<int32_t> token = {1000};
    const auto read = [&] { Read({memory, words}, &pool); };
    const Turns both(
        turns, [&] { RequireOk(invariant_->Step(&kv, token, 1, &logits)); }, read);
    std::printf("decode 1 at %d: %.1f MB a token at %.1f GB/s; memory %.1f GB/s; share %.2f\n",
                context, static_cast<double>(bytes) / 1e6,
                static_cast<double>(bytes) / both.ours / 1e9,
                static_cast<double>(bytes) / both.theirs / 1e9, both.ratio);
    std::fflush(stdout);
  }

 private:
  // Sums all words in parallel, 1 MiB at a time.
  static void Read(absl::Span<const uint64_t> memory, ThreadPool* pool) {
    constexpr size_t kPart = size_t{1} << 17;
    typedef uint64_t Eight __attribute__((vector_size(64), aligned(8), may_alias));
    static std::atomic<uint64_t> all{0};
    const size_t parts = memory.size() / kPart;
    pool->Run(static_cast<int64_t>(parts), [&](int64_t part, int) {
      const uint64_t* at = memory.data() + static_cast<size_t>(part) * kPart;
      Eight sums[4] = {};
      for (size_t i = 0; i < kPart; i += 32) {
        for (size_t v = 0; v < 4; ++v) sums[v] += *reinterpret_cast<const Eight*>(at + i + v * 8);
      }
      for (const Eight& sum : sums) all += sum[0] + sum[7];
    });
  }

  std::unique_ptr<Gemma> exact_;
  std::unique_ptr<InvariantGemma> invariant_;
};

int Main(int argc, char** argv) {
  const int threads = argc > 2 ? std::atoi(argv[2]) : 2;
  const bool avx2 = argc == 4 && std::string(argv[3]) == "avx2";
  if (argc < 2 || argc > 4 || threads < 1 || (argc == 4 && !avx2)) {
    std::fprintf(stderr, "usage: model_bench MODEL_DIR [THREADS [avx2]]\n");
    return 2;
  }
  if (avx2) ForceTarget(KernelTarget::kAvx2);
  Models models(argv[1], threads);
  std::printf("kernels: %s, %d threads; ms of a prefill, or of a decoded token over all\n",
              KernelTargetName(ChosenTarget()), threads);
  std::printf("%-28s %9s %9s  %9s %9s  %6s %6s\n", "", "invariant", "processor", "exact",
              "processor", "x", "x proc");
  for (const int context : {512, 2048}) models.CompareDecode(context, 1, 12);
  models.CompareDecode(256, 8, 6);
  for (const int context : {512, 2048}) models.CompareMemory(context, 40);
  for (const int tokens : {512, 2048, 4096}) models.ComparePrefill(tokens, tokens == 512 ? 5 : 3);
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
