#include "worker/model/invariant/invariant_weights.h"

#include <cassert>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker/kernels/float_mode.h"
#include "worker/kernels/quantized/weight_blocks.h"
#include "worker/kernels/targets.h"
#include "worker/model/gguf.h"
#include "worker/model/weights.h"

namespace hearth {
namespace {

std::vector<float> NormScaleOf(const TensorView& weight, float factor = 1) {
  std::vector<float> scale(static_cast<size_t>(weight.elements()));
  WidenRow(*weight.type, weight.data.get(), weight.elements(), scale.data());
  for (float& value : scale) value = (weight.is_one_more ? value : value + 1.0f) * factor;
  return scale;
}

// Returns kDataLoss if a norm has a NaN or an infinity, or a quantization block has such a scale,
// because it would spread to every logit. Other matrices are not checked, because this would need
// another pass over the whole file.
absl::Status CheckFinite(const TensorView& tensor) {
  const auto bad = [&tensor](const char* what) {
    return absl::DataLossError(
        absl::StrCat(tensor.file, ": tensor ", tensor.name, " has ", what, " that is not finite"));
  };
  if (!ScalesAreFinite(*tensor.type, tensor.data.get(), tensor.elements()))
    return bad("a block with a scale");
  if (tensor.shape.size() > 1) return absl::OkStatus();
  std::vector<float> values(static_cast<size_t>(tensor.elements()));
  WidenRow(*tensor.type, tensor.data.get(), tensor.elements(), values.data());
  for (const float value : values) {
    if (!std::isfinite(value)) return bad("a value");
  }
  return absl::OkStatus();
}

// Returns a note that lists the tensor types, with the number and the KiB of the tensors of each
// type.
std::string TypesNote(const std::string& model, const std::vector<TensorView>& tensors) {
  std::map<std::string, std::pair<int, uint64_t>> types;
  for (const TensorView& tensor : tensors) {
    auto& [count, bytes] = types[tensor.dtype_text];
    ++count;
    bytes += tensor.bytes;
  }
  std::string note = absl::StrCat("weights: ", model, ":");
  for (const auto& [name, of_type] : types) {
    absl::StrAppend(&note, name == types.begin()->first ? " " : ", ", of_type.first,
                    " tensors of type ", name, " with ", of_type.second >> 10, " KiB");
  }
  return note;
}

}  // namespace

// Stacks tensors into matrices. Adjacent tensors with the same packed type become one matrix.
std::vector<PackedWeights> InvariantWeights::PackStacked(const std::vector<TensorView>& parts,
                                                         ParallelFor parallel, KernelArena* arena) {
  std::vector<PackedWeights> packed;
  std::vector<WeightRows> matrices;
  for (size_t i = 0; i < parts.size(); ++i) {
    matrices.push_back({parts[i].data.get(), parts[i].shape[0], *parts[i].type});
    const ElementType type = PackedType(*parts[i].type, form_);
    if (i + 1 < parts.size() && PackedType(*parts[i + 1].type, form_) == type) continue;
    const bool is_used = IsOfBlocks(type) == (arithmetic_ == Arithmetic::kInt8);
    const Arithmetic arithmetic = is_used ? arithmetic_ : Arithmetic::kFloat32;
    if (arithmetic != Arithmetic::kFloat32) used_ = arithmetic;
    assert(parts[i].shape.size() == 2 && parts[i].data != nullptr);
    packed.push_back(
        PackedWeights::Pack(matrices, type, parts[i].shape[1], parallel, arena, arithmetic));
    matrices.clear();
  }
  return packed;
}

absl::Status InvariantWeights::CheckTypes(const ModelTensors& tensors) const {
  if (arithmetic_ != Arithmetic::kBFloat16) return absl::OkStatus();
  for (const TensorView& tensor : tensors.used) {
    if (tensor.shape.size() == 1) continue;
    const ElementType type = PackedType(*tensor.type, form_);
    if (type == ElementType::kBFloat16) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("arithmetic: bf16 multiplies bfloat16 weights only; ", tensor.file,
                     ": tensor ", tensor.name, " is used as ", FormOf(type).name,
                     ": use --arithmetic auto, or a bfloat16 checkpoint with --weights auto"));
  }
  return absl::OkStatus();
}

