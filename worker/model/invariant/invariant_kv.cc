#include "worker/model/invariant/invariant_kv.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "proto/restore_rule.h"

namespace hearth {
namespace {

// Columns [begin, begin + count) of a slice of `from_tokens` columns to those from `to_begin` on of
// one of `to_tokens`: a run of rows for each half and KV head.
void CopyColumns(const KvLayout& layout, const std::byte* from, int from_tokens, int begin,
                 int count, std::byte* to, int to_tokens, int to_begin) {
  const size_t row_bytes = layout.head_dim * KvDtypeBytes(layout.dtype);
  for (size_t run = 0; run < size_t{2} * layout.kv_heads; ++run) {
    std::memcpy(
        to + (run * static_cast<size_t>(to_tokens) + static_cast<size_t>(to_begin)) * row_bytes,
        from + (run * static_cast<size_t>(from_tokens) + static_cast<size_t>(begin)) * row_bytes,
        static_cast<size_t>(count) * row_bytes);
  }
}

}  // namespace

InvariantKv::InvariantKv(std::shared_ptr<const KvLayout> layout, KvBlocks* arena, uint64_t model)
    : layout_(std::move(layout)), arena_(arena), model_(model) {
  assert(layout_ != nullptr && arena != nullptr && model > 0);
}

InvariantKv::InvariantKv(InvariantKv&& other) noexcept { *this = std::move(other); }

InvariantKv& InvariantKv::operator=(InvariantKv&& other) noexcept {
  layout_ = std::exchange(other.layout_, nullptr);
  arena_ = std::exchange(other.arena_, nullptr);
  model_ = std::exchange(other.model_, 0);
  blocks_ = std::exchange(other.blocks_, {});
  adapter_ = std::exchange(other.adapter_, nullptr);
  held_ = std::exchange(other.held_, {});
  reserved_ = std::move(other.reserved_);
  set_aside_bytes_ = std::exchange(other.set_aside_bytes_, 0);
  reservable_bytes_ = std::exchange(other.reservable_bytes_, 0);
  length_ = std::exchange(other.length_, 0);
  restoring_ = std::exchange(other.restoring_, 0);
  first_local_ = std::exchange(other.first_local_, 0);
  shares_end_ = std::exchange(other.shares_end_, false);
  return *this;
}

int InvariantKv::first_held(int layer) const {
  return GroupOf(layer) == LayerGroup::kLocal ? first_local_ : 0;
}

uint64_t InvariantKv::held_bytes(int from) const {
  uint64_t bytes = 0;
  for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
    const int begin = std::max(from, group == LayerGroup::kLocal ? first_local_ : 0);
    bytes += static_cast<uint64_t>(std::max(0, length_ - begin)) * layout_->ObjectBytes(1, group);
  }
  return bytes;
}

size_t InvariantKv::SliceOffset(int layer) const {
  const auto& layers = layout_->layers;
  const auto place = std::count(layers.begin(), layers.begin() + layer, GroupOf(layer));
  return static_cast<size_t>(place) * layout_->SliceBytes(layout_->chunk_tokens);
}

void InvariantKv::CopyOut(int layer, int begin, int end, int slice_begin, int slice_tokens,
                          std::byte* slice) const {
  assert(first_held(layer) <= begin && begin <= end && end <= length_);
  assert(slice_begin <= begin && end <= slice_begin + slice_tokens);
  const int chunk = static_cast<int>(layout_->chunk_tokens);
  const size_t offset = SliceOffset(layer);
  for (int at = begin; at < end;) {
    const int next = std::min(end, (at / chunk + 1) * chunk);
    const std::byte* from = Blocks(GroupOf(layer))[static_cast<size_t>(at / chunk)].get() + offset;
    CopyColumns(*layout_, from, chunk, at % chunk, next - at, slice, slice_tokens,
                at - slice_begin);
    at = next;
  }
}

std::shared_ptr<std::byte[]> InvariantKv::Share(const ObjectId& id) const {
  const int begin = static_cast<int>(id.begin), end = static_cast<int>(id.begin + id.tokens);
  if (id.tokens != layout_->chunk_tokens || end > length_) return nullptr;
  if (id.group == LayerGroup::kLocal && begin < first_local_) return nullptr;
  return Blocks(id.group)[id.begin / layout_->chunk_tokens];
}

absl::Status InvariantKv::Reserve(uint64_t bytes, uint64_t most_bytes) {
  assert(bytes <= most_bytes);
  if (absl::Status room = arena_->Reserve(bytes, &reserved_); !room.ok()) return room;
  set_aside_bytes_ += bytes;
  reservable_bytes_ = most_bytes - bytes;
  return absl::OkStatus();
}

absl::Status InvariantKv::ReserveMore(uint64_t bytes) {
  const uint64_t more = std::min(bytes, reservable_bytes_);
  if (absl::Status room = arena_->Reserve(more, &reserved_); !room.ok()) return room;
  set_aside_bytes_ += more;
  reservable_bytes_ -= more;
  return absl::OkStatus();
}

void InvariantKv::BeginRestore(int length) {
  assert(length >= 0);
  length_ = 0;
  restoring_ = length;
  const size_t splits =
      (static_cast<size_t>(length) + layout_->chunk_tokens - 1) / layout_->chunk_tokens;
  for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
    Blocks(group).clear();
    Blocks(group).resize(layout_->LayersOf(group).empty() ? 0 : splits);
  }
  const int tail = static_cast<int>(LocalTailBegin(*layout_, static_cast<uint32_t>(length)));
  // A tail without rows needs no object, so that its block has none of those before it.
  first_local_ = tail == length ? length : tail - tail % static_cast<int>(layout_->chunk_tokens);
}

