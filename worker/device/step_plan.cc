#include "worker/device/step_plan.h"

#include <algorithm>
#include <cassert>

namespace hearth {
namespace {

template <typename T, typename U>
void CopyAll(Device* device, const std::vector<T>& from, U* to) {
  static_assert(sizeof(T) == sizeof(U));
  if (!from.empty()) device->CopyIn(to, from.data(), from.size() * sizeof(T));
}

}  // namespace

StepPlan::StepPlan(Device* device, const DeviceShape& shape, const StepCapacity& capacity)
    : device_(device), arena_(device), shape_(shape), capacity_(capacity) {
  const auto rows = static_cast<size_t>(capacity.rows);
  device_counts_ = arena_.Take<int32_t>(3);
  device_tokens_ = arena_.Take<int32_t>(rows);
  device_positions_ = arena_.Take<int32_t>(rows);
  device_wanted_ = arena_.Take<int32_t>(static_cast<size_t>(capacity.wanted));
  device_adapters_ = arena_.Take<int32_t>(rows);
  table_ = {device_counts_, device_tokens_,   device_positions_,
            device_wanted_, device_adapters_, {}};
  for (int group = 0; group < 2; ++group) {
    List& list = lists_[group];
    list.device_items = arena_.Take<AttendItem>(static_cast<size_t>(capacity.items));
    list.device_row_items = arena_.Take<RowItems>(rows);
    list.device_blocks = arena_.Take<std::byte*>(static_cast<size_t>(capacity.blocks));
    list.device_row_blocks = arena_.Take<std::byte*>(rows);
    table_.lists[group] = {list.device_items, list.device_row_items, list.device_blocks,
                           list.device_row_blocks, device_counts_ + 1 + group};
  }
}

void StepPlan::Write(absl::Span<const DevicePart> parts, bool splits, int tile_rows) {
  tile_rows_ = tile_rows;
  tokens_.clear();
  positions_.clear();
  wanted_.clear();
  for (const bool is_global : {false, true}) {
    List& list = lists_[is_global];
    list.items.clear();
    list.row_items.clear();
    list.blocks.clear();
    list.row_blocks.clear();
    // without layers of this kind the sequences have no blocks
    if (shape_.LayersIn(is_global) == 0) continue;
    for (const DevicePart& part : parts) AddRows(part, is_global, splits, &list);
  }
  for (const DevicePart& part : parts) {
    for (size_t i = 0; i < part.tokens.size(); ++i) {
      if (i + static_cast<size_t>(part.want) >= part.tokens.size()) {
        wanted_.push_back(static_cast<int32_t>(tokens_.size()));
      }
      tokens_.push_back(part.tokens[i]);
      positions_.push_back(part.begin + static_cast<int32_t>(i));
    }
  }
  wanted_count_ = static_cast<int>(wanted_.size());
  assert(rows() <= capacity_.rows && wanted_count_ <= capacity_.wanted);
  wanted_.resize(static_cast<size_t>(capacity_.wanted), 0);
  const int32_t counts[3] = {rows(), static_cast<int32_t>(lists_[0].items.size()),
                             static_cast<int32_t>(lists_[1].items.size())};
  device_->CopyIn(device_counts_, counts, sizeof counts);
  CopyAll(device_, tokens_, device_tokens_);
  CopyAll(device_, positions_, device_positions_);
  CopyAll(device_, wanted_, device_wanted_);
  WriteAdapters(parts);
  for (List& list : lists_) {
    assert(list.items.size() <= static_cast<size_t>(capacity_.items));
    assert(list.blocks.size() <= static_cast<size_t>(capacity_.blocks));
    assert(list.row_items.size() == list.row_blocks.size());
    assert(list.row_items.empty() || static_cast<int>(list.row_items.size()) == rows());
    CopyAll(device_, list.items, list.device_items);
    CopyAll(device_, list.row_items, list.device_row_items);
    CopyAll(device_, list.blocks, list.device_blocks);
    CopyAll(device_, list.row_blocks, list.device_row_blocks);
  }
}

void StepPlan::WriteAdapters(absl::Span<const DevicePart> parts) {
  adapters_.clear();
  adapter_runs_ = 0;
  bool any = false;
  for (const DevicePart& part : parts) {
    adapters_.insert(adapters_.end(), part.tokens.size(), part.adapter);
    any = any || part.adapter >= 0;
  }
  if (!any) return;
  for (size_t row = 0, runs = 0; row < adapters_.size(); ++row) {
    const bool begins = row % kAdapterTileRows == 0;
    runs = begins ? 1 : runs + (adapters_[row] != adapters_[row - 1] ? 1 : 0);
    adapter_runs_ = std::max(adapter_runs_, static_cast<int>(runs));
  }
  CopyAll(device_, adapters_, device_adapters_);
}

void StepPlan::AddRows(const DevicePart& part, bool is_global, bool splits, List* list) {
  assert(part.want >= 0 && static_cast<size_t>(part.want) <= part.tokens.size());
  const absl::Span<std::byte* const> blocks = part.blocks[is_global];
  const auto first_block = static_cast<int32_t>(list->blocks.size());
  const auto first_row = static_cast<int32_t>(list->row_items.size());
  const int tokens = static_cast<int>(part.tokens.size());
  list->blocks.insert(list->blocks.end(), blocks.begin(), blocks.end());
  for (int i = 0; i < tokens; ++i) {
    const auto split = static_cast<size_t>((part.begin + i) / shape_.split);
    assert(split < blocks.size() && blocks[split] != nullptr);
    list->row_blocks.push_back(part.reads_copies() ? part.written[is_global] : blocks[split]);
    list->row_items.push_back({0, 0});
  }
  const int window = is_global ? 0 : shape_.window;
  const int most = std::max(1, tile_rows_ / (shape_.heads / shape_.kv_heads));
  for (int i = 0; i < tokens;) {
    const int of_tile = splits ? 1 : std::min(most, tokens - i);
    const int position = part.begin + i;
    const int first = window > 0 ? std::max(0, position - window + 1) / shape_.split : 0;
    const int last = (position + of_tile - 1) / shape_.split;
    assert(first <= last && static_cast<size_t>(last) < blocks.size());
    AddTile({first_row + i, of_tile, position, first, last + 1 - first, first_block + first, 1, 0,
             blocks[static_cast<size_t>(first)]},
            splits, list);
    i += of_tile;
  }
}

// Adds the attention items of a tile of rows: one item for each split; if too few item entries are
// free, one item that covers all splits.
void StepPlan::AddTile(const AttendItem& tile, bool splits, List* list) {
  const auto first = static_cast<int32_t>(list->items.size());
  if (!splits || first + tile.splits > capacity_.items - capacity_.rows) {
    list->items.push_back(tile);
    return;
  }
  for (int32_t i = 0; i < tile.splits; ++i) {
    AttendItem one = tile;
    one.first_split += i;
    one.first_block += i;
    one.block = list->blocks[static_cast<size_t>(one.first_block)];
    one.splits = 1;
    one.is_whole = 0;
    list->items.push_back(one);
  }
  assert(list->items.size() == static_cast<size_t>(first) + static_cast<size_t>(tile.splits));
  list->row_items[static_cast<size_t>(tile.row)] = {first, tile.splits};
}

}  // namespace hearth