// Reads, packs and frees the tensors of one layer after the other.
absl::Status InvariantWeights::Pack(const ModelTensors& tensors, WeightsReader* reader,
                                    ThreadPool* pool) {
  const FloatMode mode;  // the norms are widened below
  const auto parallel = [pool](int64_t parts, KernelPart body) {
    pool->Run(parts, [&](int64_t part, int) { body(part); });
  };
  KernelArena arena;
  const auto pack = [&](const TensorView& tensor) {
    return std::move(PackStacked({tensor}, parallel, &arena)[0]);
  };
  TensorView embedding = tensors.embedding, head = tensors.head, final_norm = tensors.final_norm;
  if (absl::Status s = reader->Read({&embedding, &final_norm}); !s.ok()) return s;
  if (absl::Status s = tensors.tied ? absl::OkStatus() : reader->Read({&head}); !s.ok()) return s;
  for (const TensorView* tensor : {&embedding, &head, &final_norm}) {
    if (tensor->data == nullptr) continue;
    if (absl::Status s = CheckFinite(*tensor); !s.ok()) return s;
  }
  head_ = pack(tensors.tied ? embedding : head);
  final_norm_ = NormScaleOf(final_norm);
  if (!tensors.tied) embedding_ = embedding;
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
    for (const TensorView* tensor : from.All()) {
      if (absl::Status s = CheckFinite(*tensor); !s.ok()) return s;
    }
    layer.qkv = PackStacked({from.q, from.k, from.v}, parallel, &arena);
    layer.out = pack(from.o);
    layer.gate = pack(from.gate);
    layer.up = pack(from.up);
    layer.down = pack(from.down);
    assert(!layer.qkv.empty() && layer.qkv.size() <= 3);
    layers_.push_back(std::move(layer));
  }
  return absl::OkStatus();
}

void InvariantWeights::FreeMatrices() {
  layers_.clear();
  head_ = PackedWeights();
  embedding_.data = nullptr;
}

void InvariantWeights::WidenEmbedding(int32_t token, float* to) const {
  if (embedding_.data == nullptr) return head_.WidenOutput(token, to);
  assert(token >= 0 && token < config_.vocab_size);
  const size_t row_bytes = RowBytes(*embedding_.type, config_.hidden_size);
  WidenRow(*embedding_.type, embedding_.data.get() + static_cast<size_t>(token) * row_bytes,
           config_.hidden_size, to);
}

absl::StatusOr<std::unique_ptr<InvariantWeights>> InvariantWeights::Load(
    const std::string& model_dir, ModelConfig config, WeightForm form, Arithmetic arithmetic,
    const std::string& digest_cache_dir, ThreadPool* pool) {
  const absl::StatusOr<TensorFiles> files = TensorFiles::Open(model_dir);
  if (!files.ok()) return files.status();
  const absl::StatusOr<ModelTensors> tensors = FindTensors(*files, config);
  if (!tensors.ok()) return tensors.status();
  std::unique_ptr<InvariantWeights> weights(
      new InvariantWeights(std::move(config), form, arithmetic));
  weights->notes_ = tensors->notes;
  if (IsGgufFile(model_dir)) {
    if (ChosenTarget() == KernelTarget::kPlain) {
      return absl::UnimplementedError(
          absl::StrCat(model_dir, ": a GGUF file needs a CPU with FMA and AVX2"));
    }
  }
  if (absl::Status s = weights->CheckTypes(*tensors); !s.ok()) return s;
  weights->notes_.push_back(TypesNote(model_dir, tensors->used));
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
  const absl::StatusOr<TensorFiles> files = TensorFiles::Open(model_dir);
  if (!files.ok()) return files.status();
  const absl::StatusOr<ModelTensors> tensors = FindTensors(*files, *config);
  if (!tensors.ok()) return tensors.status();
  uint64_t bytes = tensors->tied ? 0 : tensors->embedding.bytes;
  for (const TensorView& tensor : tensors->used) {
    // An untied embedding keeps its stored bits.
    if (!tensors->tied && tensor.name == tensors->embedding.name) continue;
    if (tensor.shape.size() == 1) {  // norms are stored as float32
      bytes += static_cast<uint64_t>(tensor.elements()) * sizeof(float);
    } else {
      bytes += static_cast<uint64_t>(tensor.shape[0]) *
               RowBytes(PackedType(*tensor.type, form), tensor.shape[1]);
    }
  }
  return bytes;
}

}  // namespace hearth
