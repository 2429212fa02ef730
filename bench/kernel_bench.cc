// Compares the worker's product with oneDNN's packed float32 linear, which torch calls, for the
// shapes of a model's layers and head, by turns in one run. The worker's weights are bfloat16,
// oneDNN's float32. Each turn runs one matrix per layer of the model, so that weights come from
// memory as in a step. A ratio is the median over turns of theirs / ours in one turn, so that other
// load affects both. Times are medians.
// For the fused kernel (gelu), "theirs" are our own kernels run one after another.
//   kernel_bench [avx2] [q8_0|q4_0] [THREADS...]       default: 1 2, on the best instruction set
// q8_0, q4_0: our weights are converted to these blocks and multiply in integers.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <string>
#include <vector>

#include "bench/turns.h"
#include "worker/kernels/attend.h"
#include "worker/kernels/fused_products.h"
#include "worker/kernels/product.h"
#include "worker/kernels/row_kernels.h"
#include "worker/kernels/targets.h"
#include "worker/model/thread_pool.h"
#include "worker/model/torch/linear.h"

namespace hearth {
namespace {

struct Shape {
  const char* name;
  int64_t outputs, inputs;
  int copies;
};
// The matrices of Gemma 3 270M.
constexpr Shape kShapes[] = {{"qkv", 1536, 640, 18},
                             {"out", 640, 1024, 18},
                             {"gate+up", 4096, 640, 18},
                             {"down", 640, 2048, 18},
                             {"head", 262144, 640, 1}};
constexpr int kTurns = 9, kAttendTurns = 21;
constexpr int64_t kRowCounts[] = {1, 2, 8, 32, 128};

// Prints one line: the time per work of both implementations (a turn does `count` works), their
// ratio, and the flops and bytes per second.
void Print(const char* name, int64_t rows, int threads, const Turns& turns, int count, double flops,
           double bytes) {
  std::printf("%-8s %4ld %2d  %9.1f %9.1f  %5.2f  %6.1f %6.1f  %6.1f\n", name,
              static_cast<long>(rows), threads, turns.ours / count * 1e6,
              turns.theirs / count * 1e6, turns.ratio, flops * count / turns.ours / 1e9,
              flops * count / turns.theirs / 1e9, bytes * count / turns.ours / 1e9);
  std::fflush(stdout);
}

std::string CpuName() {
  std::ifstream info("/proc/cpuinfo");
  std::string line, name, family;
  while (std::getline(info, line)) {
    if (line.rfind("model name", 0) == 0 && name.empty()) name = line.substr(line.find(':') + 2);
    if (line.rfind("model\t", 0) == 0 && family.empty()) family = line.substr(line.find(':') + 2);
  }
  return name + ", model " + family;
}

// Measures the read bandwidth of this machine's memory, in bytes per second, by summing a large
// array.
double ReadBandwidth(ThreadPool* pool) {
  static const std::vector<uint64_t> array((256u << 20) / 8, 1);
  constexpr int64_t kParts = 64;
  const int64_t part_words = static_cast<int64_t>(array.size()) / kParts;
  std::atomic<uint64_t> all{0};
  double best = 1e9;
  for (int turn = 0; turn < 3; ++turn) {
    best = std::min(best, Seconds([&] {
                      pool->Run(kParts, [&](int64_t part, int) {
                        uint64_t sums[8] = {};
                        const uint64_t* words = array.data() + part * part_words;
                        for (int64_t i = 0; i + 8 <= part_words; i += 8) {
                          for (int j = 0; j < 8; ++j) sums[j] += words[i + j];
                        }
                        all += std::accumulate(sums, sums + 8, uint64_t{0});
                      });
                    }));
  }
  if (all == 0) std::abort();
  return static_cast<double>(array.size()) * 8 / best;
}

// Prints the cost of starting and ending a parallel loop with two tasks per thread (about 2 us per
// task): as a single loop, and as one phase of a sequence.
void PrintPoolCosts(ThreadPool* pool) {
  constexpr int kLoops = 200;
  std::atomic<uint64_t> all{0};
  const auto task = [&](int64_t, int) {
    uint64_t value = all.load(std::memory_order_relaxed);
    for (int i = 0; i < 2000; ++i) value = value * 6364136223846793005u + 1;
    all.store(value, std::memory_order_relaxed);
  };
  const int64_t tasks = 2 * pool->threads();
  const std::vector<ThreadPool::Phase> phases(kLoops, {tasks, task});
  const Turns turns(
      kAttendTurns, [&] { pool->RunPhases(phases); },
      [&] {
        for (int i = 0; i < kLoops; ++i) pool->Run(tasks, task);
      });
  const double alone = Seconds([&] {
    for (int i = 0; i < 2 * kLoops; ++i) task(0, 0);
  });
  std::printf("%d threads: a loop of %.1f us takes %.1f us, as a phase %.1f us\n", pool->threads(),
              alone / kLoops * 1e6, turns.theirs / kLoops * 1e6, turns.ours / kLoops * 1e6);
}

ElementType our_type = ElementType::kBFloat16;

PackedWeights Pack(const WeightRows& rows, int64_t inputs) {
  const bool in_blocks = our_type != ElementType::kBFloat16;
  return PackedWeights::Pack({rows}, our_type, inputs, InThisThread, nullptr,
                             in_blocks ? Arithmetic::kInt8 : Arithmetic::kFloat32);
}

class Matrices {
 public:
  explicit Matrices(const Shape& shape) {
    const at::Tensor weight = at::randn({shape.outputs, shape.inputs}).to(at::kBFloat16);
    const at::Tensor wide = weight.to(at::kFloat);
    const WeightRows rows{weight.data_ptr(), shape.outputs, ElementType::kBFloat16};
    TensorView view;
    view.type = ElementType::kFloat32;
    view.shape = {shape.outputs, shape.inputs};
    view.data = {std::make_shared<at::Tensor>(wide),
                 static_cast<const std::byte*>(wide.data_ptr())};
    for (int i = 0; i < shape.copies; ++i) {
      ours_.push_back(Pack(rows, shape.inputs));
      theirs_.push_back(Linear({view}, at::kFloat, at::kCPU, /*rows_hint=*/128));
    }
  }

