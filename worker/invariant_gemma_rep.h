// InvariantGemma's inside: what a layer is, and the steps of the forward pass. Private to
// hearth_invariant_model.
//
// Thread safety and ownership: as InvariantGemma. invariant_gemma_load.cc fills a Rep,
// invariant_gemma.cc steps it.
#ifndef HEARTH_WORKER_INVARIANT_GEMMA_REP_H_
#define HEARTH_WORKER_INVARIANT_GEMMA_REP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "worker/invariant_gemma.h"
#include "worker/kernels/attend.h"
#include "worker/kernels/product.h"
#include "worker/kernels/rope_table.h"
#include "worker/kernels/row_kernels.h"
#include "worker/safetensors.h"
#include "worker/thread_pool.h"
#include "worker/weights.h"

namespace hearth {

// Below, rows are not worth waking threads for.
inline constexpr int64_t kRowsForThreads = 8;

struct InvariantLayer {
  bool local = false;
  std::vector<float> input_norm, post_attention_norm, pre_feedforward_norm, post_feedforward_norm;
  std::vector<float> q_norm, k_norm;  // q_norm with the queries' scale
  PackedWeights qkv, out, gate_up, down;
};

// Row `row` of a matrix of the checkpoint, as floats.
std::vector<float> WidenRow(const TensorView& tensor, int64_t row, int64_t columns);

// Rows of floats, owned.
struct Buffer {
  Buffer(int64_t rows, int64_t columns)
      : data(static_cast<size_t>(rows * columns)),
        columns(columns),
        view{data.data(), rows, columns} {}
  Buffer(Buffer&&) = default;  // the view stays right: the memory moves along
  Buffer& operator=(Buffer&&) = default;
  ConstRows in() const { return {view.data, view.rows, view.stride}; }
  // Columns [begin, ...) of the same rows.
  ConstRows in(int64_t begin) const { return {view.data + begin, view.rows, view.stride}; }

  std::vector<float> data;
  int64_t columns;
  Rows view;
};

struct InvariantGemma::Rep {
  absl::Status CheckStep(const Kv& kv, absl::Span<const int32_t> tokens, int want) const;
  absl::Status LoadLayers(const ModelTensors& tensors);
  void Forward(Kv* kv, absl::Span<const int32_t> tokens, int want, std::vector<float>* logits);
  Buffer Embed(absl::Span<const int32_t> tokens) const;
  // `number`: of the layer in the layout of `kv`.
  void AttendInLayer(const InvariantLayer& layer, int number, Kv* kv, Buffer* x);
  void FeedForwardInLayer(const InvariantLayer& layer, Buffer* x);
  // The logits of `count` rows.
  Buffer HeadOf(const Buffer& x, int64_t begin, int64_t count);
  void Append(int number, const Buffer& qkv, Kv* kv);
  void NormQueriesAndKeys(const InvariantLayer& layer, int64_t begin, Buffer* qkv);

  // y = norm(x) and x += norm(y), row by row.
  Buffer Norm(const Buffer& x, const std::vector<float>& scale);
  void AddNorm(const std::vector<float>& scale, Buffer* y, Buffer* x);
  void Multiply(const ConstRows& x, const PackedWeights& weights, Buffer* y) {
    if (product != nullptr) return product(x, weights, y->view, &workspace, parallel());
    Product(x, weights, y->view, &workspace, parallel());
  }
  void Show(const char* operation, const Buffer& values) const {
    if (witness != nullptr) witness(operation, values);
  }
  void ForRows(int64_t rows, KernelPart body) {
    if (rows < kRowsForThreads) return InThisThread(rows, body);
    pool->Run(rows, [&](int64_t row, int) { body(row); });
  }
  std::function<void(int64_t, KernelPart)> parallel() {
    return [this](int64_t parts, KernelPart body) {
      pool->Run(parts, [&](int64_t part, int) { body(part); });
    };
  }
  AttendShape ShapeOf(const InvariantLayer& layer) const {
    AttendShape shape;
    shape.heads = config.num_heads;
    shape.kv_heads = config.num_kv_heads;
    shape.head_dim = config.head_dim;
    shape.split = chunk;
    shape.window = layer.local ? config.sliding_window : 0;
    shape.softcap = static_cast<float>(config.attn_logit_softcap);
    return shape;
  }

  uint64_t number = 0;  // of this model in this process
  ModelConfig config;
  int64_t chunk = 0;
  std::shared_ptr<const KvLayout> layout;
  std::unique_ptr<KvBlocks> kv_blocks;
  Digest weights_digest{};
  std::vector<std::string> notes;
  float epsilon = 0;
  std::unique_ptr<Safetensors> files;
  TensorView embedding;
  std::vector<InvariantLayer> layers;
  std::vector<float> final_norm;
  PackedWeights head;
  RopeTable global_rope, local_rope;
  InvariantGemma::ProductFunction product;  // null, but in tests
  // Sees what each operation of a layer gives; null, but in the self-test.
  std::function<void(const char* operation, const Buffer& values)> witness;
  std::unique_ptr<ThreadPool> pool;
  Workspace workspace;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_INVARIANT_GEMMA_REP_H_
