#include "worker/model/invariant/device_forward.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

#include "absl/numeric/bits.h"
#include "absl/strings/str_cat.h"
#include "worker/device/attend_programs.h"
#include "worker/device/fused_dot_probe.h"
#include "worker/device/open_device.h"
#include "worker/device/product_tuning.h"
#include "worker/device/program_list.h"
#include "worker/device/row_programs.h"
#include "worker/device/warpgroup_check.h"
#include "worker/kernels/float_mode.h"
#include "worker/model/invariant/device_uploader.h"
#include "worker/model/invariant/invariant_gemma.h"
#include "worker/model/invariant/invariant_self_test.h"
#include "worker/model/invariant/lora_adapter.h"

namespace hearth {
namespace {

// Maximum rows of one DeviceStep. On a GPU, a step of 4,096 rows of Gemma 3 4B takes about a
// second; the emulated device takes seconds for one row.
constexpr int kGpuRows = 4096, kEmulatedRows = 512;
constexpr int kMostSharers = 16;

absl::Status CheckDeviceHas(const Device& device, const InvariantWeights& weights,
                            const KvLayout& layout) {
  const ModelConfig& config = weights.config();
  const AttentionConfig& attention = config.attention;
  using Attend = AttendProgram<1, float>;
  const auto refuse = [&](const std::string& what) {
    return absl::UnimplementedError(
        absl::StrCat("device: ", device.kind(), " does not support ", what));
  };
  if (layout.chunk_tokens > Attend::kSplitMax) {
    return refuse(absl::StrCat("chunks of ", layout.chunk_tokens, " tokens; set --chunk-tokens to ",
                               Attend::kSplitMax, " or less, on all workers of the store"));
  }
  if (!weights.is_tied()) return refuse("untied embeddings; use --device cpu");
  if (attention.head_dim > Attend::kHeadDimMax ||
      attention.num_heads > kMostSharers * attention.num_kv_heads ||
      config.hidden_size > kRowColumnsMax || config.hidden_size % 8 != 0 ||
      config.intermediate_size % 8 != 0) {
    return refuse(absl::StrCat(
        "this model's shape: head_dim must be at most ", Attend::kHeadDimMax, "; got ",
        attention.head_dim, "; at most ", kMostSharers, " query heads may share one KV head; got ",
        attention.num_heads / attention.num_kv_heads,
        "; hidden_size must be a multiple of 8 up to ", kRowColumnsMax, "; got ",
        config.hidden_size, "; intermediate_size must be a multiple of 8; got ",
        config.intermediate_size, "; use --device cpu"));
  }
  return absl::OkStatus();
}

DeviceShape ShapeOf(const ModelConfig& config, const KvLayout& layout) {
  DeviceShape shape;
  shape.hidden = config.hidden_size;
  shape.intermediate = config.intermediate_size;
  shape.vocabulary = config.vocab_size;
  shape.heads = config.attention.num_heads;
  shape.kv_heads = config.attention.num_kv_heads;
  shape.head_dim = config.attention.head_dim;
  shape.split = static_cast<int>(layout.chunk_tokens);
  shape.window = config.attention.sliding_window;
  shape.kv_is_bf16 = layout.dtype == KvDtype::kBFloat16;
  shape.epsilon = static_cast<float>(config.rms_norm_eps);
  shape.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(config.hidden_size)));
  shape.attention_softcap = static_cast<float>(config.attention.logit_softcap);
  shape.logit_softcap = static_cast<float>(config.final_logit_softcap);
  for (int i = 0; i < config.num_layers; ++i) shape.is_global.push_back(!config.is_local(i));
  return shape;
}

}  // namespace

DeviceForward::DeviceForward(std::shared_ptr<Device> device, const InvariantWeights* weights,
                             const KvLayout& layout, ThreadPool* pool)
    : device_(std::move(device)),
      memory_(DeviceMemory(device_)),
      weights_(weights),
      layout_(layout),
      pool_(pool),
      arena_(device_.get()) {
  device_->UseThreads(pool->threads(), [pool](int64_t parts, const auto& body) {
    pool->Run(parts, [&body](int64_t part, int) { body(part); });
  });
  const int positions = weights->config().max_position_embeddings;
  limits_.rows = IsEmulated(*device_) ? kEmulatedRows : kGpuRows;
  limits_.blocks = std::max(limits_.blocks, positions / static_cast<int>(layout.chunk_tokens) + 1);
}

