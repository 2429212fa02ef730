// The ways to keep keys and values, on a real model and a text: bytes that are held, blocks that
// are taken while decoding, perplexity, and the time of a decoded token against `dynamic`, by turns
// in one run. Wall time and processor time, medians; ratios are medians of those of a turn.
//   kv_bench MODEL_DIR TEXT_FILE [TOKENS [THREADS [OPTIONS...]]]
// Default: 2048 tokens, 2 threads. OPTIONS: of the strategy quantized, each without times; or
// "offloaded": the first arena's bytes of that and of dynamic behind so many tokens, and whether
// their logits behind the text's first 640 are the same.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "bench/turns.h"
#include "worker/model/invariant/invariant_gemma.h"
#include "worker/text/tokenizer_loader.h"

namespace hearth {
namespace {

constexpr int kTextStep = 128, kDecoded = 4, kTurns = 5, kCounted = 136, kLongStep = 512;

std::vector<int32_t> TokensOf(const std::string& dir, const std::string& file, size_t count) {
  const auto tokenizer = LoadTokenizer(dir);
  RequireOk(tokenizer.status());
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  std::vector<int32_t> tokens = {(*tokenizer)->bos_id()};
  for (const int32_t token : (*tokenizer)->Encode(text.str().substr(0, 16 * count))) {
    if (tokens.size() < count) tokens.push_back(token);
  }
  return tokens;
}

// Of a token that was to come, in nats.
double LossOf(const float* logits, int vocabulary, int32_t next) {
  const float most = *std::max_element(logits, logits + vocabulary);
  double sum = 0;
  for (int i = 0; i < vocabulary; ++i) sum += std::exp(static_cast<double>(logits[i] - most));
  return most + std::log(sum) - static_cast<double>(logits[next]);
}

class KvBench {
 public:
  KvBench(const InvariantGemma& model, std::vector<int32_t> text)
      : model_(model), text_(std::move(text)), layout_(model.NewKv().layout()) {}

  // `options`: of the strategy quantized.
  void Measure(const char* strategy, const std::string& options, bool timed = true) {
    const absl::StatusOr<KvChoice> choice = ChooseKv({strategy, options}, {}, layout_);
    RequireOk(choice.status());
    const uint64_t before = model_.kv_blocks().used_bytes();
    InvariantGemma::Kv kv = New(*choice);
    const double perplexity = PerplexityOf(&kv);
    const uint64_t held = kv.held_bytes(0);
    const uint64_t taken = TakenWhileDecoding(&kv);
    const uint64_t used = model_.kv_blocks().used_bytes() - before;
    if (dynamic_held_ == 0) {
      dynamic_held_ = held;
      dynamic_perplexity_ = perplexity;
    }
    KvLayout layout = layout_;
    layout.quantization = choice->quantization;
    std::printf(
        "%-10s %-34s chunk %.4f of float32, held %.2f MB (%.3f of dynamic), blocks of %.2f MB and "
        "%.2f offloaded, taken in %d tokens: %lu, perplexity %.4f (%+.3f %%)\n",
        strategy, options.c_str(),
        static_cast<double>(layout.SliceBytes(layout.chunk_tokens)) /
            static_cast<double>(layout_.SliceBytes(layout.chunk_tokens)),
        static_cast<double>(held) / 1e6,
        static_cast<double>(held) / static_cast<double>(dynamic_held_),
        static_cast<double>(used) / 1e6,
        static_cast<double>(model_.offloaded_blocks().used_bytes()) / 1e6, kCounted,
        static_cast<unsigned long>(taken), perplexity,
        (perplexity / dynamic_perplexity_ - 1) * 100);
    std::fflush(stdout);
    if (timed && choice->strategy != KvStrategy::kDynamic) CompareDecoding(*choice, kv);
  }

  void CompareOffloaded(int tokens) {
    std::vector<float> logits[2];
    uint64_t first[2] = {}, second[2] = {};
    for (const int side : {0, 1}) {
      KvChoice choice;
      if (side == 1) choice.strategy = KvStrategy::kOffloaded;
      {
        InvariantGemma::Kv kv = New(choice);
        // Room is what counts: what is in the rows does not change it.
        for (int at = 0; at < tokens + 2; at = kv.length()) {
          const int step = at < tokens ? std::min(kLongStep, tokens - at) : 1;
          RequireOk(kv.MakeRoom(step));
          kv.Advance(step);
        }
        first[side] = model_.kv_blocks().used_bytes();
        second[side] = model_.offloaded_blocks().used_bytes();
      }
      InvariantGemma::Kv kv = New(choice);
      RequireOk(model_.Step(&kv, text_, 1, &logits[side]));
      Decode(&kv, kDecoded, &logits[side]);
    }
    std::printf("at %d tokens: dynamic %.2f MB; offloaded %.2f MB (%.3f) and %.2f MB\n", tokens,
                static_cast<double>(first[0]) / 1e6, static_cast<double>(first[1]) / 1e6,
                static_cast<double>(first[1]) / static_cast<double>(first[0]),
                static_cast<double>(second[1]) / 1e6);
    std::printf("logits behind %zu: %s\n", text_.size() + kDecoded,
                logits[0] == logits[1] ? "the same" : "DIFFER");
  }

