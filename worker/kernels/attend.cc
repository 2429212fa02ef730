// Attention is divided into tiles of at most sixteen rows: the query heads that share a KV head,
// for a few tokens. If there are many tiles, one task computes all splits of one tile. If there are
// few tiles, as in decoding, one task computes one split of one tile, and a second loop combines
// the results in the workspace. Both ways use the same order of operations. A split is the tokens
// of one KV block.
#include "worker/kernels/attend.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "worker/kernels/attend_plan.h"
#include "worker/kernels/base/element.h"
#include "worker/kernels/float_mode.h"
#include "worker/kernels/fused_attend.h"
#include "worker/kernels/highway_targets.h"
#include "worker/kernels/quantized/quantized_plane.h"
#include "worker/kernels/reference.h"

// Highway compiles this file once for each target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/kernels/attend.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "worker/kernels/vectors-inl.h"

#ifndef HEARTH_WORKER_KERNELS_ATTEND_CALL_
#define HEARTH_WORKER_KERNELS_ATTEND_CALL_
namespace hearth {

// With at least this many tiles, every thread of a worker has a task.
constexpr int64_t kEnoughTiles = 16;

struct AttendCall {
  AttendShape shape;
  std::vector<AttendSequence> sequences;
  std::vector<AttendTile> tiles;  // point into `sequences`
  ConstRows queries;
  Rows out;
  Workspace* workspace;

  int64_t rows_of(const AttendTile& tile) const { return tile.tokens * shape.sharers(); }
  int64_t position(const AttendTile& tile, int64_t i) const {
    return tile.position + i / shape.sharers();
  }
  int64_t column(const AttendTile& tile, int64_t i) const {
    return (tile.kv_head * shape.sharers() + i % shape.sharers()) * shape.head_dim;
  }
  const float* query(const AttendTile& tile, int64_t i) const {
    return queries.Row(tile.row + i / shape.sharers()) + column(tile, i);
  }
  float* result(const AttendTile& tile, int64_t i) const {
    return out.Row(tile.row + i / shape.sharers()) + column(tile, i);
  }
};

// Returns a buffer of the calling thread for the dequantized keys or values of a split:
// [split][head_dim].
inline float* SealedRoom(const AttendShape& shape) {
  thread_local Workspace room;
  return room.Floats(static_cast<size_t>(shape.split * shape.head_dim));
}

using SharedAttendCall = std::shared_ptr<const AttendCall>;

}  // namespace hearth
#endif  // HEARTH_WORKER_KERNELS_ATTEND_CALL_