absl::Status InvariantKv::Adopt(const ObjectId& id, KvBlock bytes) {
  assert(id.tokens == layout_->chunk_tokens && id.begin % layout_->chunk_tokens == 0);
  absl::StatusOr<KvBlock> block =
      arena_->Adopt(std::move(bytes), layout_->ObjectBytes(id.tokens, id.group), &reserved_);
  if (!block.ok()) return block.status();
  Blocks(id.group).at(id.begin / layout_->chunk_tokens) = *std::move(block);
  return absl::OkStatus();
}

absl::Status InvariantKv::CopyIn(const ObjectId& id, const std::vector<const std::byte*>& slices) {
  const uint32_t chunk = layout_->chunk_tokens;
  assert(id.tokens <= chunk && id.begin % chunk == 0);
  assert(slices.size() * layout_->SliceBytes(chunk) == layout_->ObjectBytes(chunk, id.group));
  auto taken = arena_->Take({layout_->ObjectBytes(chunk, id.group)}, &reserved_);
  if (!taken.ok()) return taken.status();
  std::byte* to = taken->front().get();
  for (const std::byte* slice : slices) {
    if (id.tokens == chunk) {
      std::memcpy(to, slice, layout_->SliceBytes(chunk));
    } else {
      const int columns = static_cast<int>(id.tokens);
      CopyColumns(*layout_, slice, columns, 0, columns, to, static_cast<int>(chunk), 0);
    }
    to += layout_->SliceBytes(chunk);
  }
  Blocks(id.group).at(id.begin / chunk) = std::move(taken->front());
  return absl::OkStatus();
}

void InvariantKv::FinishRestore() { length_ = restoring_; }

void InvariantKv::UseAdapter(std::shared_ptr<const LoraAdapter> adapter) {
  assert(length_ == 0);
  adapter_ = std::move(adapter);
}

void InvariantKv::ShareAll(const InvariantKv& other) {
  assert(model_ == other.model_ && adapter_ == other.adapter_ && length_ == 0);
  blocks_ = other.blocks_;
  length_ = other.length_;
  first_local_ = other.first_local_;
  shares_end_ = length_ % static_cast<int>(layout_->chunk_tokens) != 0;
}

absl::Status InvariantKv::MakeRoom(int tokens) {
  const size_t chunk = layout_->chunk_tokens;
  held_.clear();
  // The first row of the step still sees its whole window.
  const uint32_t seen = LocalTailBegin(*layout_, static_cast<uint32_t>(length_));
  std::vector<KvBlock>& local = Blocks(LayerGroup::kLocal);
  for (size_t split = 0; split < std::min<size_t>(seen / chunk, local.size()); ++split) {
    local[split] = nullptr;
  }
  if (!local.empty()) {
    first_local_ = std::max(first_local_, static_cast<int>(seen / chunk * chunk));
  }
  const size_t splits = (static_cast<size_t>(length_ + tokens) + chunk - 1) / chunk;
  const size_t first = static_cast<size_t>(length_) / chunk;  // split to be written
  std::vector<size_t> sizes;
  std::vector<std::pair<LayerGroup, size_t>> places;
  for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
    const size_t bytes = layout_->ObjectBytes(layout_->chunk_tokens, group);
    const std::vector<KvBlock>& have = Blocks(group);
    for (size_t split = first; bytes > 0 && split < splits; ++split) {
      const bool there = split < have.size() && have[split] != nullptr;
      const bool copied = shares_end_ && split == first && there && have[split].use_count() > 1;
      if (there && !copied) continue;
      sizes.push_back(bytes);
      places.emplace_back(group, split);
    }
  }
  absl::StatusOr<std::vector<KvBlock>> taken = arena_->Take(sizes, &reserved_);
  if (!taken.ok()) return taken.status();
  for (size_t i = 0; i < places.size(); ++i) {
    std::vector<KvBlock>& have = Blocks(places[i].first);
    have.resize(std::max(have.size(), places[i].second + 1));
    KvBlock& place = have[places[i].second];
    if (place != nullptr) std::memcpy((*taken)[i].get(), place.get(), sizes[i]);
    place = std::move((*taken)[i]);
  }
  shares_end_ = false;
  return absl::OkStatus();
}

void InvariantKv::GiveBackRoom() {
  const size_t splits =
      (static_cast<size_t>(length_) + layout_->chunk_tokens - 1) / layout_->chunk_tokens;
  for (std::vector<KvBlock>& have : blocks_) have.resize(std::min(have.size(), splits));
}

std::vector<const std::byte*> InvariantKv::SplitsOf(int layer) const {
  const size_t offset = SliceOffset(layer);
  std::vector<const std::byte*> splits;
  for (const KvBlock& block : Blocks(GroupOf(layer))) {
    splits.push_back(block == nullptr ? nullptr : block.get() + offset);
  }
  return splits;
}

std::byte* InvariantKv::SliceAt(int layer, int position) {
  const size_t split = static_cast<size_t>(position) / layout_->chunk_tokens;
  const std::vector<KvBlock>& blocks = Blocks(GroupOf(layer));
  assert(split < blocks.size() && blocks[split] != nullptr);
  return blocks[split].get() + SliceOffset(layer);
}

}  // namespace hearth
