#include "worker/model/invariant/invariant_kv.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "proto/restore_rule.h"

namespace hearth {

namespace {

// Removes a block from `spare` and returns it; returns null if `spare` is empty.
KvBlock TakeSpare(std::vector<KvBlock>* spare) {
  if (spare->empty()) return nullptr;
  KvBlock block = std::move(spare->back());
  spare->pop_back();
  return block;
}

// Returns whether nothing else holds `block`. If so, all reads by former holders have finished.
bool IsSole(const KvBlock& block) {
  if (block.use_count() != 1) return false;
  // use_count() does not synchronize with other threads. Releasing a reference does: it happens
  // after all earlier releases.
  KvBlock again = block;
  again.reset();
  return true;
}

// Blocks that a step must allocate: their sizes, and where to store them.
struct MissingBlocks {
  std::vector<size_t> sizes;
  std::vector<std::pair<std::vector<KvBlock>*, size_t>> places;
  void Add(size_t bytes, std::vector<KvBlock>* blocks, size_t split) {
    sizes.push_back(bytes);
    places.emplace_back(blocks, split);
  }
};

// Returns the element for a layer group.
template <typename Blocks>
auto& At(Blocks& blocks, LayerGroup group) {
  return blocks[static_cast<size_t>(group)];
}

}  // namespace

InvariantKv::InvariantKv(std::shared_ptr<const KvLayout> layout, KvBlocks* arena, uint64_t model)
    : layout_(std::move(layout)), arena_(arena), model_(model) {
  assert(layout_ != nullptr && arena != nullptr && model > 0);
}

int InvariantKv::first_held(int layer) const {
  return GroupOf(layer) == LayerGroup::kLocal ? first_local_ : 0;
}

uint64_t InvariantKv::held_bytes(int from) const {
  const int chunk = static_cast<int>(layout_->chunk_tokens);
  uint64_t bytes = 0;
  for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
    const int begin = std::max(from, group == LayerGroup::kLocal ? first_local_ : 0);
    const int sealed_end = seals() ? std::max(begin, length_ / chunk * chunk) : begin;
    bytes += static_cast<uint64_t>((sealed_end - begin) / chunk) *
             layout_->ObjectBytes(layout_->chunk_tokens, group);
    bytes +=
        static_cast<uint64_t>(std::max(0, length_ - sealed_end)) * layout_->ObjectBytes(1, group);
  }
  return bytes;
}

template <typename Copier>
void InvariantKv::CopyOutWith(Copier* copier, int layer, int begin, int end, int slice_begin,
                              int slice_tokens, std::byte* slice) const {
  assert(first_held(layer) <= begin && begin <= end && end <= length_);
  assert(slice_begin <= begin && end <= slice_begin + slice_tokens);
  const int chunk = static_cast<int>(layout_->chunk_tokens);
  if (seals() && slice_tokens == chunk) {
    assert(begin == slice_begin && end - begin == chunk && begin % chunk == 0);
    const size_t bytes = layout_->SliceBytes(layout_->chunk_tokens);
    const KvBlock& sealed = WholeBlocks(GroupOf(layer))[static_cast<size_t>(begin / chunk)];
    assert(sealed != nullptr);
    copier->Copy(CopyWay::kOut, slice, sealed.get() + LayersBefore(*layout_, layer) * bytes,
                 {bytes});
    return;
  }
  const size_t offset =
      LayersBefore(*layout_, layer) * layout_->PlainSliceBytes(layout_->chunk_tokens);
  for (int at = begin; at < end;) {
    const int next = std::min(end, (at / chunk + 1) * chunk);
    const KvBlock& block = At(blocks_, GroupOf(layer))[static_cast<size_t>(at / chunk)];
    assert(block != nullptr);
    const std::byte* from = block.get() + offset;
    const auto copy = [&](auto* with) {
      CopyColumns(with, CopyWay::kOut, *layout_, from, chunk, at % chunk, next - at, slice,
                  slice_tokens, at - slice_begin);
    };
    if (IsOnHost(block)) {
      copy(&host_->memory());
    } else {
      copy(copier);
    }
    at = next;
  }
}

