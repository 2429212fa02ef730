#include "worker/device/device_adapters.h"

#include <algorithm>
#include <cassert>

#include "worker/device/program_list.h"
#include "worker/kernels/float_mode.h"

namespace hearth {

DeviceAdapters::Sizes DeviceAdapters::SizesOf(StepProduct product) const {
  const DeviceShape& s = *shape_;
  switch (product) {
    case kQkv:
      return {s.hidden, s.qkv(), s.qkv()};
    case kOut:
      return {s.attended(), s.hidden, s.hidden};
    case kGateUp:
      return {s.hidden, s.intermediate, PaddedColumns(2 * s.intermediate)};
    default:
      return {s.intermediate, s.hidden, s.hidden};
  }
}

template <typename T>
const T* DeviceAdapters::Copy(const std::vector<T>& from) {
  T* to = arena_.Take<T>(from.size());
  if (to != nullptr) device_->CopyIn(to, from.data(), from.size() * sizeof(T));
  return to;
}

// `pairs`: for kGateUp two elements, one for each matrix, of which one may be null.
DeviceLowRank DeviceAdapters::Upload(absl::Span<const LowRank* const> pairs, StepProduct product) {
  const auto columns = static_cast<size_t>(SizesOf(product).columns);
  DeviceLowRank low;
  for (const LowRank* pair : pairs) {
    if (pair == nullptr) continue;
    assert(low.rank == 0 || (low.rank == pair->a.outputs() && low.scale == pair->scale));
    low.rank = static_cast<int>(pair->a.outputs());
    low.scale = pair->scale;
    low.ranks += low.rank;
  }
  if (low.rank == 0) return low;
  low.ranks = (low.ranks + DeviceLowRank::kGrain - 1) / DeviceLowRank::kGrain * low.kGrain;
  const auto rank = static_cast<size_t>(low.rank), ranks = static_cast<size_t>(low.ranks);
  const auto inputs = static_cast<size_t>(SizesOf(product).inputs);
  std::vector<float> a(inputs * ranks), b(rank * columns), wide(std::max(inputs, rank));
  std::vector<int32_t> first_inner(columns, -1);
  size_t first = 0;
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (pairs[i] == nullptr) continue;
    assert(pairs[i]->a.inputs() == static_cast<int64_t>(inputs) && inputs % 4 == 0);
    for (size_t j = 0; j < rank; ++j) {
      pairs[i]->a.WidenOutput(static_cast<int64_t>(j), wide.data());
      for (size_t k = 0; k < inputs; ++k) a[(k / 4 * ranks + first + j) * 4 + k % 4] = wide[k];
    }
    for (int64_t n = 0; n < pairs[i]->b.outputs(); ++n) {
      const auto output = static_cast<int>(pairs[i]->first_output + n);
      const auto column =
          static_cast<size_t>(product == kGateUp ? PairColumn(output, i == 1) : output);
      pairs[i]->b.WidenOutput(n, wide.data());
      for (size_t j = 0; j < rank; ++j) b[j * columns + column] = wide[j];
      first_inner[column] = static_cast<int32_t>(first);
    }
    first += rank;
  }
  low.a = Copy(a);
  low.b = Copy(b);
  low.first_inner = Copy(first_inner);
  return low;
}

int DeviceAdapters::Add(absl::Span<const AdapterLayer> layers) {
  assert(static_cast<int>(layers.size()) == shape_->layers());
  const FloatMode mode;
  const size_t number = products_.size() / (layers.size() * kProducts);
  const auto pointers = [](const std::vector<LowRank>& all) {
    std::vector<const LowRank*> pairs;
    for (const LowRank& pair : all) pairs.push_back(&pair);
    return pairs;
  };
  const auto only = [](const std::vector<LowRank>& all) {
    return all.empty() ? nullptr : all.data();
  };
  for (const AdapterLayer& layer : layers) {
    products_.push_back(Upload(pointers(layer.qkv), kQkv));
    products_.push_back(Upload(pointers(layer.out), kOut));
    products_.push_back(Upload({only(layer.gate), only(layer.up)}, kGateUp));
    products_.push_back(Upload(pointers(layer.down), kDown));
    for (int product = 0; product < kProducts; ++product) {
      const int ranks =
          products_[products_.size() - kProducts + static_cast<size_t>(product)].ranks;
      most_ranks_[product] = std::max(most_ranks_[product], ranks);
    }
  }
  device_products_ = Copy(products_);
  const int most = *std::max_element(most_ranks_, most_ranks_ + kProducts);
  const auto rows = static_cast<size_t>(rows_);
  if (most > inner_stride_) inner_ = arena_.Take<float>(rows * static_cast<size_t>(most));
  inner_stride_ = std::max(inner_stride_, most);
  if (Changes(kGateUp) && pairs_ == nullptr) {
    pairs_ = arena_.Take<float>(rows * static_cast<size_t>(SizesOf(kGateUp).columns));
  }
  return static_cast<int>(number);
}

void DeviceAdapters::Launch(const LaunchRows& rows, int layer, StepProduct product, const float* x,
                            float* y) const {
  const Sizes sizes = SizesOf(product);
  LowRankInnerProgram inner = {};
  inner.table = rows.table;
  inner.products = device_products_ + layer * kProducts + product;
  inner.stride = shape_->layers() * kProducts;
  inner.runs = rows.runs;
  inner.column_blocks = most_ranks_[product] / DeviceLowRank::kGrain;
  inner.inner = inner_;
  inner.inner_stride = inner_stride_;
  inner.x = x;
  inner.inputs = sizes.inputs;
  const int runs = (rows.rows + kAdapterTileRows - 1) / kAdapterTileRows * rows.runs;
  hearth::Launch(device_, inner, runs * inner.column_blocks);
  const auto add = [&](auto sum) {
    static_cast<LowRankArguments&>(sum) = inner;
    sum.column_blocks = (sizes.outputs + sum.kThreads - 1) / sum.kThreads;
    sum.outputs = sizes.outputs;
    sum.columns = sizes.columns;
    sum.sums = product == kGateUp ? pairs_ : y;
    sum.gated = product == kGateUp ? y : nullptr;
    hearth::Launch(device_, sum, runs * sum.column_blocks);
  };
  product == kGateUp ? add(LowRankSumProgram<true>()) : add(LowRankSumProgram<false>());
}

}  // namespace hearth
