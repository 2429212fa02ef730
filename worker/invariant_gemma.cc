// The forward pass, top to bottom, and how its weights are loaded.
#include "worker/invariant_gemma.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/kernels/attend.h"
#include "worker/kernels/float_mode.h"
#include "worker/kernels/product.h"
#include "worker/kernels/rope_table.h"
#include "worker/kernels/row_kernels.h"
#include "worker/safetensors.h"
#include "worker/thread_pool.h"
#include "worker/weights.h"

namespace hearth {

struct InvariantGemma::Kv::Layer {
  std::vector<KernelBytes> blocks;         // null: left by the window
  std::vector<const std::byte*> pointers;  // to them
};

namespace {

// Below, rows are not worth waking threads for.
constexpr int64_t kRowsForThreads = 8;

struct InvariantLayer {
  bool local = false;
  std::vector<float> input_norm, post_attention_norm, pre_feedforward_norm, post_feedforward_norm;
  std::vector<float> q_norm, k_norm;  // q_norm with the queries' scale
  PackedWeights qkv, out, gate_up, down;
};

ElementType TypeOf(const TensorView& tensor) {
  return tensor.dtype == TensorDtype::kBFloat16  ? ElementType::kBFloat16
         : tensor.dtype == TensorDtype::kFloat16 ? ElementType::kFloat16
                                                 : ElementType::kFloat32;
}

std::vector<float> WidenRow(const TensorView& tensor, int64_t row, int64_t columns) {
  std::vector<float> wide(static_cast<size_t>(columns));
  const ElementType type = TypeOf(tensor);
  const std::byte* at = tensor.data + static_cast<size_t>(row * columns) * ElementBytes(type);
  if (type == ElementType::kFloat32) std::memcpy(wide.data(), at, wide.size() * sizeof(float));
  for (size_t i = 0; i < wide.size() && type != ElementType::kFloat32; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, at + i * 2, 2);
    wide[i] = type == ElementType::kBFloat16 ? WidenOne(BFloat16{bits}) : WidenOne(Float16{bits});
  }
  return wide;
}

std::vector<float> NormScaleOf(const TensorView& weight, float factor = 1) {
  std::vector<float> scale = WidenRow(weight, 0, weight.elements());
  for (float& value : scale) value = (value + 1.0f) * factor;
  return scale;
}

absl::StatusOr<PackedWeights> PackStacked(const std::vector<TensorView>& parts,
                                          ParallelFor parallel) {
  std::vector<WeightRows> matrices;
  for (const TensorView& part : parts) {
    if (part.dtype != parts[0].dtype) {
      return absl::InvalidArgumentError(absl::StrCat(
          part.file, ": ", part.name, " is ", TensorDtypeName(part.dtype), ", but ", parts[0].name,
          " is ", TensorDtypeName(parts[0].dtype), ": one product needs one type"));
    }
    matrices.push_back({part.data, part.shape[0]});
  }
  return PackedWeights::Pack(matrices, TypeOf(parts[0]), parts[0].shape[1], parallel);
}

// Rows of floats, owned.
struct Buffer {
  Buffer(int64_t rows, int64_t columns)
      : data(static_cast<size_t>(rows * columns)),
        columns(columns),
        view{data.data(), rows, columns} {}
  ConstRows in() const { return {view.data, view.rows, view.stride}; }
  // Columns [begin, ...) of the same rows.
  ConstRows in(int64_t begin) const { return {view.data + begin, view.rows, view.stride}; }

  std::vector<float> data;
  int64_t columns;
  Rows view;
};

}  // namespace

struct InvariantGemma::Rep {
  absl::Status CheckStep(const Kv& kv, absl::Span<const int32_t> tokens, int want) const;
  absl::Status LoadLayers(const ModelTensors& tensors);
  void Forward(Kv* kv, absl::Span<const int32_t> tokens, int want, std::vector<float>* logits);
  void AttendInLayer(const InvariantLayer& layer, Kv* kv, Kv::Layer* held, Buffer* x);
  void FeedForwardInLayer(const InvariantLayer& layer, Buffer* x);
  void Append(const InvariantLayer& layer, int begin, Kv::Layer* held, const Buffer& qkv);
  void NormQueriesAndKeys(const InvariantLayer& layer, int64_t begin, Buffer* qkv);