HWY_BEFORE_NAMESPACE();
namespace hearth {
namespace HWY_NAMESPACE {

#if HEARTH_KERNELS_VECTORS

constexpr int kScoreRows = HWY_TARGET == HWY_AVX3 ? 4 : 1, kScoreKeys = 4;
constexpr int kValueRows = 4, kValueVectors = HWY_TARGET == HWY_AVX3 ? 4 : 2;

using Quarter = hn::FixedTag<float, 4>;

// Returns, for each of four keys, the tree sum (TreeSum) of its sixteen partial sums.
HWY_INLINE hn::Vec<Quarter> TreeSums(const Sixteen (&sums)[kScoreKeys]) {
  const Quarter d;
  hn::Vec<Quarter> four[kScoreKeys];
#pragma GCC unroll 4
  for (int i = 0; i < kScoreKeys; ++i) four[i] = FourSums(sums[i]);
  const auto first =
      hn::Add(hn::ConcatLowerLower(d, four[1], four[0]), hn::ConcatUpperUpper(d, four[1], four[0]));
  const auto second =
      hn::Add(hn::ConcatLowerLower(d, four[3], four[2]), hn::ConcatUpperUpper(d, four[3], four[2]));
  return hn::Add(hn::ConcatEven(d, second, first), hn::ConcatOdd(d, second, first));
}

// Computes the scores of R queries with four keys and writes them to scores[r][key .. key + 3].
template <int R, typename T>
HWY_INLINE void ScoresOf(const float* const* queries, const T* keys, int64_t head_dim,
                         float* const* scores, int64_t key) {
  Sixteen sums[R][kScoreKeys];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int k = 0; k < kScoreKeys; ++k) Clear(sums[r][k]);
  }
  for (int64_t at = 0; at < head_dim; at += kSums) {
#pragma GCC unroll 2
    for (int v = 0; v < kSumVectors; ++v) {
      V wide[kScoreKeys];
#pragma GCC unroll 4
      for (int k = 0; k < kScoreKeys; ++k) {
        wide[k] = Widen(D(), keys + k * head_dim + at + v * kLanes);
      }
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const V query = hn::LoadU(D(), queries[r] + at + v * kLanes);
#pragma GCC unroll 4
        for (int k = 0; k < kScoreKeys; ++k) {
          sums[r][k][v] = hn::MulAdd(query, wide[k], sums[r][k][v]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) hn::StoreU(TreeSums(sums[r]), Quarter(), scores[r] + key);
}

// Adds weight * value for the keys [begin, end) to the outputs of R rows, for N vectors of columns.
template <int R, int N, typename T>
HWY_INLINE void ValuesOf(const float* const* weights, const T* values, int64_t head_dim,
                         int64_t begin, int64_t end, float* const* outputs, int64_t column) {
  V sums[R][N];
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) sums[r][n] = hn::LoadU(D(), outputs[r] + column + n * kLanes);
  }
  for (int64_t key = begin; key < end; ++key) {
    const T* value = values + key * head_dim + column;
    V wide[N];
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) wide[n] = Widen(D(), value + n * kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const V weight = Constant(weights[r][key]);
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) sums[r][n] = hn::MulAdd(weight, wide[n], sums[r][n]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) hn::StoreU(sums[r][n], D(), outputs[r] + column + n * kLanes);
  }
}

template <int R, typename T>
HWY_NOINLINE void AddValues(const float* const* weights, const T* values, int64_t head_dim,
                            int64_t begin, int64_t end, float* const* outputs) {
  if (begin >= end) return;
  constexpr int64_t kStep = kValueVectors * kLanes;
  int64_t column = 0;
  for (; column + kStep <= head_dim; column += kStep) {
    ValuesOf<R, kValueVectors>(weights, values, head_dim, begin, end, outputs, column);
  }
  for (; column < head_dim; column += kLanes) {
    ValuesOf<R, 1>(weights, values, head_dim, begin, end, outputs, column);
  }
}

// Dequantizes columns [column, column + kLanes) of a token. The codes of these columns lie in
// adjacent bytes, all at the same bit offset.
HWY_INLINE V DequantizeLanes(const QuantizedPlane& plane, const std::byte* codes,
                             const BFloat16* steps, const BFloat16* leasts, int64_t token,
                             int64_t column) {
  const hn::Rebind<uint8_t, D> narrow;
  const hn::Rebind<int32_t, D> wide;
  const int64_t width = plane.width();
  const int shift = static_cast<int>(column / width) * static_cast<int>(plane.form.bits);
  const auto bytes =
      hn::LoadU(narrow, reinterpret_cast<const uint8_t*>(codes) + token * width + column % width);
  const auto mask = hn::Set(wide, (1 << plane.form.bits) - 1);
  const auto numbers = hn::And(hn::ShiftRightSame(hn::PromoteTo(wide, bytes), shift), mask);
  const int64_t group = plane.GroupOf(token, column);
  if (plane.axis == 0) {  // all lanes are in one group, because kLanes divides the group size
    return hn::MulAdd(hn::ConvertTo(D(), numbers), Constant(WidenOne(steps[group])),
                      Constant(WidenOne(leasts[group])));
  }
  return hn::MulAdd(hn::ConvertTo(D(), numbers), Widen(D(), steps + group),
                    Widen(D(), leasts + group));
}

