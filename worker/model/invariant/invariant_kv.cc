#include "worker/model/invariant/invariant_kv.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>

#include "proto/restore_rule.h"

namespace hearth {

namespace {

// One of those taken ahead; null: there is none.
KvBlock TakeSpare(std::vector<KvBlock>* spare) {
  if (spare->empty()) return nullptr;
  KvBlock block = std::move(spare->back());
  spare->pop_back();
  return block;
}

// Whether nobody else holds it; what others read of it, they have read by then.
bool IsSole(const KvBlock& block) {
  if (block.use_count() != 1) return false;
  // The count alone orders nothing. Giving a share up does, after all that gave theirs up before.
  KvBlock again = block;
  again.reset();
  return true;
}

// What a step lacks: where, and of which size.
struct MissingBlocks {
  std::vector<size_t> sizes;
  std::vector<std::pair<std::vector<KvBlock>*, size_t>> places;
  void Add(size_t bytes, std::vector<KvBlock>* blocks, size_t split) {
    sizes.push_back(bytes);
    places.emplace_back(blocks, split);
  }
};

// A group's of all blocks.
template <typename Blocks>
auto& Of(Blocks& blocks, LayerGroup group) {
  return blocks[static_cast<size_t>(group)];
}

}  // namespace

InvariantKv::InvariantKv(std::shared_ptr<const KvLayout> layout, KvBlocks* arena, uint64_t model,
                         KvStrategy strategy, KvBlocks* second)
    : layout_(std::move(layout)),
      arena_(arena),
      second_(second),
      model_(model),
      strategy_(strategy) {
  assert(layout_ != nullptr && arena != nullptr && model > 0);
  assert(!Offloads(strategy_) || second_ != nullptr);
}

InvariantKv::InvariantKv(InvariantKv&& other) noexcept { *this = std::move(other); }

InvariantKv& InvariantKv::operator=(InvariantKv&& other) noexcept {
  layout_ = std::exchange(other.layout_, nullptr);
  arena_ = std::exchange(other.arena_, nullptr);
  second_ = std::exchange(other.second_, nullptr);
  model_ = std::exchange(other.model_, 0);
  strategy_ = other.strategy_;
  blocks_ = std::exchange(other.blocks_, {});
  adapter_ = std::exchange(other.adapter_, nullptr);
  sealed_ = std::exchange(other.sealed_, {});
  spare_ = std::exchange(other.spare_, {});
  spare_sealed_ = std::exchange(other.spare_sealed_, {});
  held_ = std::exchange(other.held_, {});
  reserved_ = std::move(other.reserved_);
  second_reserved_ = std::move(other.second_reserved_);
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
  const int chunk = static_cast<int>(layout_->chunk_tokens);
  uint64_t bytes = 0;
  for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
    const int begin = std::max(from, group == LayerGroup::kLocal ? first_local_ : 0);
    const int sealed_end = Seals(group) ? std::max(begin, length_ / chunk * chunk) : begin;
    bytes += static_cast<uint64_t>((sealed_end - begin) / chunk) *
             layout_->ObjectBytes(layout_->chunk_tokens, group);
    bytes +=
        static_cast<uint64_t>(std::max(0, length_ - sealed_end)) * layout_->ObjectBytes(1, group);
  }
  return bytes;
}

void InvariantKv::CopyOut(int layer, int begin, int end, int slice_begin, int slice_tokens,
                          std::byte* slice) const {
  assert(first_held(layer) <= begin && begin <= end && end <= length_);
  assert(slice_begin <= begin && end <= slice_begin + slice_tokens);
  const int chunk = static_cast<int>(layout_->chunk_tokens);
  if (seals(layer) && slice_tokens == chunk) {
    assert(begin == slice_begin && end - begin == chunk && begin % chunk == 0);
    const size_t bytes = layout_->SliceBytes(layout_->chunk_tokens);
    const KvBlock& sealed = WholeBlocks(GroupOf(layer))[static_cast<size_t>(begin / chunk)];
    std::memcpy(slice, sealed.get() + LayersBefore(*layout_, layer) * bytes, bytes);
    return;
  }
  const size_t offset =
      LayersBefore(*layout_, layer) * layout_->PlainSliceBytes(layout_->chunk_tokens);
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
  return WholeBlocks(id.group)[id.begin / layout_->chunk_tokens];
}