absl::StatusOr<std::unique_ptr<DeviceForward>> DeviceForward::Make(std::shared_ptr<Device> device,
                                                                   const InvariantWeights* weights,
                                                                   const KvLayout& layout,
                                                                   ThreadPool* pool) {
  if (absl::Status has = CheckDeviceHas(*device, *weights, layout); !has.ok()) return has;
  std::unique_ptr<DeviceForward> forward(
      new DeviceForward(std::move(device), weights, layout, pool));
  if (absl::Status uploaded = forward->Upload(); !uploaded.ok()) return uploaded;
  if (absl::Status has = forward->CheckBf16(); !has.ok()) return has;
  return forward;
}

// Finds out whether the device can multiply in bfloat16. If the weights need this and it cannot,
// returns an error. If the weights could use it, adds a note.
absl::Status DeviceForward::CheckBf16() {
  const bool is_needed = weights_->arithmetic() == Arithmetic::kBFloat16;
  if (!is_needed && weights_->head().type() != ElementType::kBFloat16) return absl::OkStatus();
  std::string why;
  if (!device_->has_fused_dot()) {
    why = "the GPU has a compute capability below 9.0";
  } else {
    const FusedDotProbe probe = ProbeFusedDot(device_.get());
    if (absl::Status failure = Failure(); !failure.ok()) return failure;
    if (probe.differing > 0) {
      why = absl::StrCat(
          "the device's matrix instruction computes other bits than those of compute capability "
          "9.0 (",
          probe.differing, " of ", probe.sums, " sums differ)");
    }
  }
  if (!is_needed) {
    notes_.push_back(why.empty()
                         ? "arithmetic: float32; --arithmetic bf16 is available, but its bits have "
                           "not been verified on a GPU yet"
                         : absl::StrCat("arithmetic: float32; bf16 is not available: ", why));
    return absl::OkStatus();
  }
  if (why.empty()) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("arithmetic: bf16 is not available: ", why,
                                               ": use --arithmetic auto, which is float32"));
}

absl::Status DeviceForward::Upload() {
  const ModelConfig& config = weights_->config();
  DeviceUploader to(device_.get(), &arena_, pool_);
  model_.shape = ShapeOf(config, layout_);
  model_.multiplies_bf16 = weights_->arithmetic() == Arithmetic::kBFloat16;
  model_.has_integers = weights_->arithmetic() == Arithmetic::kInt8;
  for (int i = 0; i < config.num_layers; ++i) {
    const InvariantLayer& from = weights_->layer(i);
    const std::string name = absl::StrCat("layer ", i, ": ");
    std::vector<const PackedWeights*> qkv;
    for (const PackedWeights& matrix : from.qkv) qkv.push_back(&matrix);
    DeviceLayer layer;
    layer.qkv = to.Matrix(name + "q, k and v", qkv);
    layer.out = to.Matrix(name + "out", {&from.out});
    layer.gate_up = to.Matrix(name + "gate and up", {&from.gate, &from.up}, true);
    layer.down = to.Matrix(name + "down", {&from.down});
    layer.input_norm = to.Floats(from.input_norm);
    layer.post_attention_norm = to.Floats(from.post_attention_norm);
    layer.pre_feedforward_norm = to.Floats(from.pre_feedforward_norm);
    layer.post_feedforward_norm = to.Floats(from.post_feedforward_norm);
    layer.q_norm = to.Floats(from.q_norm);
    layer.k_norm = to.Floats(from.k_norm);
    model_.layers.push_back(layer);
    if (!to.status().ok() || !device_->error().empty()) break;
  }
  model_.head = to.Matrix("the embedding", {&weights_->head()});
  model_.final_norm = to.Floats(weights_->final_norm());
  if (!to.status().ok()) return to.status();
  const auto values = static_cast<size_t>(config.max_position_embeddings) *
                      static_cast<size_t>(config.attention.head_dim / 2);
  for (const bool is_global : {false, true}) {
    const RopeConfig& rope = is_global ? config.rope.global : config.rope.local;
    Rotations& rotations = rotations_[is_global];
    rotations.table = RopeTable(rope, config.attention.head_dim);
    model_.cos[is_global] = rotations.cos = arena_.Take<float>(values);
    model_.sin[is_global] = rotations.sin = arena_.Take<float>(values);
  }
  step_ = std::make_unique<DeviceStep>(device_.get(), &model_, limits_);
  for (const bool widens : {false, true}) {
    if (widens && !model_.shape.kv_is_bf16) continue;
    stagings_[widens] = std::make_unique<KvStaging>(device_.get(), model_.shape, widens);
  }
  if (device_->error().empty()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "device: ", device_->kind(), " has too little memory for the model: ", device_->error(),
      "; free memory on the device, or use --device cpu"));
}

