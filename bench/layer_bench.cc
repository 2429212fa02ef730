// The layers of a step of 270M's shapes on the kernels, behind 512 tokens: all loops as one
// sequence against each loop by itself, by turns in one run. Weights are random bfloat16, of their
// own for each layer, so that they come from memory as in a step of the model.
//   layer_bench [avx2] [THREADS...]       default: 1 2, on the best instruction set
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "bench/turns.h"
#include "worker/kernels/layer.h"
#include "worker/kernels/rope_table.h"
#include "worker/kernels/targets.h"
#include "worker/model/thread_pool.h"

namespace hearth {
namespace {

constexpr int64_t kLayers = 18, kHidden = 640, kHeads = 4, kKvHeads = 1, kDim = 256, kWide = 2048;
constexpr int64_t kContext = 512, kSplit = 128, kMaxRows = 512;
constexpr int kTurns = 15;

uint64_t Draw() {
  static uint64_t state = 1;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return state >> 33;
}

PackedWeights Draw(int64_t outputs, int64_t inputs) {
  std::vector<uint16_t> stored(static_cast<size_t>(outputs * inputs));
  for (uint16_t& bits : stored) {  // up to 0.03, of both signs
    bits = static_cast<uint16_t>(0x3c00 | (Draw() & 0x80ff));
  }
  return PackedWeights::Pack({{stored.data(), outputs}}, ElementType::kBFloat16, inputs,
                             InThisThread);
}

struct BenchLayer {
  PackedWeights qkv = Draw((kHeads + 2 * kKvHeads) * kDim, kHidden);
  PackedWeights out = Draw(kHidden, kHeads* kDim);
  PackedWeights gate = Draw(kWide, kHidden), up = Draw(kWide, kHidden);
  PackedWeights down = Draw(kHidden, kWide);
  std::vector<std::vector<float>> blocks;
  std::vector<const std::byte*> pointers;
  std::vector<QkvToken> tokens;
  AttendSequence sequence;

  size_t bytes() const {
    return qkv.bytes() + out.bytes() + gate.bytes() + up.bytes() + down.bytes();
  }
};

class Step {
 public:
  Step() : rope_(10000, 1, kDim), norm_(kHidden, 1.0f), head_norm_(kDim, 0.1f) {
    rope_.Extend(kContext + kMaxRows);
    for (int64_t i = 0; i < kLayers; ++i) {
      layers_.emplace_back();
      BenchLayer& layer = layers_.back();
      for (int64_t at = 0; at < kContext + kMaxRows; at += kSplit) {
        layer.blocks.emplace_back(2 * kKvHeads * kSplit * kDim, 0.5f);
        layer.pointers.push_back(reinterpret_cast<const std::byte*>(layer.blocks.back().data()));
      }
    }
  }

  // The step's loops, once planned.
  const KernelPhases& Plan(int64_t rows) {
    phases_.Clear();
    const auto view = [&](std::vector<float>* room, int64_t columns) {
      room->assign(static_cast<size_t>(rows * columns), 0.25f);
      return Rows{room->data(), rows, columns};
    };
    LayerRows all{view(&rooms_[0], kHidden),
                  view(&rooms_[1], kHidden),
                  view(&rooms_[2], (kHeads + 2 * kKvHeads) * kDim),
                  view(&rooms_[3], kHeads * kDim),
                  view(&rooms_[4], kWide),
                  view(&rooms_[5], kHidden),
                  {},
                  {}};
    for (BenchLayer& layer : layers_) {
      layer.tokens.clear();
      for (int64_t position = kContext; position < kContext + rows; ++position) {
        float* keys =
            layer.blocks[static_cast<size_t>(position / kSplit)].data() + position % kSplit * kDim;
        layer.tokens.push_back({rope_.Cos(position, 1).data, rope_.Sin(position, 1).data, keys,
                                keys + kKvHeads * kSplit * kDim, kSplit * kDim});
      }
      layer.sequence = {layer.pointers.data(), kContext, rows};
      all.tokens = layer.tokens;
      all.sequences = {&layer.sequence, 1};
      AddLayer(View(layer), norm_.data(), all, &workspace_, &phases_);
    }
    return phases_;
  }
  double weight_bytes() const { return static_cast<double>(layers_[0].bytes() * kLayers); }

 private:
  LayerWeights View(const BenchLayer& layer) const {
    LayerWeights weights;
    weights.qkv = &layer.qkv;
    weights.out = &layer.out;
    weights.gate = &layer.gate;
    weights.up = &layer.up;
    weights.down = &layer.down;
    weights.post_attention_norm = weights.pre_feedforward_norm = norm_.data();
    weights.post_feedforward_norm = norm_.data();
    weights.heads = {kHeads, kKvHeads, kDim, head_norm_.data(), head_norm_.data(), 1e-6f};
    weights.attend.heads = kHeads;
    weights.attend.kv_heads = kKvHeads;
    weights.attend.head_dim = kDim;
    weights.attend.split = kSplit;
    return weights;
  }

  RopeTable rope_;
  std::vector<float> norm_, head_norm_, rooms_[6];
  std::vector<BenchLayer> layers_;
  Workspace workspace_;
  KernelPhases phases_;
};

void Compare(Step* step, int64_t rows, ThreadPool* pool) {
  const KernelPhases& phases = step->Plan(rows);
  const auto parallel = [pool](int64_t parts, KernelPart body) {
    pool->Run(parts, [&](int64_t part, int) { body(part); });
  };
  const Turns turns(
      kTurns, [&] { phases.RunOn(pool); }, [&] { phases.Run(parallel); });
  const double flops = static_cast<double>(rows) * step->weight_bytes();  // 16 bits, 2 operations
  std::printf("%4ld %2d  %4d  %9.3f %9.3f  %5.2f  %6.1f  %6.1f\n", static_cast<long>(rows),
              pool->threads(), static_cast<int>(phases.list().size()), turns.ours * 1e3,
              turns.theirs * 1e3, turns.ratio, flops / turns.ours / 1e9,
              step->weight_bytes() / turns.ours / 1e9);
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  std::vector<int> threads;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "avx2") {
      ForceTarget(KernelTarget::kAvx2);
      continue;
    }
    threads.push_back(std::atoi(argv[i]));
    if (threads.back() < 1) {
      std::fprintf(stderr, "usage: layer_bench [avx2] [THREADS...]\n");
      return 2;
    }
  }
  if (threads.empty()) threads = {1, 2};
  std::printf("kernels: %s; %d turns, medians; ms of all layers, without the head\n",
              KernelTargetName(ChosenTarget()), kTurns);
  std::printf("%4s %2s  %4s  %9s %9s  %5s  %6s  %6s\n", "rows", "th", "loops", "sequence",
              "one by one", "x", "GFLOP/s", "GB/s");
  Step step;
  for (const int count : threads) {
    ThreadPool pool(count);
    for (const int64_t rows : {1, 8, 128, 512}) Compare(&step, rows, &pool);
  }
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
