#include "worker/model/invariant/invariant_gemma.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker/kernels/attend.h"
#include "worker/kernels/layer.h"
#include "worker/kernels/rope_table.h"
#include "worker/model/invariant/invariant_forward.h"
#include "worker/model/invariant/invariant_self_test.h"
#include "worker/model/invariant/invariant_weights.h"
#include "worker/model/model_config.h"
#include "worker/model/thread_pool.h"

namespace hearth {
namespace {

// Of tests; empty otherwise.
InvariantGemma::ProductFunction& ReplacedProduct() {
  static auto* const product = new InvariantGemma::ProductFunction;
  return *product;
}

LayerSeams SeamsOfTests() {
  LayerSeams seams;
  seams.product = ReplacedProduct();
  return seams;
}

uint64_t NextModel() {
  static std::atomic<uint64_t> models{0};
  return ++models;
}

std::shared_ptr<const KvLayout> LayoutFor(const ModelConfig& config, int chunk) {
  return std::make_shared<const KvLayout>(
      LayoutOf(config, KvDtype::kFloat32, static_cast<uint32_t>(chunk), Exactness::kInvariant));
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

InvariantGemma::InvariantGemma(const InvariantGemmaOptions& options,
                               std::unique_ptr<ThreadPool> pool,
                               std::unique_ptr<InvariantWeights> weights)
    : number_(NextModel()),
      layout_(LayoutFor(weights->config(), options.chunk)),
      kv_blocks_(std::make_unique<KvBlocks>(options.kv_bytes)),
      offloaded_blocks_(std::make_unique<KvBlocks>(options.offload_bytes, "kv-offload-bytes")),
      pool_(std::move(pool)),
      weights_(std::move(weights)),
      forward_(std::make_unique<InvariantForward>(weights_.get(), options.chunk, pool_.get(),
                                                  SeamsOfTests())),
      notes_(weights_->notes()) {}

InvariantGemma::~InvariantGemma() = default;

absl::StatusOr<std::unique_ptr<InvariantGemma>> InvariantGemma::Load(
    const std::string& model_dir, const InvariantGemmaOptions& options) {
  absl::StatusOr<ModelConfig> config = LoadModelConfig(model_dir);
  if (!config.ok()) return config.status();
  if (absl::Status s = CheckShapes(model_dir, *config, options); !s.ok()) return s;
  auto pool = std::make_unique<ThreadPool>(options.threads);
  absl::StatusOr<std::unique_ptr<InvariantWeights>> weights = InvariantWeights::Load(
      model_dir, *std::move(config), options.weights, options.digest_cache_dir, pool.get());
  if (!weights.ok()) return weights.status();
  return std::unique_ptr<InvariantGemma>(
      new InvariantGemma(options, std::move(pool), *std::move(weights)));
}

void InvariantGemma::ReplaceProduct(ProductFunction product) {
  ReplacedProduct() = std::move(product);
}

const ModelConfig& InvariantGemma::config() const { return weights_->config(); }
WeightForm InvariantGemma::weights() const { return weights_->form(); }
int InvariantGemma::threads() const { return pool_->threads(); }
const Digest& InvariantGemma::weights_digest() const { return weights_->digest(); }
const std::vector<std::string>& InvariantGemma::notes() const { return notes_; }
const KvBlocks& InvariantGemma::kv_blocks() const { return *kv_blocks_; }

InvariantGemma::Kv InvariantGemma::NewKv(const KvChoice& choice) const {
  std::shared_ptr<const KvLayout> layout = layout_;
  if (choice.quantization.is_on()) {
    auto quantized = std::make_shared<KvLayout>(*layout_);
    quantized->quantization = choice.quantization;
    layout = std::move(quantized);
  }
  return InvariantKv(std::move(layout), kv_blocks_.get(), number_, choice.strategy,
                     offloaded_blocks_.get());
}

absl::StatusOr<std::shared_ptr<const LoraAdapter>> InvariantGemma::LoadAdapter(
    const std::string& dir) const {
  return LoraAdapter::Load(dir, config(), pool_.get());
}

absl::Status InvariantGemma::Step(absl::Span<const Part> parts) const {
  if (absl::Status s = PrepareParts(parts, config(), number_); !s.ok()) return s;
  forward_->Run(parts);
  return absl::OkStatus();
}

absl::Status InvariantGemma::Step(Kv* kv, absl::Span<const int32_t> tokens, int want,
                                  std::vector<float>* logits) const {
  const Part part{kv, tokens, want, logits};
  return Step(absl::Span<const Part>(&part, 1));
}

absl::Status InvariantGemma::SelfTest(const std::string& cache_dir, const StepLimits& limits) {
  const absl::Time begin = absl::Now();
  const SelfTestMemory memory(cache_dir, weights_->digest(), weights_->form(),
                              layout_->chunk_tokens, limits);
  if (memory.HasPassed()) {
    notes_.push_back("self-test of the class invariant: held on an earlier start");
    return absl::OkStatus();
  }
  InvariantSelfTest test(*weights_, *layout_, forward_.get(), limits);
  if (absl::Status held = test.Run(); !held.ok()) return held;
  memory.Remember();
  notes_.push_back(absl::StrCat("self-test of the class invariant: held in ", test.passes(),
                                " steps, ", absl::ToInt64Milliseconds(absl::Now() - begin), " ms"));
  return absl::OkStatus();
}

}  // namespace hearth