inline void DequantizePlane(const QuantizedPlane& plane, const std::byte* from, float* to) {
  const int64_t width = plane.width(), group = plane.form.group;
  if (width % kLanes != 0 || (plane.axis == 0 && group % kLanes != 0)) {
    return reference::DequantizePlane(plane, from, to);
  }
  const auto* steps = reinterpret_cast<const BFloat16*>(from + plane.tokens * width);
  const BFloat16* leasts = steps + plane.tokens * plane.head_dim / group;
  for (int64_t token = 0; token < plane.tokens; ++token) {
    for (int64_t column = 0; column < plane.head_dim; column += kLanes) {
      hn::StoreU(DequantizeLanes(plane, from, steps, leasts, token, column), D(),
                 to + token * plane.head_dim + column);
    }
  }
}
namespace {

constexpr int64_t kTileMax = AttendShape::kSharersMax;

// Attention over one split for one tile. A row's sum of weights is 0 if the row attends to no key
// of the split; otherwise it is at least 1, or NaN.
template <typename T>
class SplitOfTile {
 public:
  SplitOfTile(const AttendCall& call, const AttendTile& tile, int64_t split)
      : shape_(call.shape),
        rows_(call.rows_of(tile)),
        decodes_(tile.tokens == 1 && !tile.IsQuantized(call.shape, split)) {
    const int64_t head_bytes =
        shape_.split * shape_.head_dim * static_cast<int64_t>(ElementBytes(shape_.kv_type));
    if (tile.IsQuantized(shape_, split)) {
      sealed_ = tile.sequence->sealed[split];
      quantization_ = tile.sequence->quantization;
      kv_head_ = tile.kv_head;
    } else {
      const AttendSequence& of = *tile.sequence;
      const std::byte* block = (tile.IsSealed(shape_, split) ? of.sealed : of.blocks)[split];
      const std::byte* keys = block + tile.kv_head * head_bytes;
      keys_ = reinterpret_cast<const T*>(keys);
      values_ = reinterpret_cast<const T*>(keys + shape_.kv_heads * head_bytes);
    }
    for (int64_t i = 0; i < rows_; ++i) {
      seen_[i] = KeysSeen(shape_, call.position(tile, i), split);
      queries_[i] = call.query(tile, i);
      scores_[i] = scores_room_ + i * shape_.split;
    }
  }

  void Compute(const AttendState& state) {
    if (sealed_ != nullptr) keys_ = Opened(0, quantization_.axis_key);
    Score();
    for (int64_t i = 0; i < rows_; ++i) Weigh(i, &state.largest[i], &state.sums[i]);
    if (sealed_ != nullptr) values_ = Opened(shape_.kv_heads, quantization_.axis_value);
    float* outputs[kTileMax];
    for (int64_t i = 0; i < rows_; ++i) {
      outputs[i] = state.outputs + i * shape_.head_dim;
      std::fill_n(outputs[i], shape_.head_dim, 0.0f);
    }
    if (shape_.fuses) {
      return FusedValues<T>(scores_, seen_, rows_, {values_, shape_.head_dim, any_}, outputs);
    }
    int64_t i = 0;
    for (; i + kValueRows <= rows_; i += kValueRows) SumValues(i, outputs + i);
    for (; i < rows_; ++i) {
      AddValues<1>(scores_ + i, values_, shape_.head_dim, seen_[i].begin, seen_[i].end,
                   outputs + i);
    }
  }

 private:
  // Dequantizes the keys or the values of this KV head into the thread's buffer. Keys and values
  // use the same buffer, because the keys are no longer needed when the values are dequantized.
  const T* Opened(int64_t first_plane, int axis) const {
    float* room = SealedRoom(shape_);
    const QuantizedPlane plane{quantization_, axis, shape_.split, shape_.head_dim};
    const int64_t number = first_plane + kv_head_;
    DequantizePlane(plane, sealed_ + number * static_cast<int64_t>(plane.bytes()), room);
    return reinterpret_cast<const T*>(room);  // T is float
  }

  // Reads the keys and values of four tokens, one cache line after the other, to bring them into
  // the cache. In decoding, nothing has read the KV blocks before, and the CPU does not predict the
  // strides of the loops below; reading whole lines first is twice as fast.
  void FetchRows(int64_t key) const {
    constexpr int64_t kLine = 64 / sizeof(T);
    const int64_t begin = key * shape_.head_dim, end = (key + kScoreKeys) * shape_.head_dim;
    for (const T* rows : {keys_, values_}) {
      for (int64_t at = begin; at < end; at += kLine) {
        (void)*reinterpret_cast<const volatile char*>(rows + at);
      }
    }
  }

