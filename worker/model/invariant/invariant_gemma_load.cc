// InvariantGemma: how it is loaded.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker/kernels/float_mode.h"
#include "worker/model/invariant/invariant_gemma_rep.h"
#include "worker/model/model_layout.h"
#include "worker/model/weights_digest.h"

namespace hearth {
namespace {

ElementType TypeOf(const TensorView& tensor) {
  return tensor.dtype == TensorDtype::kBFloat16  ? ElementType::kBFloat16
         : tensor.dtype == TensorDtype::kFloat16 ? ElementType::kFloat16
                                                 : ElementType::kFloat32;
}

std::vector<float> NormScaleOf(const TensorView& weight, float factor = 1) {
  std::vector<float> scale(static_cast<size_t>(weight.elements()));
  WidenRow(weight, 0, weight.elements(), scale.data());
  for (float& value : scale) value = (value + 1.0f) * factor;
  return scale;
}

absl::Status CheckOneType(const std::vector<TensorView>& parts) {
  for (const TensorView& part : parts) {
    if (part.dtype == parts[0].dtype) continue;
    return absl::UnimplementedError(absl::StrCat(
        part.file, ": ", part.name, " is ", TensorDtypeName(part.dtype), ", but ", parts[0].name,
        " is ", TensorDtypeName(parts[0].dtype), ": one product needs one type"));
  }
  return absl::OkStatus();
}

PackedWeights PackStacked(const std::vector<TensorView>& parts, WeightForm form,
                          ParallelFor parallel, KernelArena* arena) {
  std::vector<WeightRows> matrices;
  for (const TensorView& part : parts) matrices.push_back({part.data, part.shape[0]});
  return PackedWeights::Pack(matrices, TypeOf(parts[0]), parts[0].shape[1], parallel, arena, form);
}

// Of tests; empty otherwise.
InvariantGemma::ProductFunction& ReplacedProduct() {
  static auto* const product = new InvariantGemma::ProductFunction;
  return *product;
}

// Whether the kernels have what the model asks for.
absl::Status CheckShapes(const std::string& model_dir, const ModelConfig& config,
                         const InvariantGemmaOptions& options) {
  const AttentionConfig& attention = config.attention;
  const int64_t sharers = attention.num_heads / std::max(1, attention.num_kv_heads);
  if (attention.head_dim % 16 != 0 || attention.head_dim > AttendShape::kHeadDimMax ||
      sharers > AttendShape::kSharersMax) {
    return absl::UnimplementedError(absl::StrCat(
        model_dir, "/config.json: head_dim ", attention.head_dim, " with ", sharers,
        " query heads for a KV head; head_dim must be a multiple of 16 up to ",
        AttendShape::kHeadDimMax, ", and at most ", AttendShape::kSharersMax, " heads may share"));
  }
  for (const RopeConfig& rope : {config.rope.global, config.rope.local}) {
    if (RopeTable::Takes(rope.theta, rope.linear_factor)) continue;
    return absl::UnimplementedError(absl::StrCat(model_dir, "/config.json: rope_theta ", rope.theta,
                                                 " with a linear factor of ", rope.linear_factor,
                                                 "; both must be in [1, 1e30]"));
  }
  const int chunk = options.chunk;
  if (chunk < 16 || chunk > AttendShape::kSplitMax || chunk % 16 != 0 || options.threads < 1) {
    return absl::InvalidArgumentError(absl::StrCat("chunk ", chunk, ", threads ", options.threads));
  }
  return absl::OkStatus();
}

}  // namespace

void WidenRow(const TensorView& tensor, int64_t row, int64_t columns, float* to) {
  const ElementType type = TypeOf(tensor);
  const std::byte* at = tensor.data + static_cast<size_t>(row * columns) * ElementBytes(type);
  if (type == ElementType::kFloat32) {
    std::memcpy(to, at, static_cast<size_t>(columns) * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < columns; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, at + i * 2, 2);
    to[i] = type == ElementType::kBFloat16 ? WidenOne(BFloat16{bits}) : WidenOne(Float16{bits});
  }
}

absl::Status InvariantGemma::Rep::LoadLayers(const ModelTensors& tensors) {
  const FloatMode mode;  // norms are widened here
  const auto threads = parallel();
  KernelArena arena;
  const auto pack = [&](const std::vector<TensorView>& parts) {
    return PackStacked(parts, form, threads, &arena);
  };
  const float query_scale =
      static_cast<float>(1.0 / std::sqrt(config.attention.query_pre_attn_scalar));
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
    if (absl::Status s = CheckOneType({from.q, from.k, from.v}); !s.ok()) return s;
    if (absl::Status s = CheckOneType({from.gate, from.up}); !s.ok()) return s;
    layer.qkv = pack({from.q, from.k, from.v});
    layer.out = pack({from.o});
    layer.gate = pack({from.gate});
    layer.up = pack({from.up});
    layer.down = pack({from.down});
    layers.push_back(std::move(layer));
  }
  head = pack({tensors.head});
  final_norm = NormScaleOf(tensors.final_norm);
  return absl::OkStatus();
}