absl::Status InvariantKv::Reserve(uint64_t bytes, uint64_t most_bytes, const InvariantKv* beside) {
  assert(bytes <= most_bytes);
  if (beside != nullptr) {
    reserved_ = beside->reserved_.Shared();
    second_reserved_ = beside->second_reserved_.Shared();
  }
  if (absl::Status room = arena_->Reserve(bytes, &reserved_); !room.ok()) return room;
  reservable_bytes_ = most_bytes - bytes;
  return absl::OkStatus();
}

absl::Status InvariantKv::ReserveOffloaded(uint64_t bytes) {
  return second_->Reserve(bytes, &second_reserved_);
}

absl::Status InvariantKv::ReserveMore(uint64_t bytes) {
  const uint64_t more = std::min(bytes, reservable_bytes_);
  if (absl::Status room = arena_->Reserve(more, &reserved_); !room.ok()) return room;
  reservable_bytes_ -= more;
  const uint64_t local = PlainBytes(*layout_, LayerGroup::kLocal);
  return TakesAhead(strategy_) && local > 0 ? TakeAhead(0, more / local, 0, 0) : absl::OkStatus();
}

absl::Status InvariantKv::TakeAhead(uint64_t global_blocks, uint64_t local_blocks,
                                    uint64_t offloaded, size_t splits) {
  assert(TakesAhead(strategy_) && !layout_->quantization.is_on());
  const auto wanted = {std::make_pair(LayerGroup::kGlobal, global_blocks),
                       std::make_pair(LayerGroup::kLocal, local_blocks)};
  for (const auto& [group, count] : wanted) {
    const size_t bytes = PlainBytes(*layout_, group);
    Blocks(group).reserve(splits);
    if (bytes == 0 || count == 0) continue;
    absl::StatusOr<std::vector<KvBlock>> taken =
        arena_->Take(std::vector<size_t>(count, bytes), &reserved_);
    if (!taken.ok()) return taken.status();
    for (KvBlock& block : *taken) Of(spare_, group).push_back(std::move(block));
  }
  const size_t sealed_bytes = PlainBytes(*layout_, LayerGroup::kGlobal);
  if (offloaded == 0 || sealed_bytes == 0) return absl::OkStatus();
  Of(sealed_, LayerGroup::kGlobal).reserve(splits);
  absl::StatusOr<std::vector<KvBlock>> taken =
      second_->Take(std::vector<size_t>(offloaded, sealed_bytes), &second_reserved_);
  if (!taken.ok()) return taken.status();
  spare_sealed_ = *std::move(taken);
  return absl::OkStatus();
}

void InvariantKv::BeginRestore(int length) {
  assert(length >= 0);
  length_ = 0;
  restoring_ = length;
  for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
    const bool some = PlainBytes(*layout_, group) > 0;
    Blocks(group).clear();
    Blocks(group).resize(some ? SplitsTo(*layout_, length) : 0);
    Of(sealed_, group).clear();
    if (Seals(group))
      Of(sealed_, group).resize(some ? static_cast<size_t>(length) / layout_->chunk_tokens : 0);
  }
  const int tail = static_cast<int>(LocalTailBegin(*layout_, static_cast<uint32_t>(length)));
  // A tail without rows needs no object, so that its block has none of those before it.
  first_local_ = tail == length ? length : tail - tail % static_cast<int>(layout_->chunk_tokens);
}

absl::Status InvariantKv::Adopt(const ObjectId& id, KvBlock bytes) {
  assert(id.tokens == layout_->chunk_tokens && id.begin % layout_->chunk_tokens == 0);
  const size_t size_bytes = layout_->ObjectBytes(id.tokens, id.group);
  const bool offloaded = Offloads(strategy_) && Seals(id.group);
  KvBlocks* const arena = offloaded ? second_ : arena_;
  // It stands in for one that was taken ahead, unless that was not taken for it.
  if (!arena->Counts(bytes, size_bytes))
    TakeSpare(offloaded ? &spare_sealed_ : &Of(spare_, id.group));
  // The window leaves blocks of local layers. Counted once for all, they would go to whoever has
  // them still, and not back to the one who paid for them.
  absl::StatusOr<KvBlock> block =
      arena->Adopt(std::move(bytes), size_bytes, offloaded ? &second_reserved_ : &reserved_,
                   /*alone=*/id.group == LayerGroup::kLocal);
  if (!block.ok()) return block.status();
  auto& blocks = Seals(id.group) ? Of(sealed_, id.group) : Blocks(id.group);
  blocks.at(id.begin / layout_->chunk_tokens) = *std::move(block);
  return absl::OkStatus();
}