  // Computes the scores of all keys that at least one row attends to. The range of keys is extended
  // to multiples of sixteen.
  void Score() {
    int64_t begin = shape_.split, end = 0;
    for (int64_t i = 0; i < rows_; ++i) {
      if (seen_[i].none()) continue;
      begin = std::min(begin, seen_[i].begin / kSums * kSums);
      end = std::max(end, (seen_[i].end + kSums - 1) / kSums * kSums);
      any_ = {std::min(any_.begin, seen_[i].begin), std::max(any_.end, seen_[i].end)};
    }
    if (shape_.fuses) {
      return FusedScores<T>(queries_, rows_, {keys_, shape_.head_dim, any_}, begin, end, scores_);
    }
    for (int64_t key = begin; key < end; key += kScoreKeys) {
      const T* keys = keys_ + key * shape_.head_dim;
      if (decodes_) FetchRows(key);
      int64_t i = 0;
      for (; i + kScoreRows <= rows_; i += kScoreRows) {
        ScoresOf<kScoreRows>(queries_ + i, keys, shape_.head_dim, scores_ + i, key);
      }
      for (; i < rows_; ++i) ScoresOf<1>(queries_ + i, keys, shape_.head_dim, scores_ + i, key);
    }
  }

  // Applies the softcap to all scores from `begin` to `end`. Call before Weigh sets the scores
  // outside a row's range to -infinity: the softcap would make -infinity finite.
  void Cap(float* begin, const float* end) const {
    const V cap = Constant(shape_.softcap);
    for (float* score = begin; score < end; score += kLanes) {
      hn::StoreU(hn::Mul(TanhOf(hn::Div(hn::LoadU(D(), score), cap)), cap), D(), score);
    }
  }

  // Turns scores into softmax weights; keys that the row does not attend to get weight 0.
  void Weigh(int64_t i, float* largest, float* sum) {
    *largest = -kInfinity;
    *sum = 0;
    if (seen_[i].none()) return;
    float* scores = scores_[i];
    const int64_t begin = seen_[i].begin / kSums * kSums;
    const int64_t end = (seen_[i].end + kSums - 1) / kSums * kSums;
    if (shape_.softcap > 0) Cap(scores + begin, scores + end);
    std::fill(scores + begin, scores + seen_[i].begin, -kInfinity);
    std::fill(scores + seen_[i].end, scores + end, -kInfinity);
    // If a score is NaN, this maximum may ignore it; the softmax weight and the sum are NaN anyway.
    V most = Constant(-kInfinity);
    for (int64_t at = begin; at < end; at += kLanes) {
      most = hn::Max(most, hn::LoadU(D(), scores + at));
    }
    *largest = hn::GetLane(hn::MaxOfLanes(D(), most));
    Sixteen sums;
    Clear(sums);
    for (int64_t at = begin; at < end; at += kSums) {
      for (int v = 0; v < kSumVectors; ++v) {
        float* score = scores + at + v * kLanes;
        const V weight = ExpOf(hn::Sub(hn::LoadU(D(), score), Constant(*largest)));
        hn::StoreU(weight, D(), score);
        sums[v] = hn::Add(sums[v], weight);
      }
    }
    *sum = shape_.fuses ? RoundWeights(begin, end, scores) : TreeSum(sums);
  }

  // Adds weight * value for four rows that begin at row `i`: for all four rows at once over the
  // keys that all of them attend to, and for one row at a time over the keys before and after.
  void SumValues(int64_t i, float* const* outputs) {
    SeenKeys all = seen_[i];
    for (int r = 1; r < kValueRows; ++r) {
      all.begin = std::max(all.begin, seen_[i + r].begin);
      all.end = std::min(all.end, seen_[i + r].end);
    }
    const int64_t dim = shape_.head_dim;
    for (int r = 0; r < kValueRows; ++r) {
      const SeenKeys& seen = seen_[i + r];
      AddValues<1>(scores_ + i + r, values_, dim, seen.begin,
                   all.none() ? seen.end : std::min(all.begin, seen.end), outputs + r);
    }
    if (all.none()) return;
    AddValues<kValueRows>(scores_ + i, values_, dim, all.begin, all.end, outputs);
    for (int r = 0; r < kValueRows; ++r) {
      AddValues<1>(scores_ + i + r, values_, dim, all.end, seen_[i + r].end, outputs + r);
    }
  }