// Computes the RoPE tables for positions [0, positions) and copies them to the device. The device
// buffers are allocated once for all positions, because captured graphs contain their addresses.
void DeviceForward::ExtendRotations(int64_t positions) {
  constexpr int64_t kMore = 4096;  // minimum number of positions to add
  const int64_t most = weights_->config().max_position_embeddings;
  for (Rotations& rotations : rotations_) {
    const int64_t begin = rotations.positions;
    if (positions <= begin) continue;
    rotations.positions = std::min(most, (positions + kMore - 1) / kMore * kMore);
    rotations.table.Extend(rotations.positions);
    assert(rotations.positions >= positions);  // CheckPart() refused longer sequences
    const int64_t half = rotations.table.half(), count = rotations.positions - begin;
    const auto bytes = static_cast<size_t>(count * half) * sizeof(float);
    device_->CopyIn(rotations.cos + begin * half, rotations.table.Cos(begin, count).data, bytes);
    device_->CopyIn(rotations.sin + begin * half, rotations.table.Sin(begin, count).data, bytes);
  }
}

absl::Status DeviceForward::Failure() const {
  if (device_->error().empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("device: ", device_->error()));
}

// Returns pinned memory; null if there is too little. Pinning takes longer than copying to it, so
// memory is reused.
std::shared_ptr<float[]> DeviceForward::TakeFloats(size_t floats) {
  for (const Pinned& one : pinned_) {
    if (one.floats >= floats && one.memory.use_count() == 1) return one.memory;
  }
  const auto is_free = [](const Pinned& one) { return one.memory.use_count() == 1; };
  pinned_.erase(std::remove_if(pinned_.begin(), pinned_.end(), is_free), pinned_.end());
  auto* const memory = static_cast<float*>(device_->AllocateHost(floats * sizeof(float)));
  if (memory == nullptr) return nullptr;
  const auto release = [device = device_](float* pinned) { device->FreeHost(pinned); };
  pinned_.push_back({std::shared_ptr<float[]>(memory, release), floats});
  return pinned_.back().memory;
}

// Allocates the memory for the step's results: greedy keys of all wanted rows, then the logits of
// each part. First releases the logits of the parts' previous step.
absl::Status DeviceForward::TakeResults(Parts parts) {
  const auto vocabulary = static_cast<size_t>(model_.shape.vocabulary);
  constexpr size_t kKeyFloats = sizeof(GreedyKey) / sizeof(float);
  size_t wanted = 0, rows = 0;
  for (const InvariantPart& part : parts) {
    if (part.want == 0) continue;
    part.logits->Resize(0);
    wanted += static_cast<size_t>(part.want);
    if (!part.greedy) rows += static_cast<size_t>(part.want);
  }
  keys_ = nullptr;
  if (wanted == 0) return Failure();
  if (absl::Status failure = Failure(); !failure.ok()) return failure;
  // Powers of two, so that steps of slowly growing size allocate rarely.
  const size_t floats =
      absl::bit_ceil(wanted) * kKeyFloats + (rows > 0 ? absl::bit_ceil(rows) * vocabulary : 0);
  const std::shared_ptr<float[]> memory = TakeFloats(floats);
  if (memory == nullptr) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the machine has no pinned memory for ", floats, " logits"));
  }
  if (wanted > rows) keys_ = reinterpret_cast<GreedyKey*>(memory.get());
  keys_copied_ = 0;
  float* next = memory.get() + wanted * kKeyFloats;
  for (const InvariantPart& part : parts) {
    if (part.want == 0 || part.greedy) continue;
    const size_t size = static_cast<size_t>(part.want) * vocabulary;
    part.logits->Set({memory, next}, size);
    next += size;
  }
  return Failure();
}

