#include "worker/kernels/product.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "worker/kernels/float_mode.h"
#include "worker/kernels/highway_targets.h"
#include "worker/kernels/reference.h"

// Highway compiles this file once for each target.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "worker/kernels/product.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "worker/kernels/product-inl.h"

#ifndef HEARTH_WORKER_KERNELS_PRODUCT_CALL_
#define HEARTH_WORKER_KERNELS_PRODUCT_CALL_
namespace hearth {

// Tiles of one part at most: their chains lie on the stack.
constexpr int64_t kPartTiles = 32;
// A head has thousands of panels, each over in two microseconds for one row: a part has several,
// while there are as many parts as keep any number of threads busy.
constexpr int64_t kPartPanelsMax = 8, kEnoughParts = 256;

struct ProductCall {
  ConstRows x;
  const PackedWeights* weights;
  Rows y;
  absl::Span<float* const> places;  // of y's rows one by one; empty: they are as `y` says
  Workspace* workspace;
  KernelPhases* phases;

  float* Out(int64_t row) const {
    return places.empty() ? y.Row(row) : places[static_cast<size_t>(row)];
  }
};

}  // namespace hearth
#endif  // HEARTH_WORKER_KERNELS_PRODUCT_CALL_

HWY_BEFORE_NAMESPACE();
namespace hearth {
namespace HWY_NAMESPACE {

#if HEARTH_KERNELS_VECTORS
namespace {

template <typename T>
void ProductOf(const ProductCall& call) {
  const int64_t panels = call.weights->panels(), tiles = product::Tiles(call.x.rows);
  const int64_t part_tiles = product::PartTiles(call.weights->inputs(), kPartTiles);
  const int64_t groups = (tiles + part_tiles - 1) / part_tiles;
  const int64_t run = std::clamp<int64_t>(panels * groups / kEnoughParts, 1, kPartPanelsMax);
  const int64_t runs = (panels + run - 1) / run;
  product::AddPacking(call.x, call.weights->inputs(), call.workspace, call.phases);
  call.phases->Add(runs * groups, [call, panels, tiles, part_tiles, run, runs](int64_t part) {
    const FloatMode mode;
    const PackedWeights& weights = *call.weights;
    const PackedRows x = product::Packed(call.x, weights.inputs(), call.workspace);
    // Neighbouring parts share rows: they stay in a second-level cache.
    const int64_t first = part / runs * part_tiles, end = std::min(first + part_tiles, tiles);
    alignas(kKernelAlignBytes) float chains[kPartTiles * product::kTileRows * product::kWidth];
    const int64_t begin = part % runs * run;
    for (int64_t panel = begin; panel < std::min(begin + run, panels); ++panel) {
      product::PanelOfRows<T>(x, weights, panel, first, end, chains);
      const size_t real_bytes = static_cast<size_t>(weights.PanelReal(panel)) * sizeof(float);
      for (int64_t row = x.FirstRow(first); row < x.FirstRow(end); ++row) {
        std::memcpy(call.Out(row) + panel * product::kWidth,
                    chains + (row - x.FirstRow(first)) * product::kWidth, real_bytes);
      }
    }
  });
}

}  // namespace

void ProductForTarget(const ProductCall& call) {
  product::WithElement(call.weights->type(),
                       [&call](auto element) { ProductOf<decltype(element)>(call); });
}

#else  // no FMA in vectors

void ProductForTarget(const ProductCall& call) {
  const int64_t width = PackedWeights::kPanelOutputs, panels = call.weights->panels();
  call.phases->Add(panels * call.x.rows, [call, width, panels](int64_t part) {
    const FloatMode mode;
    const int64_t row = part / panels, begin = part % panels * width;
    reference::ProductRow(call.x.data + row * call.x.stride, *call.weights, begin,
                          std::min(begin + width, call.weights->outputs()), call.Out(row) + begin);
  });
}

#endif  // HEARTH_KERNELS_VECTORS

}  // namespace HWY_NAMESPACE
}  // namespace hearth
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hearth {

HWY_EXPORT(ProductForTarget);

void AddProduct(const ConstRows& x, const PackedWeights& weights, const Rows& y,
                Workspace* workspace, KernelPhases* phases) {
  assert(x.rows == y.rows);
  if (x.rows == 0) return;
  HWY_DYNAMIC_DISPATCH(ProductForTarget)(ProductCall{x, &weights, y, {}, workspace, phases});
}

void AddProductTo(const ConstRows& x, const PackedWeights& weights, absl::Span<float* const> y,
                  Workspace* workspace, KernelPhases* phases) {
  assert(x.rows == static_cast<int64_t>(y.size()));
  if (x.rows == 0) return;
  HWY_DYNAMIC_DISPATCH(ProductForTarget)(ProductCall{x, &weights, {}, y, workspace, phases});
}

void Product(const ConstRows& x, const PackedWeights& weights, const Rows& y, Workspace* workspace,
             ParallelFor parallel) {
  KernelPhases phases;
  AddProduct(x, weights, y, workspace, &phases);
  phases.Run(parallel);
}

}  // namespace hearth
#endif  // HWY_ONCE
