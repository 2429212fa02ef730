#include "worker/kernels/fused_products.h"

#include <algorithm>
#include <cassert>
#include <vector>

#include "worker/kernels/float_mode.h"
#include "worker/kernels/highway_targets.h"
#include "worker/kernels/reference.h"

// Highway compiles this file once for each target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/kernels/fused_products.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "worker/kernels/product-inl.h"
#include "worker/kernels/vectors-inl.h"

#ifndef HEARTH_WORKER_KERNELS_FUSED_PRODUCTS_CALL_
#define HEARTH_WORKER_KERNELS_FUSED_PRODUCTS_CALL_
namespace hearth {

// Tiles of one part at most; as product.cc has them, but twice as many chains wait.
constexpr int64_t kGeluPartTiles = 16, kTopPartTiles = 8;
// Panels of one part of a top: enough that merging the parts' tops is nothing beside them.
constexpr int64_t kTopPartPanels = 16;

struct GeluProductCall {
  ConstRows x;
  const PackedWeights *gate, *up;
  Rows y;
  Workspace* workspace;
  KernelPhases* phases;
};

// A part's first outputs for one row: [part of the panels][row][count].
struct TopCall {
  ConstRows x;
  const PackedWeights* weights;
  float softcap;
  int64_t count;
  TopOutput* found;
  Workspace* workspace;
  KernelPhases* phases;

  int64_t panel_parts() const { return (weights->panels() + kTopPartPanels - 1) / kTopPartPanels; }
  TopOutput* Found(int64_t panel_part, int64_t row) const {
    return found + (panel_part * x.rows + row) * count;
  }
};

// The first `room` of the added outputs, in order.
class TopList {
 public:
  TopList(TopOutput* list, int64_t room) : list_(list), room_(room) {}
  bool full() const { return size_ == room_; }
  int64_t size() const { return size_; }
  // REQUIRES: full.
  const TopOutput& last() const {
    assert(full());
    return list_[room_ - 1];
  }
  void Add(const TopOutput& one) {
    if (full() && !ComesBefore(one, last())) return;
    if (!full()) ++size_;
    int64_t at = size_ - 1;
    for (; at > 0 && ComesBefore(one, list_[at - 1]); --at) list_[at] = list_[at - 1];
    list_[at] = one;
  }

 private:
  TopOutput* list_;
  int64_t room_, size_ = 0;
};

}  // namespace hearth
#endif  // HEARTH_WORKER_KERNELS_FUSED_PRODUCTS_CALL_

