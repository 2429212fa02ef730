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

// Returns the number of AttendProgram<tile_rows>. AttendProgram has the same members for every
// kTileRows, so AttendProgram<1> can hold the arguments of each.
int AttendNumber(int tile_rows) {
  constexpr int kNumbers[] = {kProgramNumber<AttendProgram<1>>, kProgramNumber<AttendProgram<2>>,
                              kProgramNumber<AttendProgram<4>>, kProgramNumber<AttendProgram<8>>,
                              kProgramNumber<AttendProgram<16>>};
  static_assert(sizeof(AttendProgram<16>) == sizeof(AttendProgram<1>));
  int number = 0;
  while (1 << number < tile_rows) ++number;
  assert(tile_rows == 1 << number && number < 5);
  return kNumbers[number];
}

void Nothing(const char*, int) {}

// Returns the largest number of inputs of a layer's product.
int WidestInput(const DeviceShape& shape) {
  return std::max({shape.hidden, shape.attended(), shape.intermediate});
}

}  // namespace

DeviceStep::DeviceStep(Device* device, const DeviceModel* model, const DeviceStepLimits& limits)
    : device_(device),
      arena_(device),
      model_(model),
      shape_(model->shape),
      few_(device, shape_, FewCapacity(shape_, limits)),
      many_(device, shape_, ManyCapacity(shape_, limits)) {
  assert(limits.rows >= 1 && shape_.heads % shape_.kv_heads == 0);
  const int64_t rows = limits.rows;
  buffers_.x = NewFloats(rows * shape_.hidden);
  buffers_.normed = NewFloats(rows * shape_.hidden);
  buffers_.qkv = NewFloats(rows * shape_.qkv());
  buffers_.attended = NewFloats(rows * shape_.attended());
  buffers_.projected = NewFloats(rows * shape_.hidden);
  buffers_.gated = NewFloats(PackedPitch() * WidestInput(shape_));
  buffers_.logits = NewFloats(int64_t{std::max(limits.wanted, kGraphRows)} * shape_.vocabulary);
  const int64_t states = int64_t{limits.few_items} * shape_.kv_heads * FewTileRows(shape_);
  states_.scalars = NewFloats(states * 2);
  states_.outputs = NewFloats(states * shape_.head_dim);
}

void DeviceStep::UseWarpgroups(bool use) {
  constexpr int kInputs = WarpgroupArguments::kInputGrain;
  uses_warpgroups_ = use && model_->multiplies_bf16 && shape_.hidden % kInputs == 0 &&
                     shape_.attended() % kInputs == 0 && shape_.intermediate % kInputs == 0;
  choices_.clear();  // they may be numbers of other tilings
}

int DeviceStep::RowsOfGraph(int rows) {
  int graph = 1;
  while (graph < rows) graph *= 2;
  assert(graph >= rows && graph < 2 * rows);
  return graph;
}

void DeviceStep::SetChoice(int rows, const ProductChoice& choice) {
  rows = RowsOfGraph(rows);
  choices_[rows] = choice;
  graphs_.erase(rows);
  graphs_.erase(-rows);
}

void DeviceStep::UseChoicesOf(const DeviceStep& other) {
  choices_ = other.choices_;
  uses_warpgroups_ = other.uses_warpgroups_;
  SetOverlapRows(other.overlap_rows_);
}

void DeviceStep::SetOverlapRows(int rows) {
  overlap_rows_ = rows;
  graphs_.clear();
}

ProductKind DeviceStep::KindFor(StepProduct product, int rows) const {
  if (!model_->multiplies_bf16) return ProductKind::kFloat;
  return uses_warpgroups_ && rows > kGraphRows && product != kHead ? ProductKind::kWarpgroup
                                                                   : ProductKind::kBf16;
}

ProductChoice DeviceStep::ChoiceFor(int rows) const {
  if (const auto at = choices_.find(RowsOfGraph(rows)); at != choices_.end()) return at->second;
  ProductChoice choice;
  for (const StepProduct product : {kQkv, kOut, kGateUp, kDown, kHead}) {
    const int of_rows = product == kHead ? std::min(rows, kGraphRows) : rows;
    choice[product] =
        ChooseTiling(KindFor(product, of_rows), of_rows, MatrixOf(product, 0), product == kGateUp,
                     device_->processors(), device_->shared_bytes());
  }
  return choice;
}

const float* DeviceStep::Run(absl::Span<const DevicePart> parts) {
  int rows = 0;
  for (const DevicePart& part : parts) rows += static_cast<int>(part.tokens.size());
  assert(rows >= 1);
  if (rows > few_.capacity().rows) {
    many_.Write(parts, false);
    last_ = {&many_, rows, many_.wanted(), false, ChoiceFor(rows)};
    if (last_.wanted > 0) last_.choice[kHead] = ChoiceFor(last_.wanted)[kHead];
    LaunchAll(last_, Nothing);
    return buffers_.logits;
  }
  few_.Write(parts, true);
  const int of_graph = std::min(RowsOfGraph(rows), few_.capacity().rows);
  const bool wants = few_.wanted() > 0;
  last_ = {&few_, of_graph, wants ? of_graph : 0, true, ChoiceFor(of_graph)};
  assert(rows <= of_graph && few_.wanted() <= of_graph);
  std::unique_ptr<DeviceGraph>& graph = graphs_[wants ? of_graph : -of_graph];
  if (graph == nullptr) graph = device_->Capture([this] { LaunchAll(last_, Nothing); });
  graph->Replay();
  return buffers_.logits;
}