void InvariantKv::CopyOut(int layer, int begin, int end, int slice_begin, int slice_tokens,
                          std::byte* slice) const {
  AwaitWholeRestore();
  CopyOutWith(&arena_->memory(), layer, begin, end, slice_begin, slice_tokens, slice);
}

std::unique_ptr<RowCopies> InvariantKv::StartCopyOut(const ObjectId& id, int begin, int end,
                                                     std::byte* bytes) const {
  const auto from = static_cast<uint32_t>(begin), to = static_cast<uint32_t>(end);
  const uint32_t chunk = layout_->chunk_tokens;
  assert(id.begin <= from && from < to && to <= id.begin + id.tokens && id.tokens <= chunk);
  const bool whole = to - from == chunk;
  const KvBlock& block = (whole ? WholeBlocks(id.group) : At(blocks_, id.group))[from / chunk];
  assert(block != nullptr);
  auto transfers = std::make_unique<Transfers>(&arena_->memory());
  transfers->Keep(block);
  if (whole && IsOnHost(block)) {
    host_->memory().Copy(CopyWay::kOut, bytes, block.get(),
                         {layout_->ObjectBytes(chunk, id.group)});
  } else if (whole) {  // the block has the layout of the object
    transfers->Copy(CopyWay::kOut, bytes, block.get(), {layout_->ObjectBytes(chunk, id.group)});
  } else {
    for (const uint32_t layer : layout_->LayersOf(id.group)) {
      CopyOutWith(transfers.get(), static_cast<int>(layer), begin, end, static_cast<int>(id.begin),
                  static_cast<int>(id.tokens), bytes);
      bytes += layout_->SliceBytes(id.tokens);
    }
  }
  transfers->Record();
  return transfers;
}

std::shared_ptr<std::byte[]> InvariantKv::Share(const ObjectId& id) const {
  const int begin = static_cast<int>(id.begin), end = static_cast<int>(id.begin + id.tokens);
  if (id.tokens != layout_->chunk_tokens || end > length_) return nullptr;
  if (id.group == LayerGroup::kLocal && begin < first_local_) return nullptr;
  AwaitWholeRestore();  // steps of other sequences may read the block
  return WholeBlocks(id.group)[id.begin / layout_->chunk_tokens];
}

bool InvariantKv::IsOffloaded(const ObjectId& id) const {
  const std::vector<KvBlock>& blocks = At(blocks_, id.group);
  const size_t split = id.begin / layout_->chunk_tokens;
  return split < blocks.size() && IsOnHost(blocks[split]);
}

void InvariantKv::Offload(KvBlocks* host) {
  assert(is_on_device() && !seals());
  host_ = host;
  ahead_ = {};
  keeps_spare_ = false;
  for (std::vector<KvBlock>& spare : spare_) spare.clear();
}

void InvariantKv::ReserveBlocks(size_t global_blocks, size_t local_blocks) {
  assert(!seals());
  At(ahead_, LayerGroup::kGlobal) = global_blocks;
  At(ahead_, LayerGroup::kLocal) = local_blocks;
  for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
    At(spare_, group).reserve(At(ahead_, group));  // so that push_back does not allocate
  }
  keeps_spare_ = true;
}

void InvariantKv::BeginRestore(int length) {
  assert(length >= 0);
  length_ = 0;
  restoring_ = length;
  incoming_.clear();
  arrivals_ = nullptr;
  for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
    const bool some = PlainBytes(*layout_, group) > 0;
    At(blocks_, group).clear();
    At(blocks_, group).resize(some ? SplitsTo(*layout_, length) : 0);
    At(sealed_, group).clear();
    if (seals())
      At(sealed_, group).resize(some ? static_cast<size_t>(length) / layout_->chunk_tokens : 0);
  }
  const int tail = static_cast<int>(LocalTailBegin(*layout_, static_cast<uint32_t>(length)));
  // If the tail is empty, no object is needed; the block at `length` then has no rows of earlier
  // objects.
  first_local_ = tail == length ? length : tail - tail % static_cast<int>(layout_->chunk_tokens);
}