absl::Status DeviceForward::AddAdapter(const std::shared_ptr<const LoraAdapter>& adapter) {
  step_->AddAdapter(adapter->layers());
  adapters_.push_back(adapter);
  if (device_->error().empty()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "device: ", device_->kind(), " has too little memory for the adapter: ", device_->error(),
      "; load fewer adapters, free memory on the device, or use --device cpu"));
}

// Returns an adapter's number in `step_`, or -1 for null.
int DeviceForward::NumberOf(const LoraAdapter* adapter) const {
  if (adapter == nullptr) return -1;
  const auto at = std::find_if(adapters_.begin(), adapters_.end(),
                               [adapter](const auto& one) { return one.get() == adapter; });
  assert(at != adapters_.end());  // AddAdapter was called
  return static_cast<int>(at - adapters_.begin());
}

// Parts whose blocks are widened cannot be in a step with other parts, so they are last.
std::vector<const InvariantPart*> DeviceForward::InOrder(Parts parts) const {
  std::vector<const InvariantPart*> order;
  for (const InvariantPart& part : parts) order.push_back(&part);
  std::stable_partition(order.begin(), order.end(),
                        [this](const InvariantPart* part) { return !Widens(*part->kv); });
  return order;
}

absl::Status DeviceForward::Start(Parts parts) {
  const FloatMode mode;
  if (absl::Status taken = TakeResults(parts); !taken.ok()) return taken;
  const int chunk = static_cast<int>(layout_.chunk_tokens);
  for (const auto& staging : stagings_) {
    if (staging != nullptr) staging->Clear();
  }
  const auto await = [parts](int layer) {
    for (const InvariantPart& part : parts) part.kv->AwaitRestore(layer);
  };
  Piece piece;
  for (const InvariantPart* next : InOrder(parts)) {
    const InvariantPart& part = *next;
    const int tokens = static_cast<int>(part.tokens.size()), begin = part.kv->length();
    const int64_t vocabulary = model_.shape.vocabulary;
    ExtendRotations(begin + tokens);
    const size_t most = std::max(part.kv->BlocksOf(LayerGroup::kLocal).size(),
                                 part.kv->BlocksOf(LayerGroup::kGlobal).size());
    assert(most <= static_cast<size_t>(limits_.blocks));  // otherwise no piece could take the part
    for (int done = 0; done < tokens;) {
      const int unwanted = std::max(0, tokens - part.want - done);
      int rows = std::min(
          {tokens - done, limits_.rows - piece.rows, unwanted + limits_.wanted - piece.wanted});
      // Rows of another chunk read other blocks in sealed form.
      if (part.kv->seals()) rows = std::min(rows, chunk - (begin + done) % chunk);
      // Earlier rows of the part in this piece have staged every block except the block that they
      // were written to. This block is complete now, so it is staged in quantized form. If blocks
      // are widened, the block of these rows is staged too.
      const bool continues = part.kv->seals() && done > 0;
      KvStaging* const staging = stagings_[Widens(*part.kv)].get();
      const size_t more = Widens(*part.kv) ? 2 : 1;
      const KvStaging::Counts staged =
          continues ? KvStaging::Counts{more, more} : StagedBlocks(*part.kv, begin + done);
      if (rows == 0 || piece.blocks + most > static_cast<size_t>(limits_.blocks) ||
          (!piece.parts.empty() && (piece.staging != staging || !staging->Fits(staged)))) {
        RunPiece(&piece, await);
        continue;
      }
      piece.staging = staging;
      std::array<std::byte*, 2> written = {};
      absl::Status added = AddBlocks(*part.kv, begin + done, rows, &piece, &written);
      if (!added.ok()) return added;
      const auto& own = piece.addresses.back();
      assert(rows >= 1);
      const int want = std::max(0, rows - unwanted);
      piece.parts.push_back(
          {part.tokens.subspan(static_cast<size_t>(done), static_cast<size_t>(rows)),
           begin + done,
           want,
           {own[0], own[1]},
           NumberOf(part.kv->adapter().get()),
           written});
      done += rows;
      if (want > 0) {
        assert(want <= part.want && done >= tokens - part.want + want);
        const int64_t first = done - want - (tokens - part.want);
        float* const to = part.logits->values().data();
        piece.logits.emplace_back(part.greedy ? nullptr : to + first * vocabulary, want);
      }
      piece.rows += rows;
      piece.wanted += want;
      piece.blocks += most;
    }
  }
  RunPiece(&piece, await);
  return Failure();
}