void DeviceStep::Run(absl::Span<const DevicePart> parts, float* logits) {
  const float* from = Run(parts);
  const size_t wanted = static_cast<size_t>(last_.plan->wanted());
  const size_t bytes = wanted * static_cast<size_t>(shape_.vocabulary) * sizeof(float);
  if (bytes > 0) device_->CopyOut(logits, from, bytes);
}

void DeviceStep::Repeat() {
  assert(last_.plan != nullptr);
  if (last_.splits) return graphs_.at(last_.wanted > 0 ? last_.rows : -last_.rows)->Replay();
  LaunchAll(last_, Nothing);
}

void DeviceStep::RunSlowly(const Before& before) { LaunchAll(last_, before); }

const DeviceMatrix& DeviceStep::MatrixOf(StepProduct product, int layer) const {
  const DeviceLayer& of = model_->layers[static_cast<size_t>(layer)];
  const DeviceMatrix* all[] = {&of.qkv, &of.out, &of.gate_up, &of.down, &model_->head};
  return *all[product];
}

DeviceStep::Ends DeviceStep::EndsOf(StepProduct product) const {
  const Ends all[] = {{buffers_.normed, shape_.hidden, buffers_.qkv, shape_.qkv()},
                      {buffers_.attended, shape_.attended(), buffers_.projected, shape_.hidden},
                      {buffers_.normed, shape_.hidden, buffers_.gated, shape_.intermediate},
                      {buffers_.gated, shape_.intermediate, buffers_.projected, shape_.hidden},
                      {buffers_.normed, shape_.hidden, buffers_.logits, shape_.vocabulary}};
  return all[product];
}

void DeviceStep::LaunchProduct(StepProduct product, int layer, int tiling, int rows,
                               const int32_t* row_numbers) {
  const ProductKind kind = KindFor(product, rows);
  if (kind == ProductKind::kWarpgroup) return LaunchWarpgroups(product, layer, tiling, rows);
  const Ends ends = EndsOf(product);
  ProductArguments arguments = {};
  arguments.matrix = MatrixOf(product, layer);
  arguments.x = ends.x;
  arguments.row_numbers = row_numbers;
  arguments.y = ends.y;
  arguments.rows = rows;
  arguments.x_stride = ends.x_stride;
  arguments.y_stride = ends.y_stride;
  arguments.softcap = product == kHead ? shape_.logit_softcap : 0;
  device_->Launch(ProductNumber(kind, tiling, product == kGateUp), &arguments,
                  BlocksOf(FactsOf(kind, tiling), rows, arguments.matrix.columns));
}

void DeviceStep::LaunchWarpgroups(StepProduct product, int layer, int tiling, int rows) {
  const int64_t pitch = PackedPitch();
  auto* const memory = reinterpret_cast<uint16_t*>(buffers_.gated);
  const Bf16Rows gated = {memory, static_cast<int>(pitch)},
                 packed = {memory + pitch * WidestInput(shape_), static_cast<int>(pitch)};
  const Ends ends = EndsOf(product);
  const DeviceMatrix& matrix = MatrixOf(product, layer);
  if (product != kDown) {
    const PackRowsProgram pack = {ends.x, packed, rows, matrix.inputs, ends.x_stride};
    Launch(device_, pack, PackRowsProgram::Blocks(rows, matrix.inputs));
  }
  WarpgroupArguments arguments = {
      matrix, product == kDown ? gated : packed, gated, ends.y, rows, ends.y_stride};
  constexpr ProductKind kKind = ProductKind::kWarpgroup;
  device_->Launch(ProductNumber(kKind, tiling, product == kGateUp), &arguments,
                  BlocksOf(FactsOf(kKind, tiling), rows, matrix.columns));
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
                         is_global ? 0 : shape_.window};
  before("heads", layer);
  const DeviceLayer& weights = model_->layers[static_cast<size_t>(layer)];
  const HeadNormProgram heads = {
      form.plan->table(),     place,          is_global,      form.rows,
      shape_.epsilon,         weights.q_norm, weights.k_norm, model_->cos[is_global],
      model_->sin[is_global], buffers_.qkv};
  Launch(device_, heads, HeadNormProgram::Blocks(form.rows, shape_.heads, shape_.kv_heads));
  before("attend", layer);
  const int tile_rows = form.plan->capacity().tile_rows;
  AttendProgram<1> attend;
  attend.table = form.plan->table();
  attend.place = place;
  attend.is_global = is_global;
  attend.softcap = shape_.attention_softcap;
  attend.qkv = buffers_.qkv;
  attend.attended = buffers_.attended;
  attend.states = states_;
  const int most = form.plan->capacity().items * shape_.kv_heads;
  device_->Launch(AttendNumber(tile_rows), &attend, std::min(2 * device_->processors(), most));
  if (!form.splits) return;
  before("combine", layer);
  const CombineProgram combine = {form.plan->table(), place,   is_global,
                                  tile_rows,          states_, buffers_.attended};
  Launch(device_, combine, form.rows * shape_.heads);
}

void DeviceStep::LaunchLayer(const Form& form, int layer, const Before& before) {
  const DeviceLayer& weights = model_->layers[static_cast<size_t>(layer)];
  const bool is_last = layer + 1 == shape_.layers();
  const auto product = [&](const char* name, StepProduct of) {
    before(name, layer);
    LaunchProduct(of, layer, form.choice[of], form.rows);
  };
  product("qkv", kQkv);
  LaunchAttention(form, layer, before);
  product("out", kOut);
  before("norm 1", layer);
  LaunchNorm(form, weights.post_attention_norm, weights.pre_feedforward_norm);
  product("gate, up", kGateUp);
  product("down", kDown);
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
  LaunchProduct(kHead, 0, form.choice[kHead], form.wanted, form.plan->table().wanted);
}

}  // namespace hearth
