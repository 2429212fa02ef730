#include "worker/model/invariant/invariant_gemma.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "worker/kernels/attend.h"
#include "worker/kernels/float_mode.h"
#include "worker/kernels/integer_product.h"
#include "worker/kernels/row_kernels.h"
#include "worker/model/invariant/device_forward.h"
#include "worker/model/invariant/invariant_self_test.h"
#include "worker/model/kv_choice.h"
#include "worker/model/model_file.h"

namespace hearth {
namespace {

// The product function that a test has set; empty if none.
InvariantGemma::ProductFunction& ReplacedProduct() {
  static auto* const product = new InvariantGemma::ProductFunction;
  return *product;
}

LayerHooks TestHooks() {
  LayerHooks hooks;
  hooks.product = ReplacedProduct();
  return hooks;
}

uint64_t NextModel() {
  static std::atomic<uint64_t> models{0};
  return ++models;
}

std::shared_ptr<const KvLayout> LayoutFor(const InvariantWeights& weights,
                                          const InvariantGemmaOptions& options) {
  const bool is_wide = weights.arithmetic() == Arithmetic::kFloat32;
  const KvDtype dtype = options.kv_dtype.value_or(is_wide ? KvDtype::kFloat32 : KvDtype::kBFloat16);
  return std::make_shared<const KvLayout>(LayoutOf(
      weights.config(), dtype, static_cast<uint32_t>(options.chunk), Exactness::kInvariant));
}

// Checks that the kernels support the model's shapes.
absl::Status CheckShapes(const std::string& model_dir, const ModelConfig& config,
                         const InvariantGemmaOptions& options) {
  const AttentionConfig& attention = config.attention;
  const int64_t sharers = attention.num_heads / std::max(1, attention.num_kv_heads);
  if (attention.head_dim % 16 != 0 || attention.head_dim > AttendShape::kHeadDimMax ||
      sharers > AttendShape::kSharersMax) {
    return absl::UnimplementedError(absl::StrCat(
        model_dir, "/config.json: head_dim is ", attention.head_dim, ", with ", sharers,
        " query heads for each KV head; head_dim must be a multiple of 16 up to ",
        AttendShape::kHeadDimMax, ", and at most ", AttendShape::kSharersMax,
        " query heads may share a KV head"));
  }
  for (const RopeConfig& rope : {config.rope.global, config.rope.local}) {
    if (RopeTable::Supports(rope)) continue;
    return absl::UnimplementedError(absl::StrCat(model_dir, "/config.json: rope_theta ", rope.theta,
                                                 " with factor ", rope.factor,
                                                 "; both must be in [1, 1e30]"));
  }
  if (options.arithmetic == Arithmetic::kBFloat16 && options.kv_dtype == KvDtype::kFloat32) {
    return absl::InvalidArgumentError(
        "kv-dtype: float32: arithmetic bf16 needs keys and values in bfloat16: leave --kv-dtype at "
        "auto");
  }
  const int chunk = options.chunk;
  if (chunk < 16 || chunk > AttendShape::kSplitMax || chunk % 16 != 0 || options.threads < 1) {
    return absl::InvalidArgumentError(absl::StrCat("chunk (a multiple of 16) is ", chunk,
                                                   ", threads (at least 1) is ", options.threads));
  }
  return absl::OkStatus();
}

}  // namespace

InvariantGemma::InvariantGemma(std::shared_ptr<const KvLayout> layout, uint64_t kv_bytes,
                               uint64_t kv_offload_bytes, std::unique_ptr<ThreadPool> pool,
                               std::unique_ptr<InvariantWeights> weights,
                               std::unique_ptr<Forward> forward)
    : number_(NextModel()),
      layout_(std::move(layout)),
      pool_(std::move(pool)),
      weights_(std::move(weights)),
      forward_(std::move(forward)),
      kv_blocks_(std::make_unique<KvBlocks>(kv_bytes, forward_->memory())),
      offload_blocks_(kv_blocks_->memory().is_on_device()
                          ? std::make_unique<KvBlocks>(kv_offload_bytes,
                                                       PinnedMemory(kv_blocks_->memory().device()))
                          : nullptr),
      notes_(weights_->notes()) {
  const std::vector<std::string> of_device = forward_->notes();
  notes_.insert(notes_.end(), of_device.begin(), of_device.end());
}

InvariantGemma::~InvariantGemma() = default;

absl::StatusOr<std::unique_ptr<InvariantGemma>> InvariantGemma::Load(
    const std::string& model_dir, const InvariantGemmaOptions& options) {
  absl::StatusOr<ModelConfig> config = LoadModelConfig(model_dir);
  if (!config.ok()) return config.status();
  if (absl::Status s = CheckShapes(model_dir, *config, options); !s.ok()) return s;
  auto pool = std::make_unique<ThreadPool>(options.threads);
  absl::StatusOr<std::unique_ptr<InvariantWeights>> weights =
      InvariantWeights::Load(model_dir, *std::move(config), options.weights, options.arithmetic,
                             options.digest_cache_dir, pool.get());
  if (!weights.ok()) return weights.status();
  const auto layout = LayoutFor(**weights, options);
  std::unique_ptr<Forward> forward;
  uint64_t kv_bytes = options.kv_bytes;
  if (options.device == nullptr) {
    forward = std::make_unique<InvariantForward>(weights->get(), *layout, pool.get(), TestHooks());
  } else {
    auto on_device = DeviceForward::Make(options.device, weights->get(), *layout, pool.get());
    if (!on_device.ok()) return on_device.status();
    forward = *std::move(on_device);
  }
  std::unique_ptr<InvariantGemma> gemma(
      new InvariantGemma(layout, kv_bytes, options.kv_offload_bytes, std::move(pool),
                         *std::move(weights), std::move(forward)));
  if (kv_bytes == 0 && options.device != nullptr) {
    gemma->sized_by_ = options.device;
    gemma->ChooseBudget();
  }
  return gemma;
}

void InvariantGemma::ChooseBudget() const {
  if (sized_by_ == nullptr || kv_blocks_->taken_blocks() > 0) return;
  kv_blocks_->SetBudget(DefaultDeviceKvBytes(sized_by_->free_bytes()));
}

uint32_t InvariantGemma::alone_rows() const {
  return std::max(static_cast<uint32_t>(forward_->alone_rows()), layout_->chunk_tokens);
}

void InvariantGemma::ReplaceProduct(ProductFunction product) {
  ReplacedProduct() = std::move(product);
}

InvariantGemma::Kv InvariantGemma::NewKv(const KvQuantization& quantization) const {
  std::shared_ptr<const KvLayout> layout = layout_;
  if (quantization.is_on()) {
    auto quantized = std::make_shared<KvLayout>(*layout_);
    quantized->quantization = quantization;
    layout = std::move(quantized);
  }
  return InvariantKv(std::move(layout), kv_blocks_.get(), number_);
}

absl::StatusOr<std::shared_ptr<const LoraAdapter>> InvariantGemma::LoadAdapter(
    const std::string& dir) const {
  auto adapter = LoraAdapter::Load(dir, config(), pool_.get());
  if (!adapter.ok()) return adapter;
  if (absl::Status added = forward_->AddAdapter(*adapter); !added.ok()) return added;
  ChooseBudget();  // the adapter has taken memory of the device
  return adapter;
}

absl::Status InvariantGemma::Step(absl::Span<const Part> parts) const {
  const absl::Status started = Start(parts);
  return started.ok() ? Finish(parts) : started;
}

absl::Status InvariantGemma::Start(absl::Span<const Part> parts) const {
  if (absl::Status s = PrepareParts(parts, config(), number_); !s.ok()) return s;
  absl::Status started = forward_->Start(parts);
  if (absl::IsResourceExhausted(started)) {  // the device had no memory to stage blocks
    kv_blocks_->ReleaseFree();
    started = forward_->Start(parts);
  }
  if (started.ok()) return started;
  for (const Part& part : parts) part.kv->ReleaseRoom();
  return started;
}

absl::Status InvariantGemma::Finish(absl::Span<const Part> parts) const {
  const absl::Status finished = forward_->Finish(parts);
  for (const Part& part : parts) {
    if (finished.ok()) {
      part.kv->Advance(static_cast<int>(part.tokens.size()));
    } else {
      part.kv->ReleaseRoom();
    }
  }
  return finished;
}

absl::Status InvariantGemma::Step(Kv* kv, absl::Span<const int32_t> tokens, int want,
                                  std::vector<float>* logits) const {
  StepLogits rows;
  if (logits != nullptr) rows = StepLogits(std::move(*logits));
  const Part part{kv, tokens, want, logits == nullptr ? nullptr : &rows};
  const absl::Status stepped = Step(absl::Span<const Part>(&part, 1));
  if (logits != nullptr) *logits = std::move(rows).Take();
  return stepped;
}

absl::Status InvariantGemma::SelfTest(const std::string& cache_dir, const StepLimits& limits) {
  absl::Status held = SelfTestOnce(cache_dir, limits);
  const bool on_device = device_kind() != "cpu";
  while (absl::IsFailedPrecondition(held) && arithmetic() == Arithmetic::kInt8 && !on_device) {
    const IntegerKernel refused = ChosenIntegerKernel();
    const std::vector<IntegerKernel> usable = UsableIntegerKernels();
    const auto at = std::find(usable.begin(), usable.end(), refused);
    if (at == usable.begin() || at == usable.end()) break;
    ForceIntegerKernel(at[-1]);
    notes_.push_back(absl::StrCat("integer products: ", IntegerKernelName(refused),
                                  " failed the self-test; now using ", IntegerKernelName(at[-1]),
                                  ": ", held.message()));
    held = SelfTestOnce(cache_dir, limits);
  }
  if (on_device) weights_->FreeMatrices();
  return held;
}

absl::Status InvariantGemma::SelfTestOnce(const std::string& cache_dir, const StepLimits& limits) {
  const absl::Time begin = absl::Now();
  const bool on_device = device_kind() != "cpu";  // the self-test of a device runs at every start
  const std::string file = on_device ? "" : SelfTestFile(cache_dir, *weights_, *layout_, limits);
  if (!file.empty() && ReadModelFile(file, sizeof(kSelfTestHeld)).value_or("") == kSelfTestHeld) {
    notes_.push_back("self-test of the class invariant: passed on an earlier start");
    return absl::OkStatus();
  }
  const size_t noted = forward_->notes().size();
  const absl::StatusOr<int> steps = forward_->SelfTest(limits);
  if (!steps.ok()) return steps.status();
  if (!file.empty()) WriteCacheFile(file, kSelfTestHeld);
  const std::vector<std::string> of_device = forward_->notes();
  notes_.insert(notes_.end(), of_device.begin() + static_cast<ptrdiff_t>(noted), of_device.end());
  notes_.push_back(absl::StrCat("self-test of the class invariant: passed in ", *steps, " steps, ",
                                absl::ToInt64Milliseconds(absl::Now() - begin), " ms"));
  return absl::OkStatus();
}

// The forward pass, in the order of the computation: loops are added to a list; the thread pool
// then runs the list.
InvariantForward::InvariantForward(const InvariantWeights* weights, const KvLayout& layout,
                                   ThreadPool* pool, LayerHooks hooks)
    : weights_(weights),
      config_(weights->config()),
      layout_(layout),
      chunk_(layout.chunk_tokens),
      kv_type_(layout.dtype == KvDtype::kBFloat16 ? ElementType::kBFloat16 : ElementType::kFloat32),
      pool_(pool),
      hooks_(std::move(hooks)),
      global_rope_(config_.rope.global, config_.attention.head_dim),
      local_rope_(config_.rope.local, config_.attention.head_dim) {}

void InvariantForward::Begin(Parts parts) {
  const AttentionConfig& attention = config_.attention;
  const int64_t qkv = (attention.num_heads + 2 * attention.num_kv_heads) * attention.head_dim;
  step_.Begin(parts, {config_.hidden_size, qkv, weights_->layer(0).out.inputs(),
                      weights_->layer(0).down.inputs()});
  local_rope_.Extend(step_.end());
  global_rope_.Extend(step_.end());
}

void InvariantForward::AddEmbedding(const std::vector<float>& first_norm, KernelPhases* list) {
  const int64_t hidden = config_.hidden_size;
  const float scale = static_cast<float>(std::sqrt(static_cast<double>(hidden)));
  list->AddRows(step_.rows(), [this, &first_norm, hidden, scale](int64_t row) {
    const FloatMode mode;
    float* x = step_.shared().x.Row(row);
    weights_->WidenEmbedding(step_.token(row), x);
    for (int64_t i = 0; i < hidden; ++i) x[i] = x[i] * scale;
    RmsNorm(x, hidden, first_norm.data(), epsilon(), step_.shared().normed.Row(row));
  });
}

LayerWeights InvariantForward::WeightsOf(const InvariantLayer& layer) const {
  LayerWeights weights;
  weights.qkv = layer.qkv;
  weights.out = &layer.out;
  weights.gate = &layer.gate;
  weights.up = &layer.up;
  weights.down = &layer.down;
  weights.post_attention_norm = layer.post_attention_norm.data();
  weights.pre_feedforward_norm = layer.pre_feedforward_norm.data();
  weights.post_feedforward_norm = layer.post_feedforward_norm.data();
  const AttentionConfig& attention = config_.attention;
  const bool fuses = weights_->arithmetic() == Arithmetic::kBFloat16;
  weights.heads = {attention.num_heads,
                   attention.num_kv_heads,
                   attention.head_dim,
                   layer.q_norm.data(),
                   layer.k_norm.data(),
                   epsilon(),
                   kv_type_,
                   fuses};
  weights.attend.fuses = fuses;
  weights.attend.kv_type = kv_type_;
  weights.attend.heads = attention.num_heads;
  weights.attend.kv_heads = attention.num_kv_heads;
  weights.attend.head_dim = attention.head_dim;
  weights.attend.split = chunk_;
  weights.attend.window = layer.local ? attention.sliding_window : 0;
  weights.attend.softcap = static_cast<float>(attention.logit_softcap);
  return weights;
}

void InvariantForward::AddWholeLayer(const InvariantLayer& layer, int number,
                                     const std::vector<float>& next_norm, KernelPhases* list) {
  const LayerWeights weights = WeightsOf(layer);
  const LayerRows rows = step_.RowsOfLayer(number, RopeOf(layer));
  AddQueriesKeysValues(weights, rows, &workspace_, list, &hooks_);
  step_.AddSealing(number, list);
  AddAttentionAndFeedForward(weights, next_norm.data(), rows, &workspace_, list, &hooks_);
}

// In the last layer, keys and values are computed for all rows, the rest only for the rows with
// wanted logits.
void InvariantForward::AddLastLayer(const InvariantLayer& layer, int number, KernelPhases* list) {
  const LayerWeights weights = WeightsOf(layer);
  AddQueriesKeysValues(weights, step_.RowsOfLayer(number, RopeOf(layer)), &workspace_, list,
                       &hooks_);
  step_.AddSealing(number, list);
  if (step_.wanted() == 0) return;
  step_.AddWantedCopies(list);
  AddAttentionAndFeedForward(weights, weights_->final_norm().data(),
                             step_.WantedRowsOfLayer(number), &workspace_, list, &hooks_);
}

void InvariantForward::AddHead(const ConstRows& normed, absl::Span<float* const> to,
                               KernelPhases* list) {
  if (to.empty()) return;
  AddHookedProduct(normed, weights_->head(), to, &workspace_, list, &hooks_);
  const float cap = static_cast<float>(config_.final_logit_softcap);
  if (cap <= 0) return;
  const int64_t vocabulary = config_.vocab_size;
  list->Add(static_cast<int64_t>(to.size()), [to, cap, vocabulary](int64_t row) {
    Softcap(cap, vocabulary, to[static_cast<size_t>(row)]);
  });
}

absl::StatusOr<int> InvariantForward::SelfTest(const StepLimits& limits) {
  InvariantSelfTest test(*weights_, layout_, this, limits);
  if (absl::Status held = test.Run(); !held.ok()) return held;
  return test.passes();
}

absl::Status InvariantForward::Start(Parts parts) {
  const FloatMode mode;
  Begin(parts);
  KernelPhases list;
  AddEmbedding(weights_->layer(0).input_norm, &list);
  const int last = config_.num_layers - 1;
  for (int i = 0; i < last; ++i) {
    const auto& next = weights_->layer(i + 1);
    AddWholeLayer(weights_->layer(i), i, next.input_norm, &list);
  }
  AddLastLayer(weights_->layer(last), last, &list);
  logits_.clear();
  for (const InvariantPart& part : parts) {
    if (part.want == 0) continue;
    const int64_t vocabulary = config_.vocab_size;
    float* const to = part.logits->Resize(static_cast<size_t>(part.want * vocabulary));
    for (int64_t row = 0; row < part.want; ++row) logits_.push_back(to + row * vocabulary);
  }
  assert(static_cast<int64_t>(logits_.size()) == step_.wanted());
  AddHead({step_.shared().normed.data, step_.wanted(), config_.hidden_size}, logits_, &list);
  RunList(&list);
  return absl::OkStatus();
}

}  // namespace hearth
