#include "worker/model/invariant/invariant_weights.h"

#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker/kernels/float_mode.h"
#include "worker/model/weights.h"

namespace hearth {
ElementType ElementTypeOf(const TensorView& tensor) {
  return tensor.dtype == TensorDtype::kBFloat16  ? ElementType::kBFloat16
         : tensor.dtype == TensorDtype::kFloat16 ? ElementType::kFloat16
                                                 : ElementType::kFloat32;
}

namespace {

// Row `row` of a matrix of the checkpoint, as floats.
void WidenRow(const TensorView& tensor, int64_t row, int64_t columns, float* to) {
  const ElementType type = ElementTypeOf(tensor);
  const std::byte* at = tensor.data.get() + static_cast<size_t>(row * columns) * ElementBytes(type);
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
  for (const TensorView& part : parts) matrices.push_back({part.data.get(), part.shape[0]});
  return PackedWeights::Pack(matrices, ElementTypeOf(parts[0]), parts[0].shape[1], parallel, arena,
                             form);
}

}  // namespace

// A layer's tensors are read, packed and freed before the next one's.
absl::Status InvariantWeights::Pack(const ModelTensors& tensors, WeightsReader* reader,
                                    ThreadPool* pool) {
  const FloatMode mode;  // norms are widened here
  const auto parallel = [pool](int64_t parts, KernelPart body) {
    pool->Run(parts, [&](int64_t part, int) { body(part); });
  };
  KernelArena arena;
  const auto pack = [&](const std::vector<TensorView>& parts) {
    return PackStacked(parts, form_, parallel, &arena);
  };
  TensorView embedding = tensors.embedding, head = tensors.head, final_norm = tensors.final_norm;
  if (absl::Status s = reader->Read({&embedding, &final_norm}); !s.ok()) return s;
  if (absl::Status s = tensors.tied ? absl::OkStatus() : reader->Read({&head}); !s.ok()) return s;
  head_ = pack({tensors.tied ? embedding : head});
  final_norm_ = NormScaleOf(final_norm);
  if (!tensors.tied || form_ == WeightForm::kInt8) embedding_ = embedding;
  head.data = embedding.data = nullptr;
  const float query_scale =
      static_cast<float>(1.0 / std::sqrt(config_.attention.query_pre_attn_scalar));
  for (int i = 0; i < config_.num_layers; ++i) {
    LayerTensors from = tensors.layers[static_cast<size_t>(i)];
    if (absl::Status s = reader->Read(from.All()); !s.ok()) return s;
    InvariantLayer layer;
    layer.local = config_.is_local(i);
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
    layers_.push_back(std::move(layer));
  }
  return absl::OkStatus();
}

void InvariantWeights::WidenEmbedding(int32_t token, float* to) const {
  if (embedding_.data == nullptr) return head_.WidenOutput(token, to);
  WidenRow(embedding_, token, config_.hidden_size, to);
}

absl::StatusOr<std::unique_ptr<InvariantWeights>> InvariantWeights::Load(
    const std::string& model_dir, ModelConfig config, WeightForm form,
    const std::string& digest_cache_dir, ThreadPool* pool) {
  const absl::StatusOr<Safetensors> files = Safetensors::Open(model_dir);
  if (!files.ok()) return files.status();
  const absl::StatusOr<ModelTensors> tensors = FindTensors(*files, config);
  if (!tensors.ok()) return tensors.status();
  std::unique_ptr<InvariantWeights> weights(new InvariantWeights(std::move(config), form));
  weights->notes_ = tensors->notes;
  WeightsReader reader(*files, tensors->used, digest_cache_dir, pool);
  if (absl::Status packed = weights->Pack(*tensors, &reader, pool); !packed.ok()) return packed;
  const absl::StatusOr<Digest> digest = reader.Finish(absl::Now());
  if (!digest.ok()) return digest.status();
  weights->digest_ = *digest;
  return weights;
}

absl::StatusOr<uint64_t> InvariantWeightBytes(const std::string& model_dir, WeightForm form) {
  const absl::StatusOr<ModelConfig> config = LoadModelConfig(model_dir);
  if (!config.ok()) return config.status();
  const absl::StatusOr<Safetensors> files = Safetensors::Open(model_dir);
  if (!files.ok()) return files.status();
  const absl::StatusOr<ModelTensors> tensors = FindTensors(*files, *config);
  if (!tensors.ok()) return tensors.status();
  uint64_t bytes = !tensors->tied || form == WeightForm::kInt8 ? tensors->embedding.bytes : 0;
  for (const TensorView& tensor : tensors->used) {
    if (!tensors->tied && tensor.name == tensors->embedding.name) continue;  // as stored
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

}  // namespace hearth
