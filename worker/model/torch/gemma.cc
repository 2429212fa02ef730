// The forward pass of Gemma 3 with torch, and the loading of its weights.
#include "worker/model/torch/gemma.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <cstring>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker/model/gguf.h"
#include "worker/model/tensor_files.h"
#include "worker/model/thread_pool.h"
#include "worker/model/torch/compute_device.h"
#include "worker/model/torch/kv_cache_rep.h"
#include "worker/model/torch/layers.h"
#include "worker/model/torch/linear.h"
#include "worker/model/weights.h"

namespace hearth {
namespace {

// Far above any context length; small enough that rounding up a number of rows cannot overflow.
constexpr int kMaxCapacityTokens = 1 << 24;

// Number of activation rows for which the weights are reordered: the default chunk size.
constexpr int kRowsHint = 128;

struct Layer {
  bool local = false;
  RmsNorm input_norm, post_attention_norm, pre_feedforward_norm, post_feedforward_norm;
  Attention attention;
  FeedForward feed_forward;
};

Layer MakeLayer(const LayerTensors& tensors, const ModelConfig& config, int index,
                const Compute& compute) {
  const double epsilon = config.rms_norm_eps;
  Layer layer;
  layer.local = config.is_local(index);
  layer.input_norm = RmsNorm(tensors.input_norm, epsilon, compute);
  layer.post_attention_norm = RmsNorm(tensors.post_attention_norm, epsilon, compute);
  layer.pre_feedforward_norm = RmsNorm(tensors.pre_feedforward_norm, epsilon, compute);
  layer.post_feedforward_norm = RmsNorm(tensors.post_feedforward_norm, epsilon, compute);
  layer.attention = Attention(tensors, config.attention, config.rms_norm_eps, compute, kRowsHint);
  layer.feed_forward = FeedForward(tensors, compute, kRowsHint);
  return layer;
}

// Returns the first line of the message; libtorch appends a backtrace of many lines.
std::string OneLine(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch != nullptr ? torch->what_without_backtrace() : error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace

struct Gemma::Rep {
  at::Tensor Forward(KvCacheRep* kv, absl::Span<const int32_t> tokens, bool want_logits) const;

  ModelConfig config;
  Compute compute;
  int threads = 1;
  std::string device_kind, compute_version, cpu_capability;
  Digest weights_digest{};
  std::vector<std::string> notes;

  // [vocabulary, hidden], in the dtype of the checkpoint or of the output matrix
  at::Tensor embedding;
  float embedding_scale = 1;
  std::vector<Layer> layers;
  RmsNorm final_norm;
  Linear head;
  Rope global_rope, local_rope;
  // held during a Step, because all steps use the same compute threads
  mutable std::mutex step_mutex;
};

at::Tensor Gemma::Rep::Forward(KvCacheRep* kv, absl::Span<const int32_t> tokens,
                               bool want_logits) const {
  const int n = static_cast<int>(tokens.size()), begin = kv->length;
  const at::Tensor ids =
      at::from_blob(const_cast<int32_t*>(tokens.data()), {n}, at::TensorOptions().dtype(at::kInt))
          .to(compute.device);
  at::Tensor x = at::index_select(embedding, 0, ids).to(compute.dtype).mul_(embedding_scale);
  const StepView global_step =
      MakeStepView(begin, n, false, config.attention.sliding_window, global_rope, compute);
  const StepView local_step =
      MakeStepView(begin, n, true, config.attention.sliding_window, local_rope, compute);
  for (int i = 0; i < config.num_layers; ++i) {
    const Layer& layer = layers[i];
    const StepView& step = layer.local ? local_step : global_step;
    const at::Tensor attended = layer.attention(layer.input_norm(x), step, &kv->layers[i], kv);
    x = x + layer.post_attention_norm(attended);
    const at::Tensor fed = layer.feed_forward(layer.pre_feedforward_norm(x));
    x = x + layer.post_feedforward_norm(fed);
  }
  if (!want_logits) return {};
  const at::Tensor last = final_norm(x.narrow(0, n - 1, 1));
  at::Tensor logits = head(last).to(at::kFloat);
  const double cap = config.final_logit_softcap;
  if (cap > 0) logits = logits.div_(cap).tanh_().mul_(cap);
  return logits.to(at::kCPU).contiguous();
}

absl::StatusOr<std::unique_ptr<Gemma>> Gemma::Load(const std::string& model_dir,
                                                   const GemmaOptions& options) {
  absl::StatusOr<ModelConfig> config = LoadModelConfig(model_dir);
  if (!config.ok()) return config.status();
  const absl::StatusOr<Compute> compute = ChooseCompute(options.device, options.dtype);
  if (!compute.ok()) return compute.status();
  if (IsGgufFile(model_dir)) {
    return absl::UnimplementedError(
        absl::StrCat(model_dir, ": a GGUF file needs --exactness invariant"));
  }
  const absl::StatusOr<TensorFiles> files = TensorFiles::Open(model_dir);
  if (!files.ok()) return files.status();
  const absl::StatusOr<ModelTensors> tensors = FindTensors(*files, *config);
  if (!tensors.ok()) return tensors.status();

  auto rep = std::make_unique<Rep>();
  rep->threads = options.threads > 0 ? options.threads : ThreadPool::PhysicalCores();
  rep->compute = *compute;
  rep->notes = tensors->notes;
  rep->device_kind = compute->device.is_cpu() ? "cpu" : "cuda";
  rep->compute_version = ComputeVersion(compute->device);
  if (compute->device.is_cpu()) rep->cpu_capability = CpuCapability();
  ThreadPool pool(rep->threads);
  WeightsReader reader(*files, tensors->used, options.digest_cache_dir, &pool);
  TensorView embedding = tensors->embedding, head = tensors->head, final_norm = tensors->final_norm;
  try {
    if (absl::Status s = reader.Read({&embedding, &final_norm}); !s.ok()) return s;
    if (absl::Status s = tensors->tied ? absl::OkStatus() : reader.Read({&head}); !s.ok()) return s;
    const c10::InferenceMode inference;
    at::set_num_threads(rep->threads);
    // The scale is rounded to the compute dtype, as in the library transformers.
    rep->embedding_scale = at::scalar_tensor(std::sqrt(static_cast<double>(config->hidden_size)),
                                             at::TensorOptions().dtype(at::kFloat))
                               .to(compute->dtype)
                               .to(at::kFloat)
                               .item<float>();
    for (int i = 0; i < config->num_layers; ++i) {
      LayerTensors layer = tensors->layers[i];
      if (absl::Status s = reader.Read(layer.All()); !s.ok()) return s;
      rep->layers.push_back(MakeLayer(layer, *config, i, *compute));
    }
    rep->final_norm = RmsNorm(final_norm, config->rms_norm_eps, *compute);
    rep->head = Linear({tensors->tied ? embedding : head}, compute->dtype, compute->device,
                       /*rows_hint=*/1);
    // A tied matrix is stored once, unless the output matrix was reordered for oneDNN.
    if (tensors->tied) rep->embedding = rep->head.plain_weight();
    if (!rep->embedding.defined()) {
      rep->embedding = ToTensor(embedding, CheckpointType(*embedding.type), compute->device);
    }
    rep->global_rope = Rope(config->rope.global, config->attention.head_dim, *compute);
    rep->local_rope = Rope(config->rope.local, config->attention.head_dim, *compute);
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(model_dir, ": loading the weights: ", OneLine(error)));
  }
  const absl::StatusOr<Digest> digest = reader.Finish(absl::Now());
  if (!digest.ok()) return digest.status();
  rep->weights_digest = *digest;
  rep->config = *std::move(config);
  return std::unique_ptr<Gemma>(new Gemma(std::move(rep)));
}

absl::Status Gemma::Step(KvCache* kv, absl::Span<const int32_t> tokens,
                         std::vector<float>* logits) const {
  KvCacheRep* rows = kv->rep_.get();
  const size_t room = static_cast<size_t>(rows->capacity - rows->length);
  if (tokens.empty() || tokens.size() > room || tokens.size() > kMaxStepTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("a step must have 1 to ", kMaxStepTokens, " tokens, and at most ", room,
                     " (the free positions of the cache); got ", tokens.size()));
  }
  if (absl::Status known = CheckTokenIds(tokens, rep_->config); !known.ok()) return known;
  const std::lock_guard<std::mutex> lock(rep_->step_mutex);
  try {
    const c10::InferenceMode inference;
    // set_num_threads applies to the calling thread only
    if (at::get_num_threads() != rep_->threads) at::set_num_threads(rep_->threads);
    const at::Tensor last = rep_->Forward(rows, tokens, logits != nullptr);
    if (logits != nullptr) {
      logits->resize(last.numel());
      std::memcpy(logits->data(), last.data_ptr<float>(), last.numel() * sizeof(float));
    }
  } catch (const c10::OutOfMemoryError& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the device has too little memory for a step: ", OneLine(error)));
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat("the forward pass failed: ", OneLine(error)));
  }
  rows->length += static_cast<int>(tokens.size());
  return absl::OkStatus();
}

