#include "worker/kernels/fused_products.h"

#include <algorithm>
#include <cassert>

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

// Maximum tiles of one part. It is half of kPartTiles in product.cc, because a part holds the
// results of two products on the stack.
constexpr int64_t kGeluPartTiles = 16;

struct GeluProductCall {
  ConstRows x;
  const PackedWeights *gate, *up;
  Rows y;
  Workspace* workspace;
  KernelPhases* phases;
};

}  // namespace hearth
#endif  // HEARTH_WORKER_KERNELS_FUSED_PRODUCTS_CALL_

HWY_BEFORE_NAMESPACE();
namespace hearth {
namespace HWY_NAMESPACE {

#if HEARTH_KERNELS_VECTORS
namespace {

// gate = gelu(gate) * up, both [width].
HWY_INLINE void GeluTimesPanel(float* gate, const float* up, int64_t width) {
  for (int64_t at = 0; at < width; at += kLanes) {
    const V value = hn::Mul(GeluOf(hn::Load(D(), gate + at)), hn::Load(D(), up + at));
    hn::Store(value, D(), gate + at);
  }
}

}  // namespace

void GeluProductForTarget(const GeluProductCall& call) {
  const int64_t panels = call.gate->panels();
  const int64_t tiles = product::Packed(call.x, *call.gate, call.workspace).tiles;
  const int64_t part_tiles = product::PartTiles(*call.gate, kGeluPartTiles);
  const int64_t groups = (tiles + part_tiles - 1) / part_tiles;
  const int64_t run = call.x.rows > 1 ? 1 : product::RowPanels(*call.gate);
  const int64_t runs = (panels + run - 1) / run;
  product::AddPacking(call.x, *call.gate, call.workspace, call.phases);
  call.phases->Add(runs * groups, [call, panels, tiles, part_tiles, run, runs](int64_t part) {
    const FloatMode mode;
    const PackedRows x = product::Packed(call.x, *call.gate, call.workspace);
    const int64_t first = part / runs * part_tiles, end = std::min(first + part_tiles, tiles);
    const int64_t first_row = x.FirstRow(first), rows = x.FirstRow(end) - first_row;
    const int64_t begin = part % runs * run, count = std::min(run, panels - begin);
    constexpr int64_t kFloats = kGeluPartTiles * product::kTileRows * product::kWidth;
    alignas(kKernelAlignBytes) float gate[kFloats], up[kFloats];
    // read the gate matrix first, then the up matrix, each in one memory stream
    for (const bool is_gate : {true, false}) {
      for (int64_t i = 0; i < count; ++i) {
        product::PanelOfRows(x, is_gate ? *call.gate : *call.up, begin + i, first, end,
                             (is_gate ? gate : up) + i * rows * product::kWidth);
      }
    }
    for (int64_t i = 0; i < count * rows; ++i) {
      const int64_t panel = begin + i / rows, at = i * product::kWidth;
      GeluTimesPanel(gate + at, up + at, call.gate->PanelWidth(panel));
      std::memcpy(call.y.Row(first_row + i % rows) + panel * product::kWidth, gate + at,
                  static_cast<size_t>(call.gate->PanelReal(panel)) * sizeof(float));
    }
  });
}

#else  // targets without vector FMA

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

#endif  // HEARTH_KERNELS_VECTORS

}  // namespace HWY_NAMESPACE
}  // namespace hearth
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hearth {

HWY_EXPORT(GeluProductForTarget);

void AddGeluProduct(const ConstRows& x, const PackedWeights& gate, const PackedWeights& up,
                    const Rows& y, Workspace* workspace, KernelPhases* phases) {
  assert(x.rows == y.rows && gate.type() == up.type() && gate.arithmetic() == up.arithmetic());
  assert(gate.inputs() == up.inputs() && gate.outputs() == up.outputs());
  if (x.rows == 0) return;
  HWY_DYNAMIC_DISPATCH(GeluProductForTarget)
  (GeluProductCall{x, &gate, &up, y, workspace, phases});
}

}  // namespace hearth
#endif  // HWY_ONCE