absl::Status InvariantKv::Adopt(const ObjectId& id, KvBlock bytes, bool from_host) {
  assert(id.tokens == layout_->chunk_tokens && id.begin % layout_->chunk_tokens == 0);
  assert(!from_host || (is_offloaded() && id.group == LayerGroup::kGlobal));
  absl::StatusOr<KvBlock> block =
      (from_host ? host_ : arena_)
          ->Adopt(std::move(bytes), layout_->ObjectBytes(id.tokens, id.group));
  if (!block.ok()) return block.status();
  auto& blocks = seals() ? At(sealed_, id.group) : At(blocks_, id.group);
  blocks.at(id.begin / layout_->chunk_tokens) = *std::move(block);
  return absl::OkStatus();
}

// Copies the slice with index `index` of an object to the object's block.
template <typename Copier>
void InvariantKv::CopySlice(Copier* copier, const Incoming& object, size_t index) const {
  const auto chunk = static_cast<int>(layout_->chunk_tokens);
  const auto columns = static_cast<int>(object.id.tokens);
  const bool sealed = seals() && columns == chunk;
  const size_t bytes = sealed ? layout_->SliceBytes(layout_->chunk_tokens)
                              : layout_->PlainSliceBytes(layout_->chunk_tokens);
  std::byte* const to = object.block.get() + index * bytes;
  if (columns == chunk) return copier->Copy(object.way, to, object.slices[index], {bytes});
  CopyColumns(copier, object.way, *layout_, object.slices[index], columns, 0, columns, to, chunk,
              0);
}

absl::Status InvariantKv::CopyIn(const ObjectId& id, const std::vector<const std::byte*>& slices,
                                 bool within, std::shared_ptr<const void> owner) {
  const uint32_t chunk = layout_->chunk_tokens;
  assert(id.tokens <= chunk && id.begin % chunk == 0);
  assert(slices.size() == layout_->LayerCount(id.group));
  const bool sealed = seals() && id.tokens == chunk;
  const size_t slice_bytes = sealed ? layout_->SliceBytes(chunk) : layout_->PlainSliceBytes(chunk);
  absl::StatusOr<std::vector<KvBlock>> taken = arena_->Take({slices.size() * slice_bytes});
  if (!taken.ok()) return taken.status();
  Incoming object = {id, slices, within ? CopyWay::kWithin : CopyWay::kIn,
                     std::move(taken->front()), std::move(owner)};
  (sealed ? At(sealed_, id.group) : At(blocks_, id.group)).at(id.begin / chunk) = object.block;
  if (is_on_device()) {
    assert(object.owner != nullptr);
    incoming_.push_back(std::move(object));
    return absl::OkStatus();
  }
  for (size_t i = 0; i < slices.size(); ++i) CopySlice(&arena_->memory(), object, i);
  return absl::OkStatus();
}

// Starts to copy the objects layer by layer, in the order in which a step reads them.
void InvariantKv::StartIncoming() {
  if (incoming_.empty()) return;
  arrivals_ = std::make_shared<Transfers>(&arena_->memory());
  for (Incoming& object : incoming_) {
    arrivals_->Keep(object.block);
    arrivals_->Keep(std::move(object.owner));
  }
  for (size_t layer = 0; layer < layout_->layers.size(); ++layer) {
    const int number = static_cast<int>(layer);
    for (const Incoming& object : incoming_) {
      if (object.id.group != GroupOf(number)) continue;
      CopySlice(arrivals_.get(), object, LayersBefore(*layout_, number));
    }
    arrivals_->Record();
  }
  // The owner of other device memory lends it until the restore ends.
  const bool lent = std::any_of(incoming_.begin(), incoming_.end(), [](const Incoming& object) {
    return object.way == CopyWay::kWithin;
  });
  incoming_.clear();
  if (!lent) return;
  if (!arrivals_->Wait()) throw DeviceError("device: a copy of a restore failed");
  arrivals_ = nullptr;
}

void InvariantKv::FinishRestore() {
  const size_t whole = static_cast<size_t>(restoring_) / layout_->chunk_tokens;
  for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
    const int begin = group == LayerGroup::kLocal ? first_local_ : 0;
    if (begin == restoring_ || PlainBytes(*layout_, group) == 0) continue;
    // Adopt() or CopyIn() was called for each block that later rows read.
    for (size_t split = begin / layout_->chunk_tokens; split < SplitsTo(*layout_, restoring_);
         ++split) {
      assert((split < whole ? WholeBlocks(group) : At(blocks_, group))[split] != nullptr);
    }
  }
  StartIncoming();
  length_ = restoring_;
}

