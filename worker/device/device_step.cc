#include "worker/device/device_step.h"

#include <algorithm>
#include <cassert>

#include "worker/device/program_list.h"

namespace hearth {
namespace {

constexpr int kManyTileRows = 16;

// Returns the rows of an attention item with one token: its query heads for one KV head, rounded up
// to the kTileRows of an AttendProgram.
int FewTileRows(const DeviceShape& shape) {
  int rows = 1;
  while (rows < shape.heads / shape.kv_heads) rows *= 2;
  return rows;
}

StepCapacity FewCapacity(const DeviceShape& shape, const DeviceStepLimits& limits) {
  const int rows = std::min(DeviceStep::kGraphRows, limits.rows);
  return {rows, rows, limits.few_items, limits.blocks, FewTileRows(shape)};
}
StepCapacity ManyCapacity(const DeviceShape&, const DeviceStepLimits& limits) {
  return {limits.rows, limits.wanted, 2 * limits.rows, limits.blocks, kManyTileRows};
}

// Returns the number of AttendProgram<tile_rows, float or BFloat16>. All AttendPrograms have the
// same members, so AnyAttend can hold the arguments of each.
using AnyAttend = AttendProgram<1, float>;
int AttendNumber(int tile_rows, bool kv_is_bf16) {
  constexpr int kFirst = kProgramNumber<AnyAttend>, kCount = AttendProgramsOf<float>::kCount;
  static_assert(kProgramNumber<AttendProgram<1, BFloat16>> == kFirst + kCount);
  static_assert(sizeof(AttendProgram<16, BFloat16>) == sizeof(AnyAttend));
  int number = 0;
  while (1 << number < tile_rows) ++number;
  assert(tile_rows == 1 << number && number < kCount);
  return kFirst + number + (kv_is_bf16 ? kCount : 0);
}

void Nothing(const char*, int) {}

}  // namespace

DeviceStep::DeviceStep(Device* device, const DeviceModel* model, const DeviceStepLimits& limits)
    : device_(device),
      arena_(device),
      model_(model),
      shape_(model->shape),
      few_(device, shape_, FewCapacity(shape_, limits)),
      many_(device, shape_, ManyCapacity(shape_, limits)),
      adapters_(device, &shape_, limits.rows) {
  assert(limits.rows >= 1 && shape_.heads % shape_.kv_heads == 0);
  const int64_t rows = limits.rows;
  buffers_.x = NewFloats(rows * shape_.hidden);
  buffers_.normed = NewFloats(rows * shape_.hidden);
  buffers_.qkv = NewFloats(rows * shape_.qkv());
  buffers_.attended = NewFloats(rows * shape_.attended());
  buffers_.projected = NewFloats(rows * shape_.hidden);
  buffers_.gated = NewFloats(rows * shape_.intermediate);
  const auto wanted = static_cast<size_t>(std::max(limits.wanted, kGraphRows));
  buffers_.logits = NewFloats(static_cast<int64_t>(wanted) * shape_.vocabulary);
  slice_keys_ = arena_.Take<GreedyKey>(wanted * kSlices);
  keys_ = arena_.Take<GreedyKey>(wanted);
  const int64_t states = int64_t{limits.few_items} * shape_.kv_heads * FewTileRows(shape_);
  states_.scalars = NewFloats(states * 2);
  states_.outputs = NewFloats(states * shape_.head_dim);
}

int DeviceStep::RowsOfGraph(int rows) {
  int graph = 1;
  while (graph < rows) graph *= 2;
  assert(graph >= rows && graph < 2 * rows);
  return graph;
}

void DeviceStep::SetChoice(int rows, const ProductChoice& choice) {
  choices_[rows] = choice;
  for (auto& graphs : graphs_) {
    graphs.erase(rows);
    graphs.erase(-rows);
  }
}

void DeviceStep::SetOverlapRows(int rows) {
  overlap_rows_ = rows;
  for (auto& graphs : graphs_) graphs.clear();
}

int DeviceStep::AddAdapter(absl::Span<const AdapterLayer> layers) {
  graphs_[1].clear();
  return adapters_.Add(layers);
}

ProductChoice DeviceStep::ChoiceFor(int rows) const {
  if (const auto at = choices_.find(rows); at != choices_.end()) return at->second;
  const DeviceLayer& layer = model_->layers[0];
  const auto choose = [&](const DeviceMatrix& matrix, bool is_pair, int of_rows) {
    return ChooseProduct(of_rows, matrix, is_pair, device_->processors(), device_->shared_bytes());
  };
  return {choose(layer.qkv, false, rows), choose(layer.out, false, rows),
          choose(layer.gate_up, true, rows), choose(layer.down, false, rows),
          choose(model_->head, false, std::min(rows, kGraphRows))};
}

const float* DeviceStep::Run(absl::Span<const DevicePart> parts, const AwaitLayer& await) {
  int rows = 0;
  for (const DevicePart& part : parts) rows += static_cast<int>(part.tokens.size());
  assert(rows >= 1);
  if (rows > few_.capacity().rows) {
    many_.Write(parts, false);
    last_ = {&many_, rows, many_.wanted(), false, many_.adapter_runs(), ChoiceFor(rows)};
    await_ = await == nullptr ? nullptr : &await;
    LaunchAll(last_, Nothing);
    await_ = nullptr;
    return buffers_.logits;
  }
  few_.Write(parts, true);
  const int of_graph = std::min(RowsOfGraph(rows), few_.capacity().rows);
  const bool wants = few_.wanted() > 0;
  const int runs = few_.adapter_runs() > 0 ? std::min(of_graph, kAdapterTileRows) : 0;
  last_ = {&few_, of_graph, wants ? of_graph : 0, true, runs, ChoiceFor(of_graph)};
  assert(rows <= of_graph && few_.wanted() <= of_graph);
  std::unique_ptr<DeviceGraph>& graph = GraphOf(last_);
  if (graph == nullptr) graph = device_->Capture([this] { LaunchAll(last_, Nothing); });
  if (await != nullptr) await(shape_.layers() - 1);
  graph->Replay();
  return buffers_.logits;
}

void DeviceStep::Run(absl::Span<const DevicePart> parts, float* logits) {
  const float* from = Run(parts);
  const size_t wanted = static_cast<size_t>(last_.plan->wanted());
  const size_t bytes = wanted * static_cast<size_t>(shape_.vocabulary) * sizeof(float);
  if (bytes > 0) device_->CopyOut(logits, from, bytes);
}

const GreedyKey* DeviceStep::FindGreatest() {
  const int wanted = last_.plan->wanted();
  assert(wanted >= 1);
  device_->SetOverlap(false);
  const ArgmaxProgram slices = {buffers_.logits, nullptr, shape_.vocabulary, kSlices, slice_keys_};
  Launch(device_, slices, wanted * kSlices);
  const ArgmaxProgram rows = {nullptr, slice_keys_, kSlices, 1, keys_};
  Launch(device_, rows, wanted);
  return keys_;
}

void DeviceStep::Repeat() {
  assert(last_.plan != nullptr);
  if (last_.splits) return GraphOf(last_)->Replay();
  LaunchAll(last_, Nothing);
}

void DeviceStep::RunSlowly(const Before& before) { LaunchAll(last_, before); }

void DeviceStep::LaunchProduct(int shape, bool is_pair, const DeviceMatrix& matrix, const float* x,
                               int x_stride, float* y, int y_stride, int rows,
                               const int32_t* row_numbers, float softcap) {
  assert(rows >= 1 && matrix.inputs <= x_stride && matrix.outputs <= y_stride);
  ProductArguments product = {};
  product.matrix = matrix;
  product.x = x;
  product.row_numbers = row_numbers;
  product.y = y;
  product.rows = rows;
  product.x_stride = x_stride;
  product.y_stride = y_stride;
  product.softcap = softcap;
  if (model_->multiplies_bf16) {
    const int tiling = ChooseBf16Product(rows);
    return device_->Launch(Bf16ProductNumber(tiling, is_pair), &product,
                           BlocksOf(Bf16FactsOf(tiling), rows, matrix.columns));
  }
  device_->Launch(ProductNumber(shape, is_pair), &product,
                  BlocksOf(FactsOf(shape), rows, matrix.columns));
}

void DeviceStep::LaunchAdapters(const Form& form, int layer, DeviceAdapters::Product product,
                                const float* x, float* y) {
  if (form.adapter_runs == 0 || !adapters_.Changes(product)) return;
  adapters_.Launch({form.plan->table(), form.rows, form.adapter_runs}, layer, product, x, y);
}

void DeviceStep::LaunchGateUp(const Form& form, int layer) {
  DeviceMatrix matrix = model_->layers[static_cast<size_t>(layer)].gate_up;
  const float* const x = buffers_.normed;
  if (form.adapter_runs == 0 || !adapters_.Changes(DeviceAdapters::kGateUp)) {
    return LaunchProduct(form.choice.gate_up, true, matrix, x, shape_.hidden, buffers_.gated,
                         shape_.intermediate, form.rows, nullptr, 0);
  }
  matrix.outputs = matrix.columns;  // the products of both matrices, without GELU
  LaunchProduct(form.choice.gate_up, false, matrix, x, shape_.hidden, adapters_.pairs(),
                matrix.columns, form.rows, nullptr, 0);
  LaunchAdapters(form, layer, DeviceAdapters::kGateUp, x, buffers_.gated);
}

void DeviceStep::LaunchNorm(const Form& form, const float* y_norm, const float* x_norm) {
  AddNormProgram norm;
  norm.table = form.plan->table();
  norm.columns = shape_.hidden;
  norm.epsilon = shape_.epsilon;
  norm.y = buffers_.projected;
  norm.y_norm = y_norm;
  norm.x_norm = x_norm;
  norm.x = buffers_.x;
  norm.normed = buffers_.normed;
  Launch(device_, norm, form.rows);
}

void DeviceStep::LaunchAttention(const Form& form, int layer, const Before& before) {
  const bool is_global = shape_.is_global[static_cast<size_t>(layer)];
  const KvPlace place = {shape_.LayersBefore(layer) * shape_.SliceBytes(),
                         shape_.split,
                         shape_.heads,
                         shape_.kv_heads,
                         shape_.head_dim,
                         shape_.heads / shape_.kv_heads,
                         is_global ? 0 : shape_.window,
                         shape_.kv_is_bf16};
  if (await_ != nullptr) (*await_)(layer);
  before("heads", layer);
  const DeviceLayer& weights = model_->layers[static_cast<size_t>(layer)];
  const HeadNormProgram heads = {
      form.plan->table(),     place,          is_global,      form.rows,
      shape_.epsilon,         weights.q_norm, weights.k_norm, model_->cos[is_global],
      model_->sin[is_global], buffers_.qkv};
  Launch(device_, heads, HeadNormProgram::Blocks(form.rows, shape_.heads, shape_.kv_heads));
  before("attend", layer);
  const int tile_rows = form.plan->capacity().tile_rows;
  AnyAttend attend;
  attend.table = form.plan->table();
  attend.place = place;
  attend.is_global = is_global;
  attend.softcap = shape_.attention_softcap;
  attend.qkv = buffers_.qkv;
  attend.attended = buffers_.attended;
  attend.states = states_;
  const int most = form.plan->capacity().items * shape_.kv_heads;
  device_->Launch(AttendNumber(tile_rows, shape_.kv_is_bf16), &attend,
                  std::min(2 * device_->processors(), most));
  if (!form.splits) return;
  before("combine", layer);
  const CombineProgram combine = {form.plan->table(), place,   is_global,
                                  tile_rows,          states_, buffers_.attended};
  Launch(device_, combine, form.rows * shape_.heads);
}

void DeviceStep::LaunchLayer(const Form& form, int layer, const Before& before) {
  const DeviceLayer& weights = model_->layers[static_cast<size_t>(layer)];
  const bool is_last = layer + 1 == shape_.layers();
  const ProductChoice& choice = form.choice;
  before("qkv", layer);
  LaunchProduct(choice.qkv, false, weights.qkv, buffers_.normed, shape_.hidden, buffers_.qkv,
                shape_.qkv(), form.rows, nullptr, 0);
  LaunchAdapters(form, layer, DeviceAdapters::kQkv, buffers_.normed, buffers_.qkv);
  LaunchAttention(form, layer, before);
  before("out", layer);
  LaunchProduct(choice.out, false, weights.out, buffers_.attended, shape_.attended(),
                buffers_.projected, shape_.hidden, form.rows, nullptr, 0);
  LaunchAdapters(form, layer, DeviceAdapters::kOut, buffers_.attended, buffers_.projected);
  before("norm 1", layer);
  LaunchNorm(form, weights.post_attention_norm, weights.pre_feedforward_norm);
  before("gate, up", layer);
  LaunchGateUp(form, layer);
  before("down", layer);
  LaunchProduct(choice.down, false, weights.down, buffers_.gated, shape_.intermediate,
                buffers_.projected, shape_.hidden, form.rows, nullptr, 0);
  LaunchAdapters(form, layer, DeviceAdapters::kDown, buffers_.gated, buffers_.projected);
  before("norm 2", layer);
  LaunchNorm(
      form, weights.post_feedforward_norm,
      is_last ? model_->final_norm : model_->layers[static_cast<size_t>(layer) + 1].input_norm);
}

void DeviceStep::LaunchAll(const Form& form, const Before& before) {
  assert(form.plan != nullptr && form.rows >= 1 && form.wanted <= form.rows);
  device_->SetOverlap(form.rows <= overlap_rows_);
  before("embedding", 0);
  EmbedProgram embed;
  embed.embedding = model_->head;
  embed.table = form.plan->table();
  embed.norm = model_->layers[0].input_norm;
  embed.scale = shape_.embedding_scale;
  embed.epsilon = shape_.epsilon;
  embed.x = buffers_.x;
  embed.normed = buffers_.normed;
  Launch(device_, embed, form.rows);
  for (int layer = 0; layer < shape_.layers(); ++layer) LaunchLayer(form, layer, before);
  if (form.wanted == 0) return;
  before("head", 0);
  LaunchProduct(form.choice.head, false, model_->head, buffers_.normed, shape_.hidden,
                buffers_.logits, shape_.vocabulary, form.wanted, form.plan->table().wanted,
                shape_.logit_softcap);
}

}  // namespace hearth