absl::Status DeviceForward::Finish(Parts parts) {
  device_->Wait();
  if (absl::Status failure = Failure(); !failure.ok()) return failure;
  const GreedyKey* keys = keys_;
  for (const InvariantPart* next : InOrder(parts)) {
    const InvariantPart& part = *next;
    const auto rows = static_cast<size_t>(part.want);
    if (rows > 0 && part.greedy) {
      std::vector<GreedyToken> tokens;
      for (size_t i = 0; i < rows; ++i) tokens.push_back({IdOfKey(keys[i]), IsFiniteKey(keys[i])});
      part.logits->SetGreedy(std::move(tokens));
    }
    if (keys != nullptr) keys += rows;
  }
  return absl::OkStatus();
}

// Returns the first split that a row at position `begin` attends to.
int DeviceForward::FirstStaged(bool is_global, int begin) const {
  const int window = model_.shape.window;
  return is_global ? 0 : std::max(0, begin - window + 1) / static_cast<int>(layout_.chunk_tokens);
}

// Returns how many blocks at most are staged for the rows of a sequence from position `begin` on.
KvStaging::Counts DeviceForward::StagedBlocks(const InvariantKv& kv, int begin) const {
  const auto staged = [&](bool is_global) -> size_t {
    const bool needs = kv.seals() || (kv.is_offloaded() && is_global);
    if (!needs || model_.shape.LayersIn(is_global) == 0) return 0;
    const int own = begin / static_cast<int>(layout_.chunk_tokens);
    return static_cast<size_t>(own - FirstStaged(is_global, begin)) + (Widens(kv) ? 1 : 0);
  };
  return {staged(false), staged(true)};
}

// Adds the addresses of a sequence's KV blocks for `rows` rows from position `begin` on. Blocks
// that attention cannot read in place are staged. Sets `written` (DevicePart). REQUIRES: sealed
// rows belong to one chunk.
absl::Status DeviceForward::AddBlocks(const InvariantKv& kv, int begin, int rows, Piece* piece,
                                      std::array<std::byte*, 2>* written) {
  KvStaging* const staging = piece->staging;
  const auto reserve = [&] {
    if (staging->Reserve(StagedBlocks(kv, begin))) return true;
    for (const auto& other : stagings_) {
      if (other != nullptr && other->is_empty()) other->Release();
    }
    return staging->Reserve(StagedBlocks(kv, begin));
  };
  if (piece->parts.empty() && !reserve()) {
    device_->Wait();  // earlier pieces of the step may still run
    return absl::ResourceExhaustedError(
        absl::StrCat("device: ", device_->kind(),
                     " has too little memory to copy the offloaded or quantized "
                     "KV blocks of a sequence of ",
                     begin,
                     " tokens; lower --kv-bytes, or free memory of the "
                     "device"));
  }
  auto& addresses = piece->addresses.emplace_back();
  for (const bool is_global : {false, true}) {
    const LayerGroup group = is_global ? LayerGroup::kGlobal : LayerGroup::kLocal;
    std::vector<std::byte*>& to = addresses[is_global] = kv.BlocksOf(group);
    if (to.empty()) continue;
    if (kv.is_offloaded() && is_global) {
      const std::vector<const std::byte*> offloaded = kv.OffloadedBlocks();
      for (size_t split = 0; split < offloaded.size(); ++split) {
        if (offloaded[split] != nullptr) to[split] = staging->AddOffloaded(offloaded[split]);
      }
    }
    if (!kv.seals()) continue;
    const KvQuantization& form = kv.layout().quantization;
    const std::vector<std::byte*> sealed = kv.SealedBlocksOf(group);
    const int chunk = static_cast<int>(layout_.chunk_tokens), own = begin / chunk;
    const auto block = [&](int split) -> QuantizedBlock {
      const auto at = static_cast<size_t>(split);
      return {to[at],
              sealed[at],
              static_cast<int16_t>(form.bits),
              static_cast<int16_t>(form.group),
              static_cast<int8_t>(form.axis_key),
              static_cast<int8_t>(form.axis_value)};
    };
    for (int split = FirstStaged(is_global, begin); split < own; ++split) {
      to[static_cast<size_t>(split)] = staging->AddQuantized(is_global, block(split));
    }
    if ((begin + rows) % chunk == 0) staging->AddCompleted(is_global, block(own));
    if (!Widens(kv)) continue;
    std::byte*& to_own = to[static_cast<size_t>(own)];
    (*written)[is_global] = to_own;
    to_own = staging->AddWidened(is_global, to_own);
  }
  return absl::OkStatus();
}