void InvariantKv::UseAdapter(std::shared_ptr<const LoraAdapter> adapter) {
  assert(length_ == 0);
  adapter_ = std::move(adapter);
}

void InvariantKv::ShareAll(const InvariantKv& other) {
  assert(this != &other && model_ == other.model_ && adapter_ == other.adapter_);
  host_ = other.host_;
  blocks_ = other.blocks_;
  sealed_ = other.sealed_;
  length_ = other.length_;
  first_local_ = other.first_local_;
  restoring_ = other.restoring_;
  arrivals_ = other.arrivals_;
  shares_end_ = length_ % static_cast<int>(layout_->chunk_tokens) != 0;
}

void InvariantKv::Drop(LayerGroup group, KvBlock* block) {
  if (keeps_spare_ && *block != nullptr && arena_->WasTaken(*block) && IsSole(*block)) {
    At(spare_, group).push_back(std::move(*block));
  }
  *block = nullptr;
}

// Drops the blocks to which no row from length_ on attends, and unsealed blocks that such rows read
// only in sealed form.
void InvariantKv::DropUnseen() {
  const size_t chunk = layout_->chunk_tokens;
  // The first row of the next step attends to its whole window.
  const size_t seen = LocalTailBegin(*layout_, static_cast<uint32_t>(length_)) / chunk;
  const auto drop = [this](LayerGroup group, std::vector<KvBlock>* blocks, size_t end) {
    for (size_t split = 0; split < std::min(end, blocks->size()); ++split) {
      Drop(group, &(*blocks)[split]);
    }
  };
  drop(LayerGroup::kLocal, &At(blocks_, LayerGroup::kLocal), seen);
  drop(LayerGroup::kLocal, &At(sealed_, LayerGroup::kLocal), seen);
  if (PlainBytes(*layout_, LayerGroup::kLocal) > 0) {
    first_local_ = std::max(first_local_, static_cast<int>(seen * chunk));
  }
  if (!seals()) return;
  for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
    drop(group, &At(blocks_, group), static_cast<size_t>(length_) / chunk);
  }
}

// Moves completed chunks of global layers to host memory, until the host budget is exhausted.
absl::Status InvariantKv::OffloadCompleted() {
  const size_t bytes = PlainBytes(*layout_, LayerGroup::kGlobal);
  if (host_ == nullptr || bytes == 0) return absl::OkStatus();
  std::vector<KvBlock>& blocks = At(blocks_, LayerGroup::kGlobal);
  for (size_t split = 0; split < static_cast<size_t>(length_) / layout_->chunk_tokens; ++split) {
    if (IsOnHost(blocks[split])) continue;
    absl::StatusOr<std::vector<KvBlock>> taken = host_->Take({bytes});
    if (!taken.ok()) return absl::IsInternal(taken.status()) ? taken.status() : absl::OkStatus();
    AwaitWholeRestore();
    arena_->memory().Copy(CopyWay::kOut, taken->front().get(), blocks[split].get(), {bytes});
    blocks[split] = std::move(taken->front());
  }
  return absl::OkStatus();
}

void InvariantKv::Put(KvBlock block, size_t split, size_t bytes, std::vector<KvBlock>* blocks) {
  blocks->resize(std::max(blocks->size(), split + 1));
  KvBlock& place = (*blocks)[split];
  if (place != nullptr) {
    AwaitWholeRestore();
    arena_->memory().Copy(CopyWay::kWithin, block.get(), place.get(), {bytes});
  }
  place = std::move(block);
}

