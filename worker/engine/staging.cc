#include "worker/engine/staging.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "proto/restore_rule.h"
#include "worker/engine/late_object.h"

namespace hearth {
namespace {

// Copies rows [begin, end) of `kv` into the object, as far as they belong to it. If `kv` is on a
// device, the copy runs during later steps.
void AddRows(const KvLayout& layout, const SequenceKv& kv, uint32_t begin, uint32_t end,
             KvObject* object) {
  if (!kv.is_on_device()) return CopyRows(layout, kv, begin, end, object);
  const uint32_t first = std::max(begin, object->id.begin);
  const uint32_t last = std::min(end, object->id.begin + object->id.tokens);
  if (first >= last) return;
  if (object->late == nullptr) object->late = std::make_shared<LateObject>(layout, object);
  static_cast<LateObject*>(object->late.get())
      ->Add(kv.StartCopyOut(object->id, static_cast<int>(first), static_cast<int>(last),
                            object->bytes.get()));
}

// Seals an object whose rows have all been added. A late object is sealed by Complete.
void Seal(const KvLayout& layout, KvObject* object) {
  if (object->late == nullptr) SealObject(layout, object);
}

// Returns the object of a whole chunk, which references the chunk's KV block. If the block is on a
// device, the object also has a host copy, for publishing.
std::shared_ptr<KvObject> SharedObject(const KvLayout& layout, const ObjectId& id,
                                       const SequenceKv& kv) {
  std::shared_ptr<std::byte[]> bytes = kv.Share(id);
  if (bytes == nullptr) return nullptr;
  if (kv.is_on_device()) {
    std::shared_ptr<KvObject> copy = NewObject(layout, id);
    AddRows(layout, kv, id.begin, id.begin + id.tokens, copy.get());
    if (!kv.IsOffloaded(id) && !kv.WillOffload(id.group)) copy->device_block = std::move(bytes);
    return copy;
  }
  auto object = std::make_shared<KvObject>();
  object->id = id;
  object->size_bytes = layout.ObjectBytes(id.tokens, id.group);
  object->bytes = std::move(bytes);
  return object;
}

}  // namespace

uint64_t DefaultStagingBytes(const KvLayout& layout) {
  const uint64_t tail = layout.ObjectBytes(layout.window + layout.chunk_tokens, LayerGroup::kLocal);
  return std::max(uint64_t{1} << 30, 2 * tail);
}

StagingBudget::Lease& StagingBudget::Lease::operator=(Lease&& other) noexcept {
  if (this == &other) return *this;
  GiveBack();
  budget_ = std::exchange(other.budget_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

StagingBudget::Lease::~Lease() { GiveBack(); }

void StagingBudget::Lease::GiveBack() {
  if (budget_ == nullptr) return;
  const uint64_t before = budget_->used_bytes_.fetch_sub(bytes_);
  assert(before >= bytes_);
}

void StagingBudget::Lease::Merge(Lease other) {
  if (other.budget_ == nullptr) return;
  assert(budget_ == nullptr || budget_ == other.budget_);
  budget_ = std::exchange(other.budget_, nullptr);
  bytes_ += std::exchange(other.bytes_, 0);
}

bool StagingBudget::Extend(uint64_t bytes, Lease* lease) {
  assert(lease->budget_ == nullptr || lease->budget_ == this);
  uint64_t used = used_bytes_.load();
  do {
    assert(used <= limit_bytes_);
    if (bytes > limit_bytes_ - used) return false;
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes));
  lease->budget_ = this;
  lease->bytes_ += bytes;
  return true;
}

StagedSnapshots::StagedSnapshots(const KvLayout& layout, const std::vector<uint32_t>& kept,
                                 uint32_t restored_boundary, const KvObjects& restored,
                                 StagingBudget* budget, bool shares_chunks, bool is_on_device)
    : layout_(layout), shares_chunks_(shares_chunks), is_on_device_(is_on_device) {
  for (const auto& object : restored) restored_[object->id] = object;
  // The highest boundary is planned first, because the next chat turn continues from it.
  for (auto boundary = kept.rbegin(); boundary != kept.rend(); ++boundary) {
    assert(*boundary > restored_boundary);
    if (Plan(*boundary, restored_boundary, budget)) {
      boundaries_.push_back(*boundary);
    } else {
      ++skipped_;
    }
  }
  std::reverse(boundaries_.begin(), boundaries_.end());
}

bool StagedSnapshots::Plan(uint32_t boundary, uint32_t restored_boundary, StagingBudget* budget) {
  std::map<ObjectId, Growing> added;
  uint64_t held_bytes = 0;  // bytes of blocks that only this snapshot makes the sequence keep
  for (const ObjectId& id : NeededObjects(layout_, boundary)) {
    if (restored_.count(id) != 0 || growing_.count(id) != 0) continue;
    // Neither restored nor computed by this sequence.
    if (id.begin + id.tokens <= restored_boundary) continue;
    Growing growing;
    if (id.begin < restored_boundary && !IsShared(id)) {
      // The first rows were restored with an object that ends at restored_boundary.
      const auto seed = restored_.find({id.begin, restored_boundary - id.begin, id.group});
      if (seed == restored_.end()) continue;
      growing.seed = seed->second;
    }
    if (!IsShared(id) || is_on_device_ || id.group == LayerGroup::kLocal)
      held_bytes += layout_.ObjectBytes(id.tokens, id.group);
    added.emplace(id, std::move(growing));
  }
  StagingBudget::Lease more;
  if (!budget->Extend(held_bytes, &more)) return false;
  lease_.Merge(std::move(more));
  growing_.merge(added);
  return true;
}

KvObjects StagedSnapshots::ShareRestored(const SequenceKv& kv) {
  KvObjects shared;
  if (!is_on_device_) return shared;
  for (auto& [id, object] : restored_) {
    if (!IsShared(id) || object->bytes == nullptr || object->device_block != nullptr ||
        kv.IsOffloaded(id) || kv.WillOffload(id.group)) {
      continue;
    }
    std::shared_ptr<std::byte[]> block = kv.Share(id);
    if (block == nullptr) continue;     // out of the window
    if (!object->Complete()) continue;  // its late bytes belong to the old object
    auto with_block = std::make_shared<KvObject>(*object);
    with_block->device_block = std::move(block);
    with_block->late = nullptr;
    object = std::move(with_block);
    shared.push_back(object);
  }
  return shared;
}

uint32_t StagedSnapshots::Drop() {
  const auto dropped = static_cast<uint32_t>(boundaries_.size());
  skipped_ += dropped;
  boundaries_.clear();
  restored_.clear();
  growing_.clear();
  lease_ = StagingBudget::Lease();
  return dropped;
}

void StagedSnapshots::Start(const ObjectId& id, Growing* growing) const {
  growing->object = NewObject(layout_, id);
  if (growing->seed != nullptr && growing->seed->Complete())
    CopyRows(layout_, *growing->seed, growing->object.get());
}

void StagedSnapshots::Record(const SequenceKv& kv, uint32_t begin, uint32_t end) {
  assert(begin < end && static_cast<int>(end) == kv.length());
  for (auto& [id, growing] : growing_) {
    if (id.begin >= end) break;  // objects are sorted by id.begin
    const uint32_t object_end = id.begin + id.tokens;
    if (growing.sealed || object_end <= begin) continue;
    if (IsShared(id)) {
      if (object_end > end) continue;
      growing.object = SharedObject(layout_, id, kv);
      if (growing.object == nullptr) continue;  // the restore did not bring all its rows
    } else {
      if (growing.object == nullptr) Start(id, &growing);
      AddRows(layout_, kv, begin, end, growing.object.get());
    }
    if (object_end <= end) {
      Seal(layout_, growing.object.get());
      growing.sealed = true;
    }
  }
}

bool StagedSnapshots::AddNow(const SequenceKv& kv, StagingBudget* budget) {
  assert(shares_chunks_);
  const uint32_t boundary = static_cast<uint32_t>(kv.length());
  for (const ObjectId& id : NeededObjects(layout_, boundary)) {
    const auto restored = restored_.find(id);
    if (restored != restored_.end() && restored->second->bytes != nullptr) continue;
    Growing& growing = growing_[id];
    if (growing.sealed) continue;
    const bool costs = !IsShared(id) || kv.is_on_device();
    const bool fits = !costs || budget->Extend(layout_.ObjectBytes(id.tokens, id.group), &lease_);
    if (IsShared(id)) {
      growing.object = fits ? SharedObject(layout_, id, kv) : nullptr;
    } else if (fits) {
      growing.object = NewObject(layout_, id);
      AddRows(layout_, kv, id.begin, boundary, growing.object.get());
    }
    if (growing.object == nullptr) {
      growing_.erase(id);
      return false;
    }
    Seal(layout_, growing.object.get());
    growing.sealed = true;
    restored_.erase(id);  // the restored object had no bytes
  }
  boundaries_.push_back(boundary);
  return true;
}

KvObjects StagedSnapshots::ObjectsOf(uint32_t boundary) const {
  KvObjects objects;
  for (const ObjectId& id : NeededObjects(layout_, boundary)) {
    if (auto it = restored_.find(id); it != restored_.end()) {
      objects.push_back(it->second);
    } else if (auto it = growing_.find(id); it != growing_.end() && it->second.object != nullptr) {
      assert(it->second.sealed);
      objects.push_back(it->second.object);
    } else {
      auto absent = std::make_shared<KvObject>();
      absent->id = id;
      objects.push_back(std::move(absent));
    }
  }
  return objects;
}

}  // namespace hearth