// Starts the collected parts as one DeviceStep, and the copies of its logits and greedy keys.
void DeviceForward::RunPiece(Piece* piece, const DeviceStep::AwaitLayer& await) {
  const size_t row = static_cast<size_t>(model_.shape.vocabulary);
  assert(!piece->parts.empty() && piece->rows <= limits_.rows && piece->wanted <= limits_.wanted);
  DeviceStep::StageLayer stage;
  KvStaging* const staging = piece->staging;
  if (!staging->is_empty()) {
    staging->BeginStep();
    stage = [staging](int layer) { staging->BeforeAttention(layer); };
  }
  const float* logits = step_->Run(piece->parts, await, stage);
  for (const auto& [to, rows] : piece->logits) {
    const size_t values = static_cast<size_t>(rows) * row;
    if (to != nullptr) device_->StartCopyOut(to, logits, values * sizeof(float));
    logits += values;
  }
  if (keys_ != nullptr && piece->wanted > 0) {
    device_->StartCopyOut(keys_ + keys_copied_, step_->FindGreatest(),
                          static_cast<size_t>(piece->wanted) * sizeof(GreedyKey));
    keys_copied_ += piece->wanted;
  }
  staging->Clear();
  *piece = Piece();
}

// --- self-test ---

namespace {

constexpr uint64_t kTestModel = 1;  // model number of the self-test's InvariantKv
// few rows, because the emulated device is slow and has separate unit tests
constexpr int kEmulatedTestRows = 40;

// Computes one local and one global layer on the CPU for a sequence. Returns the logits of the last
// `count` rows: [count][vocabulary].
std::vector<float> LogitsByCpu(const InvariantWeights& weights, const std::vector<int>& layers,
                               absl::Span<const int32_t> tokens, int64_t count, ThreadPool* pool,
                               InvariantKv* kv) {
  InvariantForward forward(&weights, kv->layout(), pool, {});
  const InvariantPart part = {kv, tokens};
  KernelPhases list;
  forward.Begin({&part, 1});
  forward.AddEmbedding(weights.layer(layers[0]).input_norm, &list);
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool last = i + 1 == layers.size();
    forward.AddWholeLayer(weights.layer(layers[i]), static_cast<int>(i),
                          last ? weights.final_norm() : weights.layer(layers[i + 1]).input_norm,
                          &list);
  }
  const int64_t vocabulary = weights.config().vocab_size;
  std::vector<float> logits(static_cast<size_t>(count * vocabulary));
  std::vector<float*> places;
  for (int64_t row = 0; row < count; ++row) places.push_back(logits.data() + row * vocabulary);
  const Rows& normed = forward.rows().normed;
  forward.AddHead({normed.Row(normed.rows - count), count, normed.stride}, places, &list);
  forward.RunList(&list);
  kv->Advance(static_cast<int>(tokens.size()));
  return logits;
}

absl::Status OtherBits(const std::string& what) {
  return absl::FailedPreconditionError(
      absl::StrCat("the device and the CPU compute different bits for ", what));
}

absl::Status SameKeysAndValues(const InvariantKv& on_device, const InvariantKv& on_host) {
  const int rows = on_host.length();
  const KvLayout& layout = on_host.layout();
  std::vector<std::byte> theirs(layout.PlainSliceBytes(static_cast<uint32_t>(rows))), ours(theirs);
  for (size_t i = 0; i < layout.layers.size(); ++i) {
    on_device.CopyOut(static_cast<int>(i), 0, rows, 0, rows, theirs.data());
    on_host.CopyOut(static_cast<int>(i), 0, rows, 0, rows, ours.data());
    if (theirs == ours) continue;
    const bool local = layout.layers[i] == LayerGroup::kLocal;
    return OtherBits(absl::StrCat("keys and values of a ", local ? "local" : "global", " layer"));
  }
  return absl::OkStatus();
}

}  // namespace