absl::Status InvariantKv::MakeRoom(int tokens) {
  assert(tokens >= 0);
  if (length_ > restoring_) arrivals_ = nullptr;  // a step has waited for them
  DropUnseen();
  if (absl::Status offloaded = OffloadCompleted(); !offloaded.ok()) return offloaded;
  // First block to write.
  const size_t first = static_cast<size_t>(length_) / layout_->chunk_tokens;
  const size_t end = SplitsTo(*layout_, length_ + tokens);
  const size_t sealed_end = static_cast<size_t>(length_ + tokens) / layout_->chunk_tokens;
  MissingBlocks missing;
  for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
    const size_t bytes = PlainBytes(*layout_, group);
    if (bytes == 0) continue;
    std::vector<KvBlock>& have = At(blocks_, group);
    std::vector<KvBlock>& spare = At(spare_, group);
    size_t ahead = At(ahead_, group);
    if (ahead > 0) have.reserve(At(ahead_, LayerGroup::kGlobal));
    for (const KvBlock& block : have) ahead -= block != nullptr && ahead > 0 ? 1 : 0;
    for (size_t split = first; split < end; ++split) {
      const bool there = split < have.size() && have[split] != nullptr;
      const bool copied = shares_end_ && split == first && there && !IsSole(have[split]);
      if (there && !copied) continue;
      if (KvBlock block = TakeSpare(&spare); block != nullptr) {
        Put(std::move(block), split, bytes, &have);
      } else {
        missing.Add(bytes, &have, split);
      }
      ahead -= !there && ahead > 0 ? 1 : 0;
    }
    for (size_t more = spare.size(); more < ahead; ++more) missing.Add(bytes, &spare, more);
    std::vector<KvBlock>& whole = At(sealed_, group);
    for (size_t split = first; seals() && split < sealed_end; ++split) {
      if (split < whole.size() && whole[split] != nullptr) continue;
      missing.Add(layout_->ObjectBytes(layout_->chunk_tokens, group), &whole, split);
    }
  }
  if (!missing.sizes.empty()) {
    absl::StatusOr<std::vector<KvBlock>> taken = arena_->Take(missing.sizes);
    if (!taken.ok()) return taken.status();
    for (size_t i = 0; i < taken->size(); ++i) {
      const auto& [blocks, split] = missing.places[i];
      Put(std::move((*taken)[i]), split, missing.sizes[i], blocks);
    }
  }
  for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
    if (PlainBytes(*layout_, group) == 0) continue;
    for (size_t split = first; split < end; ++split) assert(At(blocks_, group)[split] != nullptr);
  }
  ahead_ = {};
  shares_end_ = false;
  return absl::OkStatus();
}

void InvariantKv::ReleaseRoom() {
  const size_t whole = static_cast<size_t>(length_) / layout_->chunk_tokens;
  for (const LayerGroup group : {LayerGroup::kGlobal, LayerGroup::kLocal}) {
    std::vector<KvBlock>& have = At(blocks_, group);
    for (size_t split = SplitsTo(*layout_, length_); split < have.size(); ++split)
      Drop(group, &have[split]);
    have.resize(std::min(have.size(), SplitsTo(*layout_, length_)));
    std::vector<KvBlock>& sealed = At(sealed_, group);
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

std::vector<std::byte*> InvariantKv::BlocksOf(LayerGroup group) const {
  std::vector<std::byte*> blocks;
  for (const KvBlock& block : At(blocks_, group)) {
    blocks.push_back(IsOnHost(block) ? nullptr : block.get());
  }
  return blocks;
}

std::vector<std::byte*> InvariantKv::SealedBlocksOf(LayerGroup group) const {
  std::vector<std::byte*> blocks;
  for (const KvBlock& block : At(sealed_, group)) blocks.push_back(block.get());
  return blocks;
}

std::vector<const std::byte*> InvariantKv::OffloadedBlocks() const {
  std::vector<const std::byte*> blocks;
  for (const KvBlock& block : At(blocks_, LayerGroup::kGlobal)) {
    blocks.push_back(IsOnHost(block) ? block.get() : nullptr);
  }
  return blocks;
}

std::byte* InvariantKv::SliceAt(int layer, int position) {
  const size_t split = static_cast<size_t>(position) / layout_->chunk_tokens;
  const std::vector<KvBlock>& blocks = At(blocks_, GroupOf(layer));
  assert(split < blocks.size() && blocks[split] != nullptr);
  return blocks[split].get() +
         LayersBefore(*layout_, layer) * layout_->PlainSliceBytes(layout_->chunk_tokens);
}

std::byte* InvariantKv::SealedAt(int layer, size_t split) {
  assert(At(sealed_, GroupOf(layer)).at(split) != nullptr);
  return At(sealed_, GroupOf(layer))[split].get() +
         LayersBefore(*layout_, layer) * layout_->SliceBytes(layout_->chunk_tokens);
}

}  // namespace hearth