  const AttendShape& shape_;
  const int64_t rows_;
  const bool decodes_;
  const T *keys_ = nullptr, *values_ = nullptr;
  const std::byte* sealed_ = nullptr;  // quantized block; null if the split is not quantized
  KvQuantization quantization_;
  int64_t kv_head_ = 0;
  SeenKeys seen_[kTileMax];
  SeenKeys any_ = {AttendShape::kSplitMax, 0};  // the keys that at least one row attends to
  const float* queries_[kTileMax];
  float* scores_[kTileMax];  // [row][key]: scores, later softmax weights
  alignas(kKernelAlignBytes) float scores_room_[kTileMax * AttendShape::kSplitMax];
};

void Combine(const AttendState& split, int64_t rows, int64_t head_dim, const AttendState& state) {
  for (int64_t i = 0; i < rows; ++i) {
    // 0: the row attends to no key of the split. `largest` would not show this, because a score may
    // be -infinity.
    if (split.sums[i] == 0) continue;
    const float largest = std::max(state.largest[i], split.largest[i]);
    const V before = ExpOf(Constant(state.largest[i] - largest));
    const V now = ExpOf(Constant(split.largest[i] - largest));
    state.largest[i] = largest;
    state.sums[i] = hn::GetLane(
        hn::MulAdd(Constant(state.sums[i]), before, hn::Mul(Constant(split.sums[i]), now)));
    float* outputs = state.outputs + i * head_dim;
    const float* more = split.outputs + i * head_dim;
    for (int64_t at = 0; at < head_dim; at += kLanes) {
      const V added = hn::Mul(hn::LoadU(D(), more + at), now);
      hn::StoreU(hn::MulAdd(hn::LoadU(D(), outputs + at), before, added), D(), outputs + at);
    }
  }
}

void Begin(int64_t rows, int64_t head_dim, const AttendState& state) {
  std::fill_n(state.largest, rows, -kInfinity);
  std::fill_n(state.sums, rows, 0.0f);
  std::fill_n(state.outputs, rows * head_dim, 0.0f);
}

void Finish(const AttendCall& call, const AttendTile& tile, const AttendState& state) {
  const int64_t head_dim = call.shape.head_dim;
  for (int64_t i = 0; i < call.rows_of(tile); ++i) {
    const V inverse = Constant(1.0f / state.sums[i]);
    const float* outputs = state.outputs + i * head_dim;
    float* result = call.result(tile, i);
    for (int64_t at = 0; at < head_dim; at += kLanes) {
      hn::StoreU(hn::Mul(hn::LoadU(D(), outputs + at), inverse), D(), result + at);
    }
  }
}

// Computes one split of a tile. If the split is quantized, its keys and values are float32 after
// dequantization, so T does not apply.
template <typename T>
void ComputeSplit(const AttendCall& call, const AttendTile& tile, int64_t split,
                  const AttendState& state) {
  if (tile.IsQuantized(call.shape, split)) {
    SplitOfTile<float>(call, tile, split).Compute(state);
  } else {
    SplitOfTile<T>(call, tile, split).Compute(state);
  }
}

// Computes all splits of one tile and combines them.
template <typename T>
void WholeTile(const AttendCall& call, const AttendTile& tile) {
  constexpr int64_t kRoom = kTileMax * (AttendShape::kHeadDimMax + 2);
  alignas(kKernelAlignBytes) float rooms[2][kRoom];
  const AttendState one(rooms[0]), all(rooms[1]);
  const int64_t rows = call.rows_of(tile);
  Begin(rows, call.shape.head_dim, all);
  for (int64_t split = 0; split < tile.splits; ++split) {
    ComputeSplit<T>(call, tile, tile.first_split + split, one);
    Combine(one, rows, call.shape.head_dim, all);
  }
  Finish(call, tile, all);
}

// For few tiles: a first loop computes each split of each tile as a separate task and writes its
// softmax state to the workspace; a second loop combines the states of each tile.
template <typename T>
void AddSplits(const SharedAttendCall& shared, KernelPhases* phases) {
  const int64_t tiles = static_cast<int64_t>(shared->tiles.size());
  int64_t most_splits = 0;
  for (const AttendTile& tile : shared->tiles) most_splits = std::max(most_splits, tile.splits);
  const int64_t head_dim = shared->shape.head_dim, room = AttendState::Floats(head_dim);
  const size_t floats = static_cast<size_t>(tiles * (most_splits + 1) * room);
  shared->workspace->Floats(floats);  // allocate before the loops run in parallel
  phases->Add(tiles * most_splits, [=](int64_t part) {
    const FloatMode mode;
    const AttendCall& call = *shared;
    const AttendTile& tile = call.tiles[static_cast<size_t>(part / most_splits)];
    const int64_t split = part % most_splits;
    if (split >= tile.splits) return;
    const AttendState state(call.workspace->Floats(floats) + part * room);
    ComputeSplit<T>(call, tile, tile.first_split + split, state);
  });
  phases->Add(tiles, [=](int64_t part) {
    const FloatMode mode;
    const AttendCall& call = *shared;
    float* states = call.workspace->Floats(floats);
    const AttendTile& tile = call.tiles[static_cast<size_t>(part)];
    const AttendState all(states + (tiles * most_splits + part) * room);
    Begin(call.rows_of(tile), head_dim, all);
    for (int64_t split = 0; split < tile.splits; ++split) {
      Combine(AttendState(states + (part * most_splits + split) * room), call.rows_of(tile),
              head_dim, all);
    }
    Finish(call, tile, all);
  });
}

template <typename T>
void AttendOf(const SharedAttendCall& shared, KernelPhases* phases) {
  const int64_t tiles = static_cast<int64_t>(shared->tiles.size());
  if (tiles < kEnoughTiles) return AddSplits<T>(shared, phases);
  phases->Add(tiles, [shared](int64_t part) {
    const FloatMode mode;
    WholeTile<T>(*shared, shared->tiles[static_cast<size_t>(part)]);
  });
}

}  // namespace