void InvariantGemma::ReplaceProduct(ProductFunction product) {
  ReplacedProduct() = std::move(product);
}

absl::StatusOr<uint64_t> InvariantWeightBytes(const std::string& model_dir, WeightForm form) {
  const absl::StatusOr<ModelConfig> config = LoadModelConfig(model_dir);
  if (!config.ok()) return config.status();
  const absl::StatusOr<Safetensors> files = Safetensors::Open(model_dir);
  if (!files.ok()) return files.status();
  const absl::StatusOr<ModelTensors> tensors = FindTensors(*files, *config);
  if (!tensors.ok()) return tensors.status();
  uint64_t bytes = 0;
  for (const TensorView& tensor : tensors->used) {
    const auto elements = static_cast<uint64_t>(tensor.elements());
    if (tensor.shape.size() == 1 || form == WeightForm::kFloat32) {  // norms are widened
      bytes += elements * sizeof(float);
    } else if (form == WeightForm::kInt8) {
      bytes += elements + elements / PackedWeights::kGroupInputs * sizeof(float);
    } else {
      bytes += tensor.bytes;
    }
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<InvariantGemma>> InvariantGemma::Load(
    const std::string& model_dir, const InvariantGemmaOptions& options) {
  absl::StatusOr<ModelConfig> config = LoadModelConfig(model_dir);
  if (!config.ok()) return config.status();
  if (absl::Status s = CheckShapes(model_dir, *config, options); !s.ok()) return s;
  absl::StatusOr<Safetensors> files = Safetensors::Open(model_dir);
  if (!files.ok()) return files.status();
  const absl::StatusOr<ModelTensors> tensors = FindTensors(*files, *config);
  if (!tensors.ok()) return tensors.status();
  auto rep = std::make_unique<Rep>();
  static std::atomic<uint64_t> models{0};
  rep->seams.product = ReplacedProduct();
  rep->number = ++models;
  rep->config = *std::move(config);
  rep->chunk = options.chunk;
  rep->form = options.weights;
  rep->layout = std::make_shared<KvLayout>(LayoutOf(
      rep->config, KvDtype::kFloat32, static_cast<uint32_t>(options.chunk), Exactness::kInvariant));
  rep->kv_blocks = std::make_unique<KvBlocks>(options.kv_bytes);
  rep->notes = tensors->notes;
  rep->pool = std::make_unique<ThreadPool>(options.threads);
  absl::StatusOr<RememberedDigest> digest = DigestOfFiles(
      tensors->used, files->files(), options.digest_cache_dir, absl::Now(), rep->pool.get());
  if (!digest.ok()) return digest.status();
  rep->weights_digest = digest->digest;
  rep->embedding = tensors->embedding;
  rep->global_rope = RopeTable(rep->config.rope.global.theta, rep->config.rope.global.linear_factor,
                               rep->config.attention.head_dim);
  rep->local_rope = RopeTable(rep->config.rope.local.theta, rep->config.rope.local.linear_factor,
                              rep->config.attention.head_dim);
  const absl::Status loaded = rep->LoadLayers(*tensors);
  if (!loaded.ok()) return loaded;
  rep->files = std::make_unique<Safetensors>(*std::move(files));
  return std::unique_ptr<InvariantGemma>(new InvariantGemma(std::move(rep)));
}

}  // namespace hearth