 private:
  InvariantGemma::Kv New(const KvChoice& choice) const {
    InvariantGemma::Kv kv = model_.NewKv(choice);
    if (choice.strategy != KvStrategy::kStatic) return kv;
    // Of local layers the window and a step.
    const uint64_t chunk = layout_.chunk_tokens, splits = (text_.size() + 2 * kCounted) / chunk;
    const uint64_t local = (layout_.window + kTextStep) / chunk + 2;
    RequireOk(kv.TakeAhead(splits, local, 0, splits));
    return kv;
  }

  // Of the text but its first token.
  double PerplexityOf(InvariantGemma::Kv* kv) const {
    const int vocabulary = model_.config().vocab_size, end = static_cast<int>(text_.size());
    std::vector<float> logits;
    double loss = 0;
    for (int at = 0; at < end; at += kTextStep) {
      const int count = std::min(kTextStep, end - at);
      RequireOk(model_.Step(kv, {text_.data() + at, static_cast<size_t>(count)}, count, &logits));
      for (int i = 0; i < count && at + i + 1 < end; ++i) {
        loss += LossOf(logits.data() + int64_t{i} * vocabulary, vocabulary,
                       text_[static_cast<size_t>(at + i + 1)]);
      }
    }
    return std::exp(loss / (end - 1));
  }

  void Decode(InvariantGemma::Kv* kv, int tokens, std::vector<float>* logits) const {
    const std::vector<int32_t> token = {1000};
    for (int i = 0; i < tokens; ++i) RequireOk(model_.Step(kv, token, 1, logits));
  }

  uint64_t TakenWhileDecoding(InvariantGemma::Kv* kv) const {
    const uint64_t before = model_.kv_blocks().taken_blocks();
    std::vector<float> logits;
    Decode(kv, kCounted, &logits);
    return model_.kv_blocks().taken_blocks() - before;
  }

  void CompareDecoding(const KvChoice& choice, const InvariantGemma::Kv& after) const {
    InvariantGemma::Kv ours = New(choice), dynamic = model_.NewKv();
    for (InvariantGemma::Kv* kv : {&ours, &dynamic}) {
      for (int at = 0; at < after.length(); at += kTextStep) {
        const std::vector<int32_t> step(kTextStep, 1000);
        RequireOk(model_.Step(kv, step, 0, nullptr));
      }
    }
    std::vector<float> logits;
    const CostTurns cost(
        kTurns, kDecoded, [&] { Decode(&ours, kDecoded, &logits); },
        [&] { Decode(&dynamic, kDecoded, &logits); });
    std::printf("  a token at %d: %.2f ms, processor %.2f; dynamic %.2f, %.2f; ratio %.2f, %.2f\n",
                after.length(), cost.our_wall, cost.our_processor, cost.their_wall,
                cost.their_processor, cost.wall_ratio, cost.processor_ratio);
    std::fflush(stdout);
  }

  const InvariantGemma& model_;
  const std::vector<int32_t> text_;
  const KvLayout layout_;
  uint64_t dynamic_held_ = 0;
  double dynamic_perplexity_ = 0;
};

int Main(int argc, char** argv) {
  const int tokens = argc > 3 ? std::atoi(argv[3]) : 2048;
  const int threads = argc > 4 ? std::atoi(argv[4]) : 2;
  if (argc < 3 || tokens < 2 || threads < 1) {
    std::fprintf(stderr, "usage: kv_bench MODEL_DIR TEXT_FILE [TOKENS [THREADS [OPTIONS...]]]\n");
    return 2;
  }
  const std::string dir = argv[1];
  const bool offloaded = argc == 6 && std::string(argv[5]) == "offloaded";
  const auto count = static_cast<size_t>(offloaded ? std::min(640, tokens) : tokens);
  const std::vector<int32_t> text = TokensOf(dir, argv[2], count);
  InvariantGemmaOptions options;
  options.threads = threads;
  const auto model = InvariantGemma::Load(dir, options);
  RequireOk(model.status());
  std::printf("%zu tokens, %d threads\n", text.size(), threads);
  KvBench bench(**model, text);
  if (offloaded) {
    bench.CompareOffloaded(tokens);
    return 0;
  }
  bench.Measure("dynamic", "");
  for (int i = 5; i < argc; ++i) bench.Measure("quantized", argv[i], /*timed=*/false);
  if (argc > 5) return 0;
  for (const char* strategy : {"static", "offloaded"}) bench.Measure(strategy, "");
  for (const char* bits : {"bits=8", "bits=4", "bits=2"}) bench.Measure("quantized", bits);
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