  void RunOurs(const at::Tensor& x, const at::Tensor& y, ThreadPool* pool, Workspace* workspace) {
    const auto parallel = [pool](int64_t parts, KernelPart body) {
      pool->Run(parts, [&](int64_t part, int) { body(part); });
    };
    for (const PackedWeights& weights : ours_) {
      Product({x.data_ptr<float>(), x.size(0), x.size(1)}, weights,
              {y.data_ptr<float>(), y.size(0), y.size(1)}, workspace, parallel);
    }
  }
  void RunTheirs(const at::Tensor& x) {
    for (const Linear& linear : theirs_) theirs_out_ = linear(x);
  }
  double bytes() const { return static_cast<double>(ours_[0].bytes()) * ours_.size(); }
  const at::Tensor& theirs_out() const { return theirs_out_; }

 private:
  std::vector<PackedWeights> ours_;
  std::vector<Linear> theirs_;
  at::Tensor theirs_out_;
};

void Compare(const Shape& shape, Matrices* matrices, int64_t rows, ThreadPool* pool) {
  const at::Tensor x = at::randn({rows, shape.inputs});
  const at::Tensor y = at::empty({rows, shape.outputs});
  Workspace workspace;
  const Turns turns(
      kTurns, [&] { matrices->RunOurs(x, y, pool, &workspace); }, [&] { matrices->RunTheirs(x); });
  const double error = (y - matrices->theirs_out()).abs().max().item<float>();
  if (error > 1e-2 && our_type == ElementType::kBFloat16) {
    std::fprintf(stderr, "kernel_bench: %s: the two differ by %g\n", shape.name, error);
    std::exit(1);
  }
  Print(shape.name, rows, pool->threads(), turns, shape.copies,
        2.0 * rows * shape.outputs * shape.inputs, matrices->bytes() / shape.copies);
}

PackedWeights RandomWeights(int64_t outputs, int64_t inputs) {
  const at::Tensor weight = at::randn({outputs, inputs}).to(at::kBFloat16);
  return Pack({weight.data_ptr(), outputs, ElementType::kBFloat16}, inputs);
}

// Compares two ways to compute the gate and up products of 270M and their GELU: one fused kernel,
// and separate kernels.
void CompareFused(const PackedWeights& gate, const PackedWeights& up, int64_t rows,
                  ThreadPool* pool) {
  const auto parallel = [pool](int64_t parts, KernelPart body) {
    pool->Run(parts, [&](int64_t part, int) { body(part); });
  };
  const at::Tensor x_tensor = at::randn({rows, gate.inputs()});
  const ConstRows x{x_tensor.data_ptr<float>(), rows, gate.inputs()};
  std::vector<float> one(static_cast<size_t>(rows * gate.outputs())), other(one.size());
  const Rows gates{one.data(), rows, gate.outputs()}, ups{other.data(), rows, gate.outputs()};
  Workspace workspace;
  Print("gelu", rows, pool->threads(),
        Turns(
            kAttendTurns,
            [&] {
              KernelPhases phases;
              AddGeluProduct(x, gate, up, gates, &workspace, &phases);
              phases.Run(parallel);
            },
            [&] {
              Product(x, gate, gates, &workspace, parallel);
              Product(x, up, ups, &workspace, parallel);
              parallel(rows, [&](int64_t row) {
                GeluTimes(gates.Row(row), ups.Row(row), gate.outputs(), gates.Row(row));
              });
            }),
        1, 4.0 * rows * gate.outputs() * gate.inputs(), 2.0 * gate.bytes());
}

// Computes attention like worker/model/torch/attention.cc: two batched matrix products with a
// softmax between them.
at::Tensor TorchAttend(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                       const at::Tensor& mask) {
  const int64_t n = queries.size(0), dim = keys.size(2), kv_heads = keys.size(0);
  const at::Tensor rows = queries.view({n, kv_heads, -1, dim}).permute({1, 2, 0, 3});
  at::Tensor scores = at::bmm(rows.reshape({kv_heads, -1, dim}), keys.transpose(1, 2));
  scores.view({kv_heads, -1, n, keys.size(1)}).add_(mask);
  return at::bmm(at::softmax(scores, -1), values)
      .view({kv_heads, -1, n, dim})
      .permute({2, 0, 1, 3})
      .reshape({n, -1});
}

// Compares the attention kernel with TorchAttend, in speed and results. The last `rows` rows of a
// sequence of `context` tokens attend to the keys before them. The head sizes are those of 270M.
void CompareAttention(int64_t context, int64_t rows, ThreadPool* pool) {
  AttendShape shape;
  shape.heads = 4;
  shape.kv_heads = 1;
  shape.head_dim = 256;
  const at::Tensor blocks = at::randn({context / shape.split, 2, shape.split, shape.head_dim});
  const at::Tensor keys = blocks.select(1, 0).reshape({1, context, shape.head_dim}).contiguous();
  const at::Tensor values = blocks.select(1, 1).reshape({1, context, shape.head_dim}).contiguous();
  const at::Tensor queries = at::randn({rows, shape.heads * shape.head_dim}).mul_(0.06f);
  const at::Tensor seen =
      at::arange(context).unsqueeze(0) <= at::arange(context - rows, context).unsqueeze(1);
  const at::Tensor mask = at::zeros({rows, context}).masked_fill_(seen.logical_not(), -INFINITY);
  std::vector<const std::byte*> pointers;
  for (int64_t split = 0; split < blocks.size(0); ++split) {
    pointers.push_back(static_cast<const std::byte*>(blocks[split].data_ptr()));
  }
  at::Tensor out = at::empty_like(queries), their_out;
  Workspace workspace;
  const AttendSequence sequence{pointers.data(), context - rows, rows};
  const auto parallel = [pool](int64_t parts, KernelPart body) {
    pool->Run(parts, [&](int64_t part, int) { body(part); });
  };
  const Turns turns(
      kAttendTurns,
      [&] {
        KernelPhases phases;
        AddAttend(shape, {&sequence, 1}, {queries.data_ptr<float>(), rows, queries.size(1)},
                  {out.data_ptr<float>(), rows, out.size(1)}, &workspace, &phases);
        phases.Run(parallel);
      },
      [&] { their_out = TorchAttend(queries, keys, values, mask); });
  const double error = (out - their_out).abs().max().item<float>();
  if (error > 1e-3) {
    std::fprintf(stderr, "kernel_bench: attention: the two differ by %g\n", error);
    std::exit(1);
  }
  // The number of flops includes scores that the causal mask discards.
  Print("attend", rows, pool->threads(), turns, 1,
        4.0 * rows * shape.heads * shape.head_dim * context, static_cast<double>(blocks.nbytes()));
}

int Main(int argc, char** argv) {
  std::vector<int> threads;
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "avx2") {
      ForceTarget(KernelTarget::kAvx2);
    } else if (std::string(argv[i]) == "q8_0" || std::string(argv[i]) == "q4_0") {
      our_type = argv[i][1] == '8' ? ElementType::kQ8_0 : ElementType::kQ4_0;
    } else {
      threads.push_back(std::atoi(argv[i]));
      if (threads.back() < 1) {
        std::fprintf(stderr, "usage: kernel_bench [avx2] [q8_0|q4_0] [THREADS...]\n");
        return 2;
      }
    }
  }
  if (threads.empty()) threads = {1, 2};
  const c10::InferenceMode inference;
  std::printf("%s; kernels: %s\n", CpuName().c_str(), KernelTargetName(ChosenTarget()));
  for (const int count : threads) {
    ThreadPool pool(count);
    std::printf("%d threads read %.1f GB/s\n", count, ReadBandwidth(&pool) / 1e9);
    PrintPoolCosts(&pool);
  }
  std::printf("%d turns, of attention %d; us a matrix, x = theirs / ours, medians\n", kTurns,
              kAttendTurns);
  std::printf("%-8s %4s %2s  %9s %9s  %5s  %13s  %6s\n", "matrix", "rows", "th", "ours", "oneDNN",
              "x", "GFLOP/s", "GB/s");
  for (const int count : threads) {
    ThreadPool pool(count);
    at::set_num_threads(count);
    for (const int64_t rows : kRowCounts) CompareAttention(2048, rows, &pool);
  }
  {
    const PackedWeights gate = RandomWeights(2048, 640), up = RandomWeights(2048, 640);
    for (const int count : threads) {
      ThreadPool pool(count);
      for (const int64_t rows : {1, 8, 128}) CompareFused(gate, up, rows, &pool);
    }
  }
  for (const Shape& shape : kShapes) {
    Matrices matrices(shape);
    for (const int count : threads) {
      ThreadPool pool(count);
      at::set_num_threads(count);
      for (const int64_t rows : kRowCounts) Compare(shape, &matrices, rows, &pool);
    }
  }
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc, argv); }