absl::Status InvariantKv::CopyIn(const ObjectId& id, const std::vector<const std::byte*>& slices) {
  const uint32_t chunk = layout_->chunk_tokens;
  assert(id.tokens <= chunk && id.begin % chunk == 0);
  assert(slices.size() == layout_->LayerCount(id.group));
  const bool sealed = Seals(id.group) && id.tokens == chunk;
  const size_t slice_bytes = sealed ? layout_->SliceBytes(chunk) : layout_->PlainSliceBytes(chunk);
  KvBlock block = TakeSpare(sealed ? &spare_sealed_ : &Of(spare_, id.group));
  if (block == nullptr) {
    const size_t bytes = slices.size() * slice_bytes;
    auto taken = sealed ? TakeSealed({bytes}) : arena_->Take({bytes}, &reserved_);
    if (!taken.ok()) return taken.status();
    block = std::move(taken->front());
  }
  std::byte* to = block.get();
  for (const std::byte* slice : slices) {
    if (id.tokens == chunk) {
      std::memcpy(to, slice, slice_bytes);
    } else {
      const int columns = static_cast<int>(id.tokens);
      CopyColumns(*layout_, slice, columns, 0, columns, to, static_cast<int>(chunk), 0);
    }
    to += slice_bytes;
  }
  (sealed ? Of(sealed_, id.group) : Blocks(id.group)).at(id.begin / chunk) = std::move(block);
  return absl::OkStatus();
}

void InvariantKv::FinishRestore() { length_ = restoring_; }

void InvariantKv::UseAdapter(std::shared_ptr<const LoraAdapter> adapter) {
  assert(length_ == 0);
  adapter_ = std::move(adapter);
}

void InvariantKv::ShareAll(const InvariantKv& other) {
  assert(this != &other && model_ == other.model_ && adapter_ == other.adapter_);
  blocks_ = other.blocks_;
  sealed_ = other.sealed_;
  length_ = other.length_;
  first_local_ = other.first_local_;
  shares_end_ = length_ % static_cast<int>(layout_->chunk_tokens) != 0;
}

void InvariantKv::Drop(LayerGroup group, KvBlock* block) {
  if (TakesAhead(strategy_) && *block != nullptr && arena_->Gave(*block) && IsSole(*block)) {
    Of(spare_, group).push_back(std::move(*block));
  }
  *block = nullptr;
}

// What no row from length_ on sees, or sees sealed.
void InvariantKv::DropUnseen() {
  const size_t chunk = layout_->chunk_tokens;
  // The first row of the step still sees its whole window.
  const size_t seen = LocalTailBegin(*layout_, static_cast<uint32_t>(length_)) / chunk;
  const auto drop = [this](LayerGroup group, std::vector<KvBlock>* blocks, size_t end) {
    for (size_t split = 0; split < std::min(end, blocks->size()); ++split) {
      Drop(group, &(*blocks)[split]);
    }
  };
  drop(LayerGroup::kLocal, &Blocks(LayerGroup::kLocal), seen);
  drop(LayerGroup::kLocal, &Of(sealed_, LayerGroup::kLocal), seen);
  if (PlainBytes(*layout_, LayerGroup::kLocal) > 0) {
    first_local_ = std::max(first_local_, static_cast<int>(seen * chunk));
  }
  for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
    if (!Seals(group)) continue;
    drop(group, &Blocks(group), static_cast<size_t>(length_) / chunk);
  }
}

void InvariantKv::Put(KvBlock block, size_t split, size_t bytes, std::vector<KvBlock>* blocks) {
  blocks->resize(std::max(blocks->size(), split + 1));
  KvBlock& place = (*blocks)[split];
  if (place != nullptr) std::memcpy(block.get(), place.get(), bytes);
  place = std::move(block);
}

absl::StatusOr<std::vector<KvBlock>> InvariantKv::TakeSealed(absl::Span<const size_t> sizes) {
  return Offloads(strategy_) ? second_->Take(sizes, &second_reserved_)
                             : arena_->Take(sizes, &reserved_);
}