void DeviceForward::ChooseProducts() {
  constexpr double kTuningUs = 5e5;
  if (model_.multiplies_bf16 && device_->has_warpgroups()) {
    const int differing = DifferingWarpgroupOutputs(device_.get());
    step_->UseWarpgroups(differing == 0);
    if (differing > 0) {
      notes_.push_back(absl::StrCat("products of many rows: ", differing,
                                    " outputs of wgmma differ ",
                                    "from those of mma.sync, so steps use mma.sync"));
    }
  }
  const std::string tuned = ProductTuner(device_.get(), &model_, step_.get()).Tune(kTuningUs);
  if (!tuned.empty()) notes_.push_back(tuned);
}

absl::StatusOr<int> DeviceForward::SelfTest(const StepLimits&) {
  const FloatMode mode;
  const ModelConfig& config = weights_->config();
  auto layout = std::make_shared<KvLayout>(layout_);
  const std::vector<int> layers = TestedLayers(config, layout.get());
  int rows = TestedRows(config, layout_);
  std::vector<int> steps = {33, 32, 16, 8, 4, 2, 1};
  if (IsEmulated(*device_)) {
    rows = std::min(rows, kEmulatedTestRows);
    steps = {2, 1};
  }
  ExtendRotations(rows);
  ChooseProducts();
  // longer than the test, so that no block is dropped
  layout->window = static_cast<uint32_t>(rows) + 1;
  std::vector<int32_t> tokens;
  for (int i = 0; i < rows; ++i) tokens.push_back(SpreadToken(i, config.vocab_size));
  KvBlocks host(UINT64_MAX), blocks(UINT64_MAX, memory_);
  InvariantKv on_host(layout, &host, kTestModel), on_device(layout, &blocks, kTestModel);
  for (InvariantKv* kv : {&on_host, &on_device}) {
    if (absl::Status room = kv->MakeRoom(rows); !room.ok()) return room;
  }
  int compared = 0;
  for (const int step : steps) compared += step;
  compared = std::min(compared, rows);
  const std::vector<float> want = LogitsByCpu(*weights_, layers, tokens, compared, pool_, &on_host);
  DeviceModel model = model_;
  model.layers.clear();
  model.shape.is_global.clear();
  for (const int layer : layers) {
    model.layers.push_back(model_.layers[static_cast<size_t>(layer)]);
    model.shape.is_global.push_back(!config.is_local(layer));
  }
  DeviceStep step(device_.get(), &model, {rows, limits_.wanted, 1024, 2 * rows});
  step.UseChoicesOf(*step_);
  if (absl::Status failure = Failure(); !failure.ok()) return failure;
  const std::vector<std::byte*> local = on_device.BlocksOf(LayerGroup::kLocal),
                                global = on_device.BlocksOf(LayerGroup::kGlobal);
  const auto vocabulary = static_cast<size_t>(config.vocab_size);
  std::vector<float> logits(static_cast<size_t>(limits_.wanted) * vocabulary);
  steps.insert(steps.begin(), rows - compared);
  int passes = 0;
  for (const int size : steps) {
    const int begin = on_device.length(), count = std::min(size, rows - begin);
    if (count == 0) continue;
    const int wanted = begin + count <= rows - compared ? 0 : std::min(count, limits_.wanted);
    const DevicePart part = {
        absl::MakeSpan(tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
        begin,
        wanted,
        {local, global}};
    step.Run({&part, 1}, logits.data());
    device_->Wait();
    if (absl::Status failure = Failure(); !failure.ok()) return failure;
    on_device.Advance(count);
    ++passes;
    const auto first = static_cast<size_t>(begin + count - wanted - (rows - compared));
    if (std::memcmp(logits.data(), want.data() + first * vocabulary,
                    static_cast<size_t>(wanted) * vocabulary * sizeof(float)) != 0) {
      return OtherBits(absl::StrCat("logits of a step of ", count, " rows"));
    }
  }
  const absl::Status same = SameKeysAndValues(on_device, on_host);
  if (!same.ok()) return same;
  return passes;
}

}  // namespace hearth
