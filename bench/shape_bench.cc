// One layer in the shapes of each Gemma 3, with made-up weights: decoding and prefill on the
// kernels against the layer's five products on oneDNN's packed float32 linear, which torch calls,
// by turns in one run, behind 512 tokens. Ratios are medians over turns of theirs / ours, of wall
// and of processor time; times are medians.
//   shape_bench [avx2] [int8] [THREADS]      default: 2
//   shape_bench bits [270M|1B|4B|12B]        bits instead: steps of 1, 7, 128 and 512 rows, 1 to 3
//                                            threads, every instruction set; a local and a global
//                                            layer of each shape
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "bench/turns.h"
#include "tests/support/made_up_layer.h"
#include "worker/kernels/targets.h"
#include "worker/model/torch/linear.h"

namespace hearth {
namespace {

constexpr LayerShape kShapes[] = {kShape270M, kShape1B, kShape4B, kShape12B};
constexpr int64_t kContext = 512, kRows = 512;
constexpr int kTurns = 7;

// The layer's products, float32.
class Products {
 public:
  explicit Products(const LayerShape& shape) : shape_(shape) {
    const int64_t gates = 2 * shape.wide;
    for (const auto& [outputs, inputs] : {std::pair(shape.qkv(), shape.hidden),
                                          {shape.hidden, shape.heads * shape.dim},
                                          {gates, shape.hidden},
                                          {shape.hidden, shape.wide}}) {
      const at::Tensor weight = at::full({outputs, inputs}, 0.01f);
      TensorView view;
      view.dtype = TensorDtype::kFloat32;
      view.shape = {outputs, inputs};
      view.data = static_cast<const std::byte*>(weight.data_ptr());
      linears_.push_back(Linear({view}, at::kFloat, at::kCPU, /*rows_hint=*/128));
    }
  }
  void Run(int64_t rows) {
    int64_t inputs[] = {shape_.hidden, shape_.heads * shape_.dim, shape_.hidden, shape_.wide};
    for (size_t i = 0; i < linears_.size(); ++i) out_ = linears_[i](at::ones({rows, inputs[i]}));
  }

 private:
  const LayerShape shape_;
  std::vector<Linear> linears_;
  at::Tensor out_;
};

void Compare(MadeUpLayer* layer, Products* products, int64_t rows, ThreadPool* pool) {
  const KernelPhases& phases = layer->Plan(/*local=*/true, kContext, rows);
  const CostTurns cost(
      kTurns, 1, [&] { phases.RunOn(pool); }, [&] { products->Run(rows); });
  std::printf("%-5s %4ld  %9.2f %9.2f  %9.2f %9.2f  %6.2f %6.2f\n", layer->shape().name,
              static_cast<long>(rows), cost.our_wall, cost.our_processor, cost.their_wall,
              cost.their_processor, cost.wall_ratio, cost.processor_ratio);
  std::fflush(stdout);
}

// Rows [begin, begin + kRows) of a layer whose window slides among them.
bool BitsHold(const LayerShape& shape) {
  const int64_t begin = shape.window - kRows / 2;
  MadeUpLayer layer(shape, begin + kRows);
  bool all_hold = true;
  for (const bool local : {true, false}) {
    std::vector<float> want;
    for (const KernelTarget target : UsableTargets()) {
      if (target == KernelTarget::kPlain) continue;  // hours
      ForceTarget(target);
      for (const int threads : {1, 2, 3}) {
        ThreadPool pool(threads);
        for (const int64_t step : {512, 128, 7, 1}) {
          if (step == 1 && threads != 2) continue;  // said once for each instruction set
          const std::vector<float> is = layer.Run(local, begin, begin + kRows, step, &pool);
          if (want.empty()) want = is;
          const bool holds = std::memcmp(is.data(), want.data(), is.size() * sizeof(float)) == 0;
          all_hold &= holds;
          if (holds) continue;
          std::printf("%s, %s, %s, %d threads, steps of %ld: OTHER BITS\n", shape.name,
                      local ? "local" : "global", KernelTargetName(target), threads,
                      static_cast<long>(step));
        }
      }
    }
  }
  std::printf("%s: %s\n", shape.name, all_hold ? "all bits are equal" : "bits differ");
  std::fflush(stdout);
  return all_hold;
}

int Main(int argc, char** argv) {
  int threads = 2;
  WeightForm form = WeightForm::kStored;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "bits") {
      bool hold = true;
      for (const LayerShape& shape : kShapes) {
        if (i + 1 == argc || shape.name == std::string(argv[i + 1])) hold &= BitsHold(shape);
      }
      return hold ? 0 : 1;
    }
    if (word == "avx2") {
      ForceTarget(KernelTarget::kAvx2);
    } else if (word == "int8") {
      form = WeightForm::kInt8;
    } else if (threads = std::atoi(argv[i]); threads < 1) {
      std::fprintf(stderr, "usage: shape_bench bits [270M|1B|4B|12B] | [avx2] [int8] [THREADS]\n");
      return 2;
    }
  }
  const c10::InferenceMode inference;
  at::set_num_threads(threads);
  ThreadPool pool(threads);
  std::printf(
      "kernels: %s, weights: %s, %d threads; ms of a layer, and of its products by "
      "oneDNN in float32\n",
      KernelTargetName(ChosenTarget()), WeightFormName(form), threads);
  std::printf("%-5s %4s  %9s %9s  %9s %9s  %6s %6s\n", "layer", "rows", "wall", "proc", "oneDNN",
              "proc", "x", "x proc");
  for (const LayerShape& shape : kShapes) {
    MadeUpLayer layer(shape, kContext + kRows, form);
    layer.Begin(kContext);
    Products products(shape);
    for (const int64_t rows : {1, 8, 128, 512}) Compare(&layer, &products, rows, &pool);
  }
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