absl::Status InvariantKv::MakeRoom(int tokens) {
  held_.clear();
  DropUnseen();
  const size_t first = static_cast<size_t>(length_) / layout_->chunk_tokens;  // to be written
  const size_t sealed_end = static_cast<size_t>(length_ + tokens) / layout_->chunk_tokens;
  MissingBlocks plain, sealed;
  for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
    const size_t bytes = PlainBytes(*layout_, group);
    std::vector<KvBlock>& have = Blocks(group);
    for (size_t split = first; bytes > 0 && split < SplitsTo(*layout_, length_ + tokens); ++split) {
      const bool there = split < have.size() && have[split] != nullptr;
      const bool copied = shares_end_ && split == first && there && !IsSole(have[split]);
      if (there && !copied) continue;
      if (KvBlock spare = TakeSpare(&Of(spare_, group)); spare != nullptr) {
        Put(std::move(spare), split, bytes, &have);
      } else {
        plain.Add(bytes, &have, split);
      }
    }
    const size_t sealed_bytes =
        layout_->SliceBytes(layout_->chunk_tokens) * LayersIn(*layout_, group);
    for (size_t split = first; bytes > 0 && Seals(group) && split < sealed_end; ++split) {
      const std::vector<KvBlock>& whole = Of(sealed_, group);
      if (split < whole.size() && whole[split] != nullptr) continue;
      if (KvBlock spare = TakeSpare(&spare_sealed_); spare != nullptr) {
        Put(std::move(spare), split, 0, &Of(sealed_, group));
      } else {
        sealed.Add(sealed_bytes, &Of(sealed_, group), split);
      }
    }
  }
  std::vector<KvBlock> taken, taken_sealed;
  const auto take = [](absl::StatusOr<std::vector<KvBlock>> blocks, std::vector<KvBlock>* to) {
    if (blocks.ok()) *to = *std::move(blocks);
    return blocks.status();
  };
  absl::Status room;
  if (!plain.sizes.empty()) room = take(arena_->Take(plain.sizes, &reserved_), &taken);
  if (room.ok() && !sealed.sizes.empty()) room = take(TakeSealed(sealed.sizes), &taken_sealed);
  if (!room.ok()) return room;
  for (size_t i = 0; i < taken.size(); ++i) {
    Put(std::move(taken[i]), plain.places[i].second, plain.sizes[i], plain.places[i].first);
  }
  for (size_t i = 0; i < taken_sealed.size(); ++i) {
    Put(std::move(taken_sealed[i]), sealed.places[i].second, 0, sealed.places[i].first);
  }
  shares_end_ = false;
  return absl::OkStatus();
}

void InvariantKv::GiveBackRoom() {
  const size_t whole = static_cast<size_t>(length_) / layout_->chunk_tokens;
  for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
    std::vector<KvBlock>& have = Blocks(group);
    for (size_t split = SplitsTo(*layout_, length_); split < have.size(); ++split)
      Drop(group, &have[split]);
    have.resize(std::min(have.size(), SplitsTo(*layout_, length_)));
    std::vector<KvBlock>& sealed = Of(sealed_, group);
    for (size_t split = whole; split < sealed.size() && TakesAhead(strategy_); ++split)
      spare_sealed_.push_back(std::move(sealed[split]));
    sealed.resize(std::min(sealed.size(), whole));
  }
}

std::vector<const std::byte*> InvariantKv::SlicesOf(int layer, const SplitBlocks& blocks,
                                                    bool sealed) const {
  const uint32_t chunk = layout_->chunk_tokens;
  const size_t offset = LayersBefore(*layout_, layer) *
                        (sealed ? layout_->SliceBytes(chunk) : layout_->PlainSliceBytes(chunk));
  std::vector<const std::byte*> slices;
  for (const KvBlock& block : blocks[static_cast<size_t>(GroupOf(layer))]) {
    slices.push_back(block == nullptr ? nullptr : block.get() + offset);
  }
  return slices;
}

std::byte* InvariantKv::SliceAt(int layer, int position) {
  const size_t split = static_cast<size_t>(position) / layout_->chunk_tokens;
  const std::vector<KvBlock>& blocks = Blocks(GroupOf(layer));
  assert(split < blocks.size() && blocks[split] != nullptr);
  return blocks[split].get() +
         LayersBefore(*layout_, layer) * layout_->PlainSliceBytes(layout_->chunk_tokens);
}

std::byte* InvariantKv::SealedAt(int layer, size_t split) {
  return Of(sealed_, GroupOf(layer))[split].get() +
         LayersBefore(*layout_, layer) * layout_->SliceBytes(layout_->chunk_tokens);
}

}  // namespace hearth