HWY_BEFORE_NAMESPACE();
namespace hearth {
namespace HWY_NAMESPACE {

#if HEARTH_KERNELS_VECTORS
namespace {

// gate = gelu(gate) * up, [width].
HWY_INLINE void GeluTimesPanel(float* gate, const float* up, int64_t width) {
  for (int64_t at = 0; at < width; at += kLanes) {
    const V value = hn::Mul(GeluOf(hn::Load(D(), gate + at)), hn::Load(D(), up + at));
    hn::Store(value, D(), gate + at);
  }
}

template <typename T>
void GeluProductOf(const GeluProductCall& call) {
  const int64_t inputs = call.gate->inputs(), panels = call.gate->panels();
  const int64_t tiles = product::Tiles(call.x.rows);
  const int64_t part_tiles = product::PartTiles(inputs, kGeluPartTiles);
  const int64_t groups = (tiles + part_tiles - 1) / part_tiles;
  product::AddPacking(call.x, inputs, call.workspace, call.phases);
  call.phases->Add(panels * groups, [call, inputs, panels, tiles, part_tiles](int64_t part) {
    const FloatMode mode;
    const PackedRows x = product::Packed(call.x, inputs, call.workspace);
    const int64_t panel = part % panels, first = part / panels * part_tiles;
    const int64_t end = std::min(first + part_tiles, tiles);
    constexpr int64_t kFloats = kGeluPartTiles * product::kTileRows * product::kWidth;
    alignas(kKernelAlignBytes) float gate[kFloats], up[kFloats];
    product::PanelOfRows<T>(x, *call.gate, panel, first, end, gate);
    product::PanelOfRows<T>(x, *call.up, panel, first, end, up);
    const int64_t width = call.gate->PanelWidth(panel);
    const size_t real_bytes = static_cast<size_t>(call.gate->PanelReal(panel)) * sizeof(float);
    for (int64_t row = x.FirstRow(first); row < x.FirstRow(end); ++row) {
      const int64_t at = (row - x.FirstRow(first)) * product::kWidth;
      GeluTimesPanel(gate + at, up + at, width);
      std::memcpy(call.y.Row(row) + panel * product::kWidth, gate + at, real_bytes);
    }
  });
}

// Whether all of a panel's values may be passed over: none comes before the list's last. Values are
// added in ascending order of outputs, so one that equals the last comes after it.
HWY_INLINE bool NoneIsGreater(const float* values, int64_t real, const TopList& top) {
  if (!top.full() || real < product::kWidth) return false;
  const V last = Constant(top.last().value);
  auto not_greater = hn::Le(hn::Load(D(), values), last);
  for (int64_t at = kLanes; at < product::kWidth; at += kLanes) {
    not_greater = hn::And(not_greater, hn::Le(hn::Load(D(), values + at), last));
  }
  return hn::AllTrue(D(), not_greater);
}

HWY_INLINE void AddPanel(float* values, int64_t first_output, int64_t real, float softcap,
                         TopList* top) {
  if (softcap > 0) {
    for (int64_t at = 0; at < product::kWidth; at += kLanes) {
      const V value = hn::Div(hn::Load(D(), values + at), Constant(softcap));
      hn::Store(hn::Mul(TanhOf(value), Constant(softcap)), D(), values + at);
    }
  }
  if (NoneIsGreater(values, real, *top)) return;
  for (int64_t i = 0; i < real; ++i) top->Add({values[i], first_output + i});
}

template <typename T>
void TopOf(const TopCall& call) {
  const int64_t panel_parts = call.panel_parts(), tiles = product::Tiles(call.x.rows);
  const int64_t groups = (tiles + kTopPartTiles - 1) / kTopPartTiles;
  product::AddPacking(call.x, call.weights->inputs(), call.workspace, call.phases);
  call.phases->Add(panel_parts * groups, [call, panel_parts, tiles](int64_t part) {
    const FloatMode mode;
    const PackedWeights& weights = *call.weights;
    const PackedRows x = product::Packed(call.x, weights.inputs(), call.workspace);
    constexpr int64_t kRows = kTopPartTiles * product::kTileRows;
    alignas(kKernelAlignBytes) float chains[kRows * product::kWidth] = {};
    const int64_t panel_part = part % panel_parts, first = part / panel_parts * kTopPartTiles;
    const int64_t end = std::min(first + kTopPartTiles, tiles);
    const int64_t first_row = x.FirstRow(first), rows = x.FirstRow(end) - first_row;
    std::vector<TopList> tops;
    for (int64_t i = 0; i < rows; ++i) {
      tops.emplace_back(call.Found(panel_part, first_row + i), call.count);
    }
    const int64_t panel_end = std::min(weights.panels(), (panel_part + 1) * kTopPartPanels);
    for (int64_t panel = panel_part * kTopPartPanels; panel < panel_end; ++panel) {
      product::PanelOfRows<T>(x, weights, panel, first, end, chains);
      for (int64_t i = 0; i < rows; ++i) {
        AddPanel(chains + i * product::kWidth, panel * product::kWidth, weights.PanelReal(panel),
                 call.softcap, &tops[static_cast<size_t>(i)]);
      }
    }
  });
}

}  // namespace

void GeluProductForTarget(const GeluProductCall& call) {
  switch (call.gate->type()) {
    case ElementType::kFloat32:
      return GeluProductOf<float>(call);
    case ElementType::kBFloat16:
      return GeluProductOf<BFloat16>(call);
    case ElementType::kFloat16:
      return GeluProductOf<Float16>(call);
    case ElementType::kInt8:
      return GeluProductOf<Int8>(call);
  }
}

void TopForTarget(const TopCall& call) {
  switch (call.weights->type()) {
    case ElementType::kFloat32:
      return TopOf<float>(call);
    case ElementType::kBFloat16:
      return TopOf<BFloat16>(call);
    case ElementType::kFloat16:
      return TopOf<Float16>(call);
    case ElementType::kInt8:
      return TopOf<Int8>(call);
  }
}

#else  // no FMA in vectors

void GeluProductForTarget(const GeluProductCall& call) {
  const int64_t panels = call.gate->panels(), width = PackedWeights::kPanelOutputs;
  call.phases->Add(panels * call.x.rows, [call, panels, width](int64_t part) {
    const FloatMode mode;
    const int64_t row = part / panels, begin = part % panels * width;
    const int64_t end = std::min(begin + width, call.gate->outputs());
    float gate[PackedWeights::kPanelOutputs], up[PackedWeights::kPanelOutputs];
    reference::ProductRow(call.x.Row(row), *call.gate, begin, end, gate);
    reference::ProductRow(call.x.Row(row), *call.up, begin, end, up);
    float* y = call.y.Row(row) + begin;
    for (int64_t i = 0; i < end - begin; ++i) y[i] = reference::Gelu(gate[i]) * up[i];
  });
}

void TopForTarget(const TopCall& call) {
  call.phases->Add(call.panel_parts() * call.x.rows, [call](int64_t part) {
    const FloatMode mode;
    const int64_t row = part / call.panel_parts(), panel_part = part % call.panel_parts();
    TopList top(call.Found(panel_part, row), call.count);
    constexpr int64_t kOutputs = kTopPartPanels * PackedWeights::kPanelOutputs;
    const int64_t begin = panel_part * kOutputs;
    const int64_t end = std::min(begin + kOutputs, call.weights->outputs());
    for (int64_t output = begin; output < end; ++output) {
      float value = 0;
      reference::ProductRow(call.x.Row(row), *call.weights, output, output + 1, &value);
      if (call.softcap > 0) value = reference::Tanh(value / call.softcap) * call.softcap;
      top.Add({value, output});
    }
  });
}

#endif  // HEARTH_KERNELS_VECTORS

}  // namespace HWY_NAMESPACE
}  // namespace hearth
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hearth {

HWY_EXPORT(GeluProductForTarget);
HWY_EXPORT(TopForTarget);

void AddGeluProduct(const ConstRows& x, const PackedWeights& gate, const PackedWeights& up,
                    const Rows& y, Workspace* workspace, KernelPhases* phases) {
  assert(x.rows == y.rows && gate.type() == up.type());
  assert(gate.inputs() == up.inputs() && gate.outputs() == up.outputs());
  if (x.rows == 0) return;
  HWY_DYNAMIC_DISPATCH(GeluProductForTarget)
  (GeluProductCall{x, &gate, &up, y, workspace, phases});
}

void GeluProduct(const ConstRows& x, const PackedWeights& gate, const PackedWeights& up,
                 const Rows& y, Workspace* workspace, ParallelFor parallel) {
  KernelPhases phases;
  AddGeluProduct(x, gate, up, y, workspace, &phases);
  phases.Run(parallel);
}

void TopOfProduct(const ConstRows& x, const PackedWeights& weights, float softcap, int64_t count,
                  absl::Span<TopOutput> top, Workspace* workspace, ParallelFor parallel) {
  assert(count >= 1 && count <= weights.outputs());
  assert(static_cast<int64_t>(top.size()) == x.rows * count);
  if (x.rows == 0) return;
  KernelPhases phases;
  TopCall call{x, &weights, softcap, count, nullptr, workspace, &phases};
  const int64_t parts = call.panel_parts();
  // Places that no part filled have the output -1.
  std::vector<TopOutput> found(static_cast<size_t>(parts * x.rows * count));
  call.found = found.data();
  HWY_DYNAMIC_DISPATCH(TopForTarget)(call);
  phases.Run(parallel);
  for (int64_t row = 0; row < x.rows; ++row) {
    TopList merged(top.data() + row * count, count);
    for (int64_t part = 0; part < parts; ++part) {
      const TopOutput* one = call.Found(part, row);
      for (int64_t i = 0; i < count && one[i].output >= 0; ++i) merged.Add(one[i]);
    }
  }
}

}  // namespace hearth
#endif  // HWY_ONCE
