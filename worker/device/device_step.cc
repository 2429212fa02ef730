#include "worker/device/device_step.h"

#include <algorithm>
#include <cassert>

#include "worker/device/program_list.h"

namespace hearth {
namespace {

constexpr int kManyTileRows = 16, kManyBf16TileRows = 64;

// Returns the rows of an attention item with one token: its query heads for one KV head, rounded up
// to the kTileRows of an AttendProgram.
int FewTileRows(const DeviceShape& shape) {
  int rows = 1;
  while (rows < shape.heads / shape.kv_heads) rows *= 2;
  return rows;
}

StepCapacity FewCapacity(const DeviceStepLimits& limits) {
  const int rows = std::min(DeviceStep::kGraphRows, limits.rows);
  return {rows, rows, limits.few_items, limits.blocks};
}
StepCapacity ManyCapacity(const DeviceStepLimits& limits) {
  return {limits.rows, limits.wanted, 2 * limits.rows, limits.blocks};
}
// Large tiles read keys and values less often. Small tiles give work to more processors.
int ManyTileRows(const DeviceModel& model, const Device& device, int rows) {
  using Wide = Bf16AttendProgram<kManyBf16TileRows>;
  const bool is_wide = model.multiplies_bf16 && sizeof(Wide::Shared) <= device.shared_bytes() &&
                       rows * model.shape.heads >= kManyBf16TileRows * device.processors();
  return is_wide ? kManyBf16TileRows : kManyTileRows;
}

// Returns the number of an AttendProgram or, if `fuses`, Bf16AttendProgram. All have the members of
// AttendArguments only, so AnyAttend can hold the arguments of each.
using AnyAttend = AttendProgram<1, float>;
int AttendNumber(int tile_rows, bool kv_is_bf16, bool fuses) {
  if (fuses) {
    return tile_rows <= 8    ? kProgramNumber<Bf16AttendProgram<8>>
           : tile_rows <= 16 ? kProgramNumber<Bf16AttendProgram<16>>
                             : kProgramNumber<Bf16AttendProgram<kManyBf16TileRows>>;
  }
  constexpr int kFirst = kProgramNumber<AnyAttend>, kCount = AttendProgramsOf<float>::kCount;
  static_assert(kProgramNumber<AttendProgram<1, BFloat16>> == kFirst + kCount);
  static_assert(sizeof(AttendProgram<16, BFloat16>) == sizeof(AnyAttend) &&
                sizeof(Bf16AttendProgram<8>) == sizeof(AnyAttend));
  int number = 0;
  while (1 << number < tile_rows) ++number;
  assert(tile_rows == 1 << number && number < kCount);
  return kFirst + number + (kv_is_bf16 ? kCount : 0);
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
      few_(device, shape_, FewCapacity(limits)),
      many_(device, shape_, ManyCapacity(limits)),
      adapters_(device, &shape_, limits.rows) {
  assert(limits.rows >= 1 && shape_.heads % shape_.kv_heads == 0);
  assert(shape_.kv_is_bf16 || !model->multiplies_bf16);
  const int64_t rows = limits.rows;
  buffers_.x = NewFloats(rows * shape_.hidden);
  buffers_.normed = NewFloats(rows * shape_.hidden);
  buffers_.qkv = NewFloats(rows * shape_.qkv());
  buffers_.attended = NewFloats(rows * shape_.attended());
  buffers_.projected = NewFloats(rows * shape_.hidden);
  buffers_.gated = NewFloats(PackedPitch() * WidestInput(shape_));
  const auto wanted = static_cast<size_t>(std::max(limits.wanted, kGraphRows));
  buffers_.logits = NewFloats(static_cast<int64_t>(wanted) * shape_.vocabulary);
  slice_keys_ = arena_.Take<GreedyKey>(wanted * kSlices);
  keys_ = arena_.Take<GreedyKey>(wanted);
  const int64_t states = int64_t{limits.few_items} * shape_.kv_heads * FewTileRows(shape_);
  states_.scalars = NewFloats(states * 2);
  states_.outputs = NewFloats(states * shape_.head_dim);
  AllocateQuantized(limits.rows);
}

void DeviceStep::UseWarpgroups(bool use) {
  constexpr int kInputs = WarpgroupArguments::kInputGrain;
  uses_warpgroups_ = use && model_->multiplies_bf16 && !model_->has_integers &&
                     shape_.hidden % kInputs == 0 && shape_.attended() % kInputs == 0 &&
                     shape_.intermediate % kInputs == 0;
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
  for (auto& graphs : graphs_) {
    graphs.erase(rows);
    graphs.erase(-rows);
  }
}

void DeviceStep::UseChoicesOf(const DeviceStep& other) {
  choices_ = other.choices_;
  uses_warpgroups_ = other.uses_warpgroups_;
  SetOverlapRows(other.overlap_rows_);
}

void DeviceStep::SetOverlapRows(int rows) {
  overlap_rows_ = rows;
  for (auto& graphs : graphs_) graphs.clear();
}

int DeviceStep::AddAdapter(absl::Span<const AdapterLayer> layers) {
  graphs_[1].clear();
  return adapters_.Add(layers);
}

ProductKind DeviceStep::KindFor(StepProduct product, int rows) const {
  const bool is_many = rows > kGraphRows && product != kHead;
  return uses_warpgroups_ && is_many ? ProductKind::kWarpgroup : KindOf(MatrixOf(product, 0));
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

const float* DeviceStep::Run(absl::Span<const DevicePart> parts, const AwaitLayer& await,
                             const StageLayer& stage) {
  int rows = 0;
  for (const DevicePart& part : parts) {
    rows += static_cast<int>(part.tokens.size());
    assert(part.reads_copies() == parts[0].reads_copies());
  }
  assert(rows >= 1 && (!parts[0].reads_copies() || (shape_.kv_is_bf16 && stage != nullptr)));
  if (rows > few_.capacity().rows) {
    many_.Write(parts, false, ManyTileRows(*model_, *device_, rows));
    last_ = {&many_,
             rows,
             many_.wanted(),
             false,
             many_.adapter_runs(),
             ChoiceFor(rows),
             stage != nullptr,
             parts[0].reads_copies()};
    if (uses_warpgroups_ && last_.adapter_runs > 0) last_.choice.fill(ChooseBf16Product(rows));
    if (last_.wanted > 0) last_.choice[kHead] = ChoiceFor(last_.wanted)[kHead];
    LaunchOnce(await, stage);
    return buffers_.logits;
  }
  few_.Write(parts, true, FewTileRows(shape_));
  const int of_graph = std::min(RowsOfGraph(rows), few_.capacity().rows);
  const bool wants = few_.wanted() > 0;
  const int runs = few_.adapter_runs() > 0 ? std::min(of_graph, kAdapterTileRows) : 0;
  last_ = {&few_,
           of_graph,
           wants ? of_graph : 0,
           true,
           runs,
           ChoiceFor(of_graph),
           stage != nullptr,
           parts[0].reads_copies()};
  assert(rows <= of_graph && few_.wanted() <= of_graph);
  if (stage != nullptr) {
    LaunchOnce(await, stage);
    return buffers_.logits;
  }
  std::unique_ptr<DeviceGraph>& graph = GraphOf(last_);
  if (graph == nullptr && --graphless_steps_ < 0) {
    graph = device_->Capture([this] { LaunchAll(last_, Nothing); });
    graphless_steps_ = graph == nullptr ? kRetryGraphAfter : 0;
  }
  if (await != nullptr) await(shape_.layers() - 1);
  if (graph == nullptr) {
    LaunchAll(last_, Nothing);  // the device has no memory for a graph
  } else {
    graph->Replay();
  }
  return buffers_.logits;
}

// Launches the programs of the step `last_` without a graph.
void DeviceStep::LaunchOnce(const AwaitLayer& await, const StageLayer& stage) {
  await_ = await == nullptr ? nullptr : &await;
  stage_ = stage == nullptr ? nullptr : &stage;
  LaunchAll(last_, Nothing);
  await_ = nullptr;
  stage_ = nullptr;
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
  const bool has_graph = last_.splits && !last_.is_staged && GraphOf(last_) != nullptr;
  if (has_graph) return GraphOf(last_)->Replay();
  LaunchAll(last_, Nothing);
}

void DeviceStep::RunSlowly(const Before& before) { LaunchAll(last_, before); }

const DeviceMatrix& DeviceStep::MatrixOf(StepProduct product, int layer) const {
  const DeviceLayer& of = model_->layers[static_cast<size_t>(layer)];
  const DeviceMatrix* all[] = {&of.qkv, &of.out, &of.gate_up, &of.down, &model_->head};
  return *all[product];
}

DeviceStep::Ends DeviceStep::EndsOf(StepProduct product, int rows) const {
  const bool combines = rows <= few_.capacity().rows && CombineQuantizes();
  const Ends all[] = {
      {buffers_.normed, shape_.hidden, buffers_.qkv, shape_.qkv(), true},
      {buffers_.attended, shape_.attended(), buffers_.projected, shape_.hidden, combines},
      {buffers_.normed, shape_.hidden, buffers_.gated, shape_.intermediate, true},
      {buffers_.gated, shape_.intermediate, buffers_.projected, shape_.hidden, false},
      {buffers_.normed, shape_.hidden, buffers_.logits, shape_.vocabulary, false}};
  return all[product];
}

void DeviceStep::Multiply(ProductKind kind, int tiling, bool is_pair, const DeviceMatrix& matrix,
                          const Ends& ends, int rows, const int32_t* row_numbers, float softcap) {
  assert(rows >= 1 && matrix.inputs <= ends.x_stride && matrix.outputs <= ends.y_stride);
  const ProductArguments product = {matrix, ends.x,        row_numbers,   ends.y,
                                    rows,   ends.x_stride, ends.y_stride, softcap};
  const ProductKind of_matrix = KindOf(matrix);
  if (kind != of_matrix) {
    kind = of_matrix;
    tiling =
        ChooseTiling(kind, rows, matrix, is_pair, device_->processors(), device_->shared_bytes());
  }
  if (kind == ProductKind::kInteger) {
    assert(row_numbers == nullptr || !ends.is_quantized);
    return LaunchIntegers({product, QuantizedFor(matrix, rows), is_pair}, tiling,
                          ends.is_quantized);
  }
  device_->Launch(ProductNumber(kind, tiling, is_pair), &product,
                  BlocksOf(FactsOf(kind, tiling), rows, matrix.columns));
}

void DeviceStep::LaunchProduct(StepProduct product, int layer, int tiling, int rows,
                               const int32_t* row_numbers) {
  const ProductKind kind = KindFor(product, rows);
  if (kind == ProductKind::kWarpgroup) return LaunchWarpgroups(product, layer, tiling, rows);
  Multiply(kind, tiling, product == kGateUp, MatrixOf(product, layer), EndsOf(product, rows), rows,
           row_numbers, product == kHead ? shape_.logit_softcap : 0);
}

void DeviceStep::LaunchWarpgroups(StepProduct product, int layer, int tiling, int rows) {
  const int64_t pitch = PackedPitch();
  auto* const memory = reinterpret_cast<uint16_t*>(buffers_.gated);
  const Bf16Rows gated = {memory, static_cast<int>(pitch)},
                 packed = {memory + pitch * WidestInput(shape_), static_cast<int>(pitch)};
  const Ends ends = EndsOf(product, rows);
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

void DeviceStep::LaunchAdapters(const Form& form, int layer, StepProduct product) {
  if (form.adapter_runs == 0 || !adapters_.Changes(product)) return;
  const Ends ends = EndsOf(product, form.rows);
  adapters_.Launch({form.plan->table(), form.rows, form.adapter_runs}, layer, product, ends.x,
                   ends.y);
}

// Launches a product and adds the products of adapters, which read and change rows in float32.
void DeviceStep::LaunchInLayer(const Form& form, int layer, StepProduct product) {
  const int tiling = form.choice[product];
  if (form.adapter_runs == 0) return LaunchProduct(product, layer, tiling, form.rows);
  const bool is_pair = product == kGateUp;
  DeviceMatrix matrix = MatrixOf(product, layer);
  Ends ends = EndsOf(product, form.rows);
  const bool splits_pair = is_pair && adapters_.Changes(kGateUp);
  if (splits_pair) {  // the products of both matrices, without GELU
    matrix.outputs = ends.y_stride = matrix.columns;
    ends.y = adapters_.pairs();
  }
  Multiply(KindOf(MatrixOf(product, 0)), tiling, is_pair && !splits_pair, matrix, ends, form.rows,
           nullptr, 0);
  LaunchAdapters(form, layer, product);
}

void DeviceStep::LaunchIntegers(IntegerArguments product, int tiling, bool are_quantized) {
  const DeviceMatrix& matrix = product.matrix;
  if (!are_quantized) {
    device_->Launch(kQuantizeProgram, &product,
                    QuantizeProgram::Blocks(product.rows, matrix.inputs));
  }
  device_->Launch(IntegerProductNumber(matrix.form, tiling), &product,
                  BlocksOf(IntegerFactsOf(tiling), product.rows, matrix.columns));
}

void DeviceStep::AllocateQuantized(int rows) {
  if (!model_->has_integers) return;
  const int64_t inputs = std::max({shape_.hidden, shape_.attended(), shape_.intermediate});
  const int64_t blocks =
      IntegerBlocks(static_cast<int>(inputs)) * int64_t{IntegerRows::PaddedRows(rows)};
  quantized_.ints = arena_.Take<unsigned char>(static_cast<size_t>(blocks * IntegerTile::kInputs));
  quantized_.scales = NewFloats(blocks);
}

void DeviceStep::LaunchNorm(const Form& form, const float* y_norm, const float* x_norm,
                            const DeviceMatrix* next) {
  AddNormProgram norm;
  norm.table = form.plan->table();
  norm.columns = shape_.hidden;
  norm.epsilon = shape_.epsilon;
  norm.y = buffers_.projected;
  norm.y_norm = y_norm;
  norm.x_norm = x_norm;
  norm.x = buffers_.x;
  norm.normed = buffers_.normed;
  if (next != nullptr) norm.quantized = QuantizedFor(*next, form.rows);
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
                         shape_.kv_is_bf16,
                         model_->multiplies_bf16};
  if (await_ != nullptr) (*await_)(layer);
  before("heads", layer);
  const DeviceLayer& weights = model_->layers[static_cast<size_t>(layer)];
  const HeadNormProgram heads = {
      form.plan->table(),     place,          is_global,      form.rows,
      shape_.epsilon,         weights.q_norm, weights.k_norm, model_->cos[is_global],
      model_->sin[is_global], buffers_.qkv};
  Launch(device_, heads, HeadNormProgram::Blocks(form.rows, shape_.heads, shape_.kv_heads));
  if (stage_ != nullptr) (*stage_)(layer);
  before("attend", layer);
  const int tile_rows = form.plan->tile_rows();
  AnyAttend attend;
  attend.table = form.plan->table();
  attend.place = place;
  if (form.reads_copies) attend.place.offset *= 2;  // slices of the same values in float32
  attend.is_global = is_global;
  attend.softcap = shape_.attention_softcap;
  attend.qkv = buffers_.qkv;
  attend.attended = buffers_.attended;
  attend.states = states_;
  const int most = form.plan->capacity().items * shape_.kv_heads;
  const bool is_bf16 = shape_.kv_is_bf16 && !form.reads_copies;
  device_->Launch(AttendNumber(tile_rows, is_bf16, model_->multiplies_bf16), &attend,
                  std::min(2 * device_->processors(), most));
  if (!form.splits) return;
  before("combine", layer);
  const CombineProgram combine = {
      form.plan->table(),
      place,
      is_global,
      model_->multiplies_bf16 ? place.sharers : tile_rows,
      states_,
      buffers_.attended,
      CombineQuantizes() ? QuantizedFor(weights.out, form.rows) : IntegerRows()};
  Launch(device_, combine, form.rows * shape_.heads);
}

void DeviceStep::LaunchLayer(const Form& form, int layer, const Before& before) {
  const DeviceLayer& weights = model_->layers[static_cast<size_t>(layer)];
  const bool is_last = layer + 1 == shape_.layers();
  const auto product = [&](const char* name, StepProduct of) {
    before(name, layer);
    LaunchInLayer(form, layer, of);
  };
  product("qkv", kQkv);
  LaunchAttention(form, layer, before);
  product("out", kOut);
  before("norm 1", layer);
  LaunchNorm(form, weights.post_attention_norm, weights.pre_feedforward_norm, &weights.gate_up);
  product("gate, up", kGateUp);
  product("down", kDown);
  before("norm 2", layer);
  const DeviceLayer* const next = is_last ? nullptr : &weights + 1;
  LaunchNorm(form, weights.post_feedforward_norm, is_last ? model_->final_norm : next->input_norm,
             is_last ? nullptr : &next->qkv);
}

void DeviceStep::LaunchAll(const Form& form, const Before& before) {
  assert(form.plan != nullptr && form.rows >= 1 && form.wanted <= form.rows);
  device_->SetOverlap(form.rows <= overlap_rows_ && !form.is_staged);
  before("embedding", 0);
  EmbedProgram embed;
  embed.embedding = model_->head;
  embed.table = form.plan->table();
  embed.norm = model_->layers[0].input_norm;
  embed.scale = shape_.embedding_scale;
  embed.epsilon = shape_.epsilon;
  embed.x = buffers_.x;
  embed.normed = buffers_.normed;
  embed.quantized = QuantizedFor(model_->layers[0].qkv, form.rows);
  Launch(device_, embed, form.rows);
  for (int layer = 0; layer < shape_.layers(); ++layer) LaunchLayer(form, layer, before);
  if (form.wanted == 0) return;
  before("head", 0);
  LaunchProduct(kHead, 0, form.choice[kHead], form.wanted, form.plan->table().wanted);
}

}  // namespace hearth
