// Measures steps of class exact on a device or a CPU: prefill, decoding, a restore from the host.
//   gpu_step_bench MODEL_DIR DEVICE DTYPE PREFIX TURNS
// Prints a line of JSON for each measurement: {"row": ..., "unit": ..., "values": [...]}.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "bench/turns.h"
#include "worker/model/torch/gemma.h"

namespace hearth {
namespace {

constexpr int kChunk = 128;       // tokens per prefill step, the default of the engine
constexpr int kLargeChunk = 512;  // tokens per prefill step with the flag --chunk-tokens 512
constexpr int kDecoded = 16;

class StepBench {
 public:
  StepBench(const Gemma& gemma, int prefix, int turns)
      : gemma_(gemma), prefix_(prefix), turns_(turns) {}

  void Run() {
    KvCache kv = NewKv();
    for (const int chunk : {kLargeChunk, kChunk}) {
      Row("prefill of " + std::to_string(prefix_) + " tokens in steps of " + std::to_string(chunk),
          "ms", 1e3, turns_, [&] { Prefill(&kv, chunk); });
    }
    Restore(kv);
    for (const int sequences : {1, 8, 32}) Decode(sequences);
  }

 private:
  KvCache NewKv() const {
    auto kv = gemma_.NewKvCache(prefix_ + (turns_ + 1) * kDecoded);
    RequireOk(kv.status());
    return *std::move(kv);
  }

  // Prefills the prompt. Copies the last token's logits to the host, which waits until the step is
  // computed.
  void Prefill(KvCache* kv, int chunk) {
    kv->Reset();
    for (int at = 0; at < prefix_; at += chunk) {
      std::vector<int32_t> tokens;
      for (int i = at; i < std::min(prefix_, at + chunk); ++i) {
        tokens.push_back(
            static_cast<int32_t>((int64_t{i} * 7919 + 300) % gemma_.config().vocab_size));
      }
      RequireOk(gemma_.Step(kv, tokens, at + chunk >= prefix_ ? &logits_ : nullptr));
    }
  }

  // In class exact a step has only one sequence, so the time for several sequences is that of one,
  // multiplied by their number.
  void Decode(int sequences) {
    std::vector<KvCache> kvs;
    for (int i = 0; i < sequences; ++i) {
      kvs.push_back(NewKv());
      Prefill(&kvs.back(), kLargeChunk);
    }
    const std::vector<int32_t> token = {42};
    Row("a token of " + std::to_string(sequences) + " sequences", "ms",
        1e3 / (kDecoded * sequences), sequences == 1 ? turns_ : 1, [&] {
          for (int i = 0; i < kDecoded; ++i) {
            for (KvCache& kv : kvs) RequireOk(gemma_.Step(&kv, token, &logits_));
          }
        });
  }

  void Restore(const KvCache& from) {
    std::vector<std::vector<std::byte>> rows;
    double gigabytes = 0;
    for (int layer = 0; layer < from.num_layers(); ++layer) {
      const int begin = from.first_held(layer), count = from.length() - begin;
      rows.emplace_back(static_cast<size_t>(count) * static_cast<size_t>(from.token_bytes()));
      from.CopyOut(layer, begin, from.length(), begin, count, rows.back().data());
    }
    KvCache kv = NewKv();
    const auto restore = [&] {
      kv.BeginRestore(prefix_);
      for (int layer = 0; layer < kv.num_layers(); ++layer) {
        const int begin = kv.first_held(layer), held = from.first_held(layer);
        kv.CopyIn(layer, begin, prefix_, held, prefix_ - held, rows[layer].data());
      }
      kv.FinishRestore(prefix_);
    };
    restore();
    gigabytes = static_cast<double>(kv.held_bytes(0)) / 1e9;
    Row("restore of " + std::to_string(prefix_) + " tokens from the host", "ms", 1e3, turns_,
        restore);
    Row("restore from the host", "GB/s", -gigabytes, turns_, restore);
  }

  // Prints seconds * `scale` for each run; if `scale` is negative, prints -scale / seconds. The
  // first run is not counted.
  void Row(const std::string& row, const char* unit, double scale, int turns,
           const std::function<void()>& work) {
    std::printf("{\"row\": \"%s\", \"unit\": \"%s\", \"values\": [", row.c_str(), unit);
    for (int turn = -1; turn < turns; ++turn) {
      const auto begin = std::chrono::steady_clock::now();
      work();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
      const double value = scale > 0 ? took.count() * scale : -scale / took.count();
      if (turn >= 0) std::printf("%s%.6g", turn == 0 ? "" : ", ", value);
    }
    std::printf("]}\n");
    std::fflush(stdout);
  }

  const Gemma& gemma_;
  const int prefix_, turns_;
  std::vector<float> logits_;
};

int Main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: gpu_step_bench MODEL_DIR DEVICE DTYPE PREFIX TURNS\n");
    return 2;
  }
  GemmaOptions options;
  options.device = argv[2];
  options.dtype = argv[3];
  const auto gemma = Gemma::Load(argv[1], options);
  if (!gemma.ok()) {
    std::fprintf(stderr, "%s\n", gemma.status().ToString().c_str());
    return 1;
  }
  StepBench(**gemma, std::atoi(argv[4]), std::atoi(argv[5])).Run();
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