  // y = norm(x) and x += norm(y), row by row.
  Buffer Norm(const Buffer& x, const std::vector<float>& scale);
  void AddNorm(const std::vector<float>& scale, Buffer* y, Buffer* x);
  void Multiply(const ConstRows& x, const PackedWeights& weights, Buffer* y) {
    Product(x, weights, y->view, &workspace, parallel());
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
  float epsilon = 0;
  std::unique_ptr<Safetensors> files;
  TensorView embedding;
  std::vector<InvariantLayer> layers;
  std::vector<float> final_norm;
  PackedWeights head;
  RopeTable global_rope, local_rope;
  std::unique_ptr<ThreadPool> pool;
  Workspace workspace;
};

Buffer InvariantGemma::Rep::Norm(const Buffer& x, const std::vector<float>& scale) {
  Buffer y(x.view.rows, x.columns);
  ForRows(x.view.rows, [&](int64_t row) {
    RmsNorm({x.view.Row(row), 1, x.columns}, x.columns, scale.data(), epsilon,
            {y.view.Row(row), 1, y.columns});
  });
  return y;
}

void InvariantGemma::Rep::AddNorm(const std::vector<float>& scale, Buffer* y, Buffer* x) {
  ForRows(x->view.rows, [&](int64_t row) {
    const FloatMode mode;
    float *more = y->view.Row(row), *to = x->view.Row(row);
    RmsNorm({more, 1, y->columns}, y->columns, scale.data(), epsilon, {more, 1, y->columns});
    for (int64_t i = 0; i < x->columns; ++i) to[i] += more[i];
  });
}

void InvariantGemma::Rep::NormQueriesAndKeys(const InvariantLayer& layer, int64_t begin,
                                             Buffer* qkv) {
  const int64_t heads = config.num_heads, kv_heads = config.num_kv_heads, dim = config.head_dim;
  RopeTable& rope = layer.local ? local_rope : global_rope;
  rope.Extend(begin + qkv->view.rows);
  ForRows(qkv->view.rows, [&](int64_t row) {
    float* at = qkv->view.Row(row);
    RmsNorm({at, heads, dim}, dim, layer.q_norm.data(), epsilon, {at, heads, dim});
    float* keys = at + heads * dim;
    RmsNorm({keys, kv_heads, dim}, dim, layer.k_norm.data(), epsilon, {keys, kv_heads, dim});
    // One position for all heads.
    const int64_t all = heads + kv_heads;
    Rotate({rope.Cos(begin + row, 1).data, all, 0}, {rope.Sin(begin + row, 1).data, all, 0},
           dim / 2, {at, all, dim});
  });
}

void InvariantGemma::Rep::Append(const InvariantLayer& layer, int begin, Kv::Layer* held,
                                 const Buffer& qkv) {
  const int64_t heads = config.num_heads, kv_heads = config.num_kv_heads, dim = config.head_dim;
  const int64_t end = begin + qkv.view.rows;
  for (int64_t have = static_cast<int64_t>(held->blocks.size()); have * chunk < end; ++have) {
    held->blocks.push_back(
        AllocateKernelBytes(static_cast<size_t>(2 * kv_heads * chunk * dim) * sizeof(float)));
    held->pointers.push_back(held->blocks.back().get());
  }
  for (int64_t row = 0; row < qkv.view.rows; ++row) {
    const int64_t position = begin + row, token = position % chunk;
    float* block =
        reinterpret_cast<float*>(held->blocks[static_cast<size_t>(position / chunk)].get());
    for (int64_t head = 0; head < 2 * kv_heads; ++head) {  // keys, then values
      std::copy_n(qkv.view.Row(row) + (heads + head) * dim, dim,
                  block + (head * chunk + token) * dim);
    }
  }
  if (!layer.local) return;
  // The last row of this step still sees its whole window; the first of it saw more.
  const int64_t gone = std::max<int64_t>(0, begin - config.sliding_window + 1) / chunk;
  for (int64_t split = 0; split < gone; ++split) {
    held->blocks[static_cast<size_t>(split)].reset();
    held->pointers[static_cast<size_t>(split)] = nullptr;
  }
}

void InvariantGemma::Rep::AttendInLayer(const InvariantLayer& layer, Kv* kv, Kv::Layer* held,
                                        Buffer* x) {
  const int64_t rows = x->view.rows, begin = kv->length_;
  const int64_t query_columns = int64_t{config.num_heads} * config.head_dim;
  Buffer qkv(rows, layer.qkv.outputs()), attended(rows, query_columns), out(rows, x->columns);
  const Buffer normed = Norm(*x, layer.input_norm);
  Multiply(normed.in(), layer.qkv, &qkv);
  NormQueriesAndKeys(layer, begin, &qkv);
  Append(layer, kv->length_, held, qkv);
  const AttendSequence sequence{held->pointers.data(), begin, rows};
  Attend(ShapeOf(layer), {&sequence, 1}, qkv.in(), attended.view, &workspace, parallel());
  Multiply(attended.in(), layer.out, &out);
  AddNorm(layer.post_attention_norm, &out, x);
}

void InvariantGemma::Rep::FeedForwardInLayer(const InvariantLayer& layer, Buffer* x) {
  const int64_t rows = x->view.rows, width = layer.down.inputs();
  Buffer both(rows, 2 * width), out(rows, x->columns);
  const Buffer normed = Norm(*x, layer.pre_feedforward_norm);
  Multiply(normed.in(), layer.gate_up, &both);
  ForRows(rows, [&](int64_t row) {
    float* gate = both.view.Row(row);
    GeluTimes({gate, 1, width}, {gate + width, 1, width}, width, {gate, 1, width});
  });
  Multiply(both.in(), layer.down, &out);
  AddNorm(layer.post_feedforward_norm, &out, x);
}

void InvariantGemma::Rep::Forward(Kv* kv, absl::Span<const int32_t> tokens, int want,
                                  std::vector<float>* logits) {
  const FloatMode mode;
  const int64_t rows = static_cast<int64_t>(tokens.size()), hidden = config.hidden_size;
  const float scale = static_cast<float>(std::sqrt(static_cast<double>(hidden)));
  Buffer x(rows, hidden);
  for (int64_t row = 0; row < rows; ++row) {
    const std::vector<float> embedded =
        WidenRow(embedding, tokens[static_cast<size_t>(row)], hidden);
    for (int64_t i = 0; i < hidden; ++i) {
      x.view.Row(row)[i] = embedded[static_cast<size_t>(i)] * scale;
    }
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    AttendInLayer(layers[i], kv, &kv->layers_[i], &x);
    FeedForwardInLayer(layers[i], &x);
  }
  kv->length_ += static_cast<int>(rows);
  if (want == 0) return;
  Buffer last(want, hidden);
  std::copy_n(x.view.Row(rows - want), want * hidden, last.data.data());
  const Buffer normed = Norm(last, final_norm);
  Buffer out(want, config.vocab_size);
  Multiply(normed.in(), head, &out);
  if (config.final_logit_softcap > 0) {
    Softcap(static_cast<float>(config.final_logit_softcap), out.columns, out.view);
  }
  *logits = std::move(out.data);
}

absl::Status InvariantGemma::Rep::LoadLayers(const ModelTensors& tensors) {
  const FloatMode mode;  // norms are widened here
  const auto threads = parallel();
  const float query_scale = static_cast<float>(1.0 / std::sqrt(config.query_pre_attn_scalar));
  for (int i = 0; i < config.num_layers; ++i) {
    const LayerTensors& from = tensors.layers[static_cast<size_t>(i)];
    InvariantLayer layer;
    layer.local = config.is_local(i);
    layer.input_norm = NormScaleOf(from.input_norm);
    layer.post_attention_norm = NormScaleOf(from.post_attention_norm);
    layer.pre_feedforward_norm = NormScaleOf(from.pre_feedforward_norm);
    layer.post_feedforward_norm = NormScaleOf(from.post_feedforward_norm);
    layer.q_norm = NormScaleOf(from.q_norm, query_scale);
    layer.k_norm = NormScaleOf(from.k_norm);
    for (const auto& [weights, parts] :
         {std::pair<PackedWeights*, std::vector<TensorView>>{&layer.qkv, {from.q, from.k, from.v}},
          {&layer.out, {from.o}},
          {&layer.gate_up, {from.gate, from.up}},
          {&layer.down, {from.down}}}) {
      absl::StatusOr<PackedWeights> packed = PackStacked(parts, threads);
      if (!packed.ok()) return packed.status();
      *weights = *std::move(packed);
    }
    layers.push_back(std::move(layer));
  }
  absl::StatusOr<PackedWeights> packed = PackStacked({tensors.head}, threads);
  if (!packed.ok()) return packed.status();
  head = *std::move(packed);
  final_norm = NormScaleOf(tensors.final_norm);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<InvariantGemma>> InvariantGemma::Load(const std::string& model_dir,
                                                                     int threads, int chunk) {
  absl::StatusOr<ModelConfig> config = LoadModelConfig(model_dir);
  if (!config.ok()) return config.status();
  const int64_t sharers = config->num_heads / std::max(1, config->num_kv_heads);
  if (config->head_dim % 16 != 0 || config->head_dim > AttendShape::kHeadDimMax ||
      sharers > AttendShape::kSharersMax) {
    return absl::UnimplementedError(absl::StrCat(
        model_dir, "/config.json: head_dim ", config->head_dim, " with ", sharers,
        " query heads for a KV head; head_dim must be a multiple of 16 up to ",
        AttendShape::kHeadDimMax, ", and at most ", AttendShape::kSharersMax, " heads may share"));
  }
  for (const RopeConfig& rope : {config->global_rope, config->local_rope}) {
    if (RopeTable::Takes(rope.theta, rope.linear_factor)) continue;
    return absl::UnimplementedError(absl::StrCat(model_dir, "/config.json: rope_theta ", rope.theta,
                                                 " with a linear factor of ", rope.linear_factor,
                                                 "; both must be in [1, 1e30]"));
  }
  if (chunk < 16 || chunk > AttendShape::kSplitMax || chunk % 16 != 0 || threads < 1) {
    return absl::InvalidArgumentError(absl::StrCat("chunk ", chunk, ", threads ", threads));
  }
  absl::StatusOr<Safetensors> files = Safetensors::Open(model_dir);
  if (!files.ok()) return files.status();
  const absl::StatusOr<ModelTensors> tensors = FindTensors(*files, *config);
  if (!tensors.ok()) return tensors.status();
  auto rep = std::make_unique<Rep>();
  static std::atomic<uint64_t> models{0};
  rep->number = ++models;
  rep->config = *std::move(config);
  rep->chunk = chunk;
  rep->epsilon = static_cast<float>(rep->config.rms_norm_eps);
  rep->pool = std::make_unique<ThreadPool>(threads);
  rep->embedding = tensors->embedding;
  rep->global_rope = RopeTable(rep->config.global_rope.theta, rep->config.global_rope.linear_factor,
                               rep->config.head_dim);
  rep->local_rope = RopeTable(rep->config.local_rope.theta, rep->config.local_rope.linear_factor,
                              rep->config.head_dim);
  const absl::Status loaded = rep->LoadLayers(*tensors);
  if (!loaded.ok()) return loaded;
  rep->files = std::make_unique<Safetensors>(*std::move(files));
  return std::unique_ptr<InvariantGemma>(new InvariantGemma(std::move(rep)));
}

absl::Status InvariantGemma::Rep::CheckStep(const Kv& kv, absl::Span<const int32_t> tokens,
                                            int want) const {
  if (kv.model_ != number) {
    return absl::InvalidArgumentError(
        kv.model_ == 0
            ? "the Kv was moved from, or is not from NewKv: there is nothing to append to"
            : "the Kv is of another model: take one from this model's NewKv");
  }
  if (tokens.empty() || want < 0 || static_cast<size_t>(want) > tokens.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step of ", tokens.size(), " tokens, logits of ", want, " of them"));
  }
  for (const int32_t token : tokens) {
    if (token < 0 || token >= config.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", token, " is not in [0, ", config.vocab_size, ")"));
    }
  }
  if (tokens.size() > static_cast<size_t>(config.max_position_embeddings - kv.length())) {
    return absl::InvalidArgumentError(
        absl::StrCat(tokens.size(), " tokens behind ", kv.length(), " are more than the model's ",
                     config.max_position_embeddings, " positions (max_position_embeddings)"));
  }
  if (want > kStepLogitsMax / config.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "logits of ", want, " tokens, ", config.vocab_size, " each: a step gives at most ",
        kStepLogitsMax, " in all, so of ", kStepLogitsMax / config.vocab_size, " tokens"));
  }
  return absl::OkStatus();
}

absl::Status InvariantGemma::Step(Kv* kv, absl::Span<const int32_t> tokens, int want,
                                  std::vector<float>* logits) const {
  if (want > 0 && logits == nullptr) {
    return absl::InvalidArgumentError("logits are wanted, but there is no place for them");
  }
  const absl::Status checked = rep_->CheckStep(*kv, tokens, want);
  if (!checked.ok()) return checked;
  rep_->Forward(kv, tokens, want, logits);
  return absl::OkStatus();
}

InvariantGemma::InvariantGemma(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
InvariantGemma::~InvariantGemma() = default;
const ModelConfig& InvariantGemma::config() const { return rep_->config; }
InvariantGemma::Kv::Kv() = default;
InvariantGemma::Kv::Kv(Kv&& other) noexcept
    : layers_(std::move(other.layers_)),
      length_(std::exchange(other.length_, 0)),
      model_(std::exchange(other.model_, 0)) {}
InvariantGemma::Kv::~Kv() = default;
InvariantGemma::Kv InvariantGemma::NewKv() const {
  Kv kv;
  kv.layers_.resize(rep_->layers.size());
  kv.model_ = rep_->number;
  return kv;
}

}  // namespace hearth