absl::StatusOr<KvCache> Gemma::NewKvCache(int capacity_tokens) const {
  if (capacity_tokens < 1 || capacity_tokens > kMaxCapacityTokens) {
    return absl::InvalidArgumentError(absl::StrCat("the capacity of a KV cache must be 1 to ",
                                                   kMaxCapacityTokens, " tokens; got ",
                                                   capacity_tokens));
  }
  try {
    const c10::InferenceMode inference;
    return KvCache(std::make_unique<KvCacheRep>(rep_->config, capacity_tokens, rep_->compute.device,
                                                rep_->compute.dtype));
  } catch (const std::exception& error) {
    return absl::ResourceExhaustedError(absl::StrCat("cannot allocate a KV cache for ",
                                                     capacity_tokens, " tokens: ", OneLine(error)));
  }
}

uint64_t Gemma::KvCacheBytes(int capacity_tokens) const {
  uint64_t rows = 0;
  for (int layer = 0; layer < rep_->config.num_layers; ++layer) {
    rows += static_cast<uint64_t>(KvCacheRows(rep_->config, layer, capacity_tokens));
  }
  return rows * static_cast<uint64_t>(kv_token_bytes());
}

absl::StatusOr<uint64_t> Gemma::FreeDeviceBytes() const {
  const at::Device device = rep_->compute.device;
  try {
    return at::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).first;
  } catch (const std::exception& error) {
    return absl::FailedPreconditionError(absl::StrCat(rep_->device_kind, ": ", OneLine(error)));
  }
}

Gemma::Gemma(std::unique_ptr<Rep> rep) : rep_(std::move(rep)) {}
Gemma::~Gemma() = default;
const ModelConfig& Gemma::config() const { return rep_->config; }
KvDtype Gemma::kv_dtype() const {
  return rep_->compute.dtype == at::kFloat ? KvDtype::kFloat32 : KvDtype::kBFloat16;
}
int64_t Gemma::kv_token_bytes() const {
  return int64_t{2} * rep_->config.attention.num_kv_heads * rep_->config.attention.head_dim *
         static_cast<int64_t>(KvDtypeBytes(kv_dtype()));
}
const std::string& Gemma::device_kind() const { return rep_->device_kind; }
const std::string& Gemma::compute_version() const { return rep_->compute_version; }
const std::string& Gemma::cpu_capability() const { return rep_->cpu_capability; }
int Gemma::threads() const { return rep_->threads; }
const Digest& Gemma::weights_digest() const { return rep_->weights_digest; }
const std::vector<std::string>& Gemma::notes() const { return rep_->notes; }

}  // namespace hearth