void AttendForTarget(const SharedAttendCall& call, KernelPhases* phases) {
  if (call->shape.kv_type == ElementType::kBFloat16) return AttendOf<BFloat16>(call, phases);
  AttendOf<float>(call, phases);
}

#else  // targets without vector FMA

void AttendForTarget(const SharedAttendCall& shared, KernelPhases* phases) {
  phases->Add(static_cast<int64_t>(shared->tiles.size()), [shared](int64_t part) {
    const FloatMode mode;
    const AttendCall& call = *shared;
    const AttendTile& tile = call.tiles[static_cast<size_t>(part)];
    for (int64_t i = 0; i < call.rows_of(tile); ++i) {
      reference::AttendRow(call.shape, *tile.sequence, tile.kv_head, call.position(tile, i),
                           call.query(tile, i), call.result(tile, i));
    }
  });
}

#endif  // HEARTH_KERNELS_VECTORS

}  // namespace HWY_NAMESPACE
}  // namespace hearth
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hearth {

HWY_EXPORT(AttendForTarget);

void AddAttend(const AttendShape& shape, absl::Span<const AttendSequence> sequences,
               const ConstRows& queries, const Rows& out, Workspace* workspace,
               KernelPhases* phases) {
  assert(shape.kv_heads > 0 && shape.heads % shape.kv_heads == 0);
  assert(shape.sharers() <= AttendShape::kSharersMax);
  assert(shape.head_dim % 16 == 0 && shape.head_dim <= AttendShape::kHeadDimMax);
  assert(shape.split % 16 == 0 && shape.split <= AttendShape::kSplitMax);
  assert(shape.kv_type == ElementType::kFloat32 || shape.kv_type == ElementType::kBFloat16);
  const auto call = std::make_shared<AttendCall>();
  *call = {shape, {sequences.begin(), sequences.end()}, {}, queries, out, workspace};
  call->tiles = PlanTiles(shape, call->sequences);
  if (call->tiles.empty()) return;
  HWY_DYNAMIC_DISPATCH(AttendForTarget)(call, phases);
}

}  // namespace hearth
#endif  // HWY_ONCE
