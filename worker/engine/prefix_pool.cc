#include "worker/engine/prefix_pool.h"

#include <algorithm>
#include <cassert>
#include <iterator>

#include "proto/restore_rule.h"

namespace hearth {
namespace {

uint32_t CommonPrefix(absl::Span<const uint32_t> a, absl::Span<const uint32_t> b) {
  const size_t limit = std::min(a.size(), b.size());
  return static_cast<uint32_t>(std::mismatch(a.begin(), a.begin() + limit, b.begin()).first -
                               a.begin());
}

// If the device failed before an object was complete, its bits are unknown and differ from none.
// May wait for a device: call without a lock.
bool SameBits(const KvObjects& a, const KvObjects& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    if (x == y || !x->Complete() || !y->Complete()) return x->id == y->id;
    return x->id == y->id && x->slice_digests == y->slice_digests;
  });
}

// Returns the memory that restore points may share: a device block, or host memory.
const std::byte* MemoryOf(const KvObject& object) {
  return object.device_block != nullptr ? object.device_block.get() : object.bytes.get();
}

}  // namespace

PrefixPool::PrefixPool(uint64_t capacity_bytes, uint32_t chunk_tokens, Exactness exactness)
    : capacity_bytes_(capacity_bytes), chunk_tokens_(chunk_tokens), exactness_(exactness) {}

std::vector<uint32_t> PrefixPool::InnerCuts(const PrefixRequest& prefix, uint32_t boundary) const {
  std::vector<uint32_t> inner;
  if (!CutsAreKeyed(exactness_)) return inner;
  for (uint32_t cut : prefix.cuts) {
    if (cut < boundary && cut % chunk_tokens_ != 0) inner.push_back(cut);
  }
  return inner;
}

PooledPrefix PrefixPool::Lookup(const PrefixRequest& prefix, uint32_t max_boundary) {
  PooledPrefix found;
  if (capacity_bytes_ == 0) return found;
  assert(max_boundary <= prefix.token_ids.size());
  const std::vector<uint32_t> candidates =
      RestoreCandidates(max_boundary, prefix.cuts, chunk_tokens_);
  absl::MutexLock lock(&mu_);
  Points::iterator best = points_.end();
  for (auto it = points_.begin(); it != points_.end(); ++it) {
    if (it->tenant != prefix.tenant || it->adapter != prefix.adapter) continue;
    const uint32_t common = CommonPrefix(it->token_ids, prefix.token_ids);
    found.matched_tokens = std::max(found.matched_tokens, common);
    const uint32_t boundary = it->boundary();
    if (common < boundary || boundary <= found.boundary || boundary > max_boundary) continue;
    if (CutsAreKeyed(exactness_) &&
        !std::binary_search(candidates.begin(), candidates.end(), boundary)) {
      continue;
    }
    if (it->inner_cuts != InnerCuts(prefix, boundary)) continue;
    found.boundary = boundary;
    best = it;
  }
  if (best != points_.end()) {
    assert(found.boundary <= found.matched_tokens && found.boundary <= max_boundary);
    found.objects = best->objects;
    points_.splice(points_.begin(), points_, best);
  }
  return found;
}

PrefixPool::Points::iterator PrefixPool::FindExact(const PrefixRequest& prefix, uint32_t boundary) {
  mu_.AssertHeld();
  const std::vector<uint32_t> inner = InnerCuts(prefix, boundary);
  return std::find_if(points_.begin(), points_.end(), [&](const Point& point) {
    return point.boundary() == boundary && point.tenant == prefix.tenant &&
           point.adapter == prefix.adapter && point.inner_cuts == inner &&
           std::equal(point.token_ids.begin(), point.token_ids.end(), prefix.token_ids.begin());
  });
}

PrefixPool::InsertResult PrefixPool::Insert(const PrefixRequest& prefix, uint32_t boundary,
                                            const KvObjects& objects) {
  assert(boundary >= 1 && boundary <= prefix.token_ids.size());
  uint64_t point_bytes = 0;
  for (const auto& object : objects) {
    assert(object->bytes != nullptr);
    point_bytes += object->size_bytes;
  }
  if (point_bytes > capacity_bytes_) return InsertResult::kTooLarge;

  const std::optional<KvObjects> known = AddOrFind(prefix, boundary, objects);
  if (!known.has_value()) return InsertResult::kInserted;
  // In class portable, objects computed on different machines differ by rounding.
  const bool same = !BitsFollowKeys(exactness_) || SameBits(*known, objects);
  return same ? InsertResult::kPresent : InsertResult::kDiffers;
}

std::optional<KvObjects> PrefixPool::AddOrFind(const PrefixRequest& prefix, uint32_t boundary,
                                               const KvObjects& objects) {
  absl::MutexLock lock(&mu_);
  if (auto it = FindExact(prefix, boundary); it != points_.end()) {
    points_.splice(points_.begin(), points_, it);
    return it->objects;
  }
  points_.push_front({prefix.tenant,
                      prefix.adapter,
                      {prefix.token_ids.begin(), prefix.token_ids.begin() + boundary},
                      InnerCuts(prefix, boundary),
                      objects});
  for (auto& object : points_.front().objects) {
    Shared& shared = shared_[MemoryOf(*object)];
    if (++shared.points == 1) {
      shared.object = object;
      bytes_ += object->size_bytes;
    }
    object = shared.object;
  }
  // The new restore point fits alone and is the most recently used, so this loop never evicts it.
  while (bytes_ > capacity_bytes_) Evict(std::prev(points_.end()));
  assert(!points_.empty() && bytes_ <= capacity_bytes_);
  return std::nullopt;
}

void PrefixPool::UseDeviceBlocks(const KvObjects& objects) {
  absl::MutexLock lock(&mu_);
  std::map<const KvObject*, std::shared_ptr<const KvObject>> replaced;
  for (const auto& object : objects) {
    assert(object->device_block != nullptr);
    const auto old = shared_.find(object->bytes.get());
    if (old == shared_.end() || shared_.count(MemoryOf(*object)) > 0) continue;
    auto node = shared_.extract(old);
    replaced[node.mapped().object.get()] = object;
    node.key() = MemoryOf(*object);
    node.mapped().object = object;
    shared_.insert(std::move(node));
  }
  if (replaced.empty()) return;
  for (Point& point : points_) {
    for (auto& object : point.objects) {
      if (const auto at = replaced.find(object.get()); at != replaced.end()) object = at->second;
    }
  }
}

void PrefixPool::Forget(const PrefixRequest& prefix, uint32_t boundary) {
  absl::MutexLock lock(&mu_);
  for (auto it = points_.begin(); it != points_.end();) {
    const Points::iterator point = it++;
    const uint32_t common = CommonPrefix(point->token_ids, prefix.token_ids);
    if (point->tenant != prefix.tenant || point->adapter != prefix.adapter) continue;
    if (common >= std::min(boundary, point->boundary())) Evict(point);
  }
}

void PrefixPool::Clear() {
  absl::MutexLock lock(&mu_);
  while (!points_.empty()) Evict(std::prev(points_.end()));
}

uint32_t PrefixPool::OnlyHolders(const std::shared_ptr<const KvObject>& object,
                                 absl::FunctionRef<bool(const KvObject&)> counts) const {
  mu_.AssertHeld();
  const uint32_t points = shared_.at(MemoryOf(*object)).points;
  // Another thread may take or release a reference during this check. At worst the pool evicts one
  // restore point needlessly, or the caller retries.
  // Evicting an object frees the memory that `counts` counts: the block, if it has one. Other
  // objects may have the same bytes in host memory, and blocks of their own.
  const auto& memory = object->device_block != nullptr ? object->device_block : object->bytes;
  const bool ours = object.use_count() == static_cast<long>(points) + 1 &&  // NOLINT: its type
                    memory.use_count() == 1;
  return ours && counts(*object) ? points : 0;
}

bool PrefixPool::EvictOne(absl::FunctionRef<bool(const KvObject&)> counts) {
  absl::MutexLock lock(&mu_);
  Points::iterator together = points_.end();
  for (auto it = points_.end(); it != points_.begin();) {
    --it;
    uint32_t fewest = 0;
    for (const auto& object : it->objects) {
      const uint32_t holders = OnlyHolders(object, counts);
      if (holders > 0) fewest = fewest == 0 ? holders : std::min(fewest, holders);
    }
    if (fewest == 1) {
      Evict(it);
      return true;
    }
    if (fewest > 1 && together == points_.end()) together = it;
  }
  if (together == points_.end()) return false;
  Evict(together);
  return true;
}

uint64_t PrefixPool::EvictableBytes(absl::FunctionRef<bool(const KvObject&)> counts) const {
  absl::MutexLock lock(&mu_);
  uint64_t bytes = 0;
  for (const auto& [memory, shared] : shared_) {
    if (OnlyHolders(shared.object, counts) > 0) bytes += shared.object->size_bytes;
  }
  return bytes;
}

void PrefixPool::Evict(Points::iterator point) {
  mu_.AssertHeld();
  for (const auto& object : point->objects) {
    const auto shared = shared_.find(MemoryOf(*object));
    assert(shared != shared_.end());
    if (--shared->second.points > 0) continue;
    assert(bytes_ >= object->size_bytes);
    bytes_ -= object->size_bytes;
    shared_.erase(shared);
  }
  points_.erase(point);
  assert(!points_.empty() || (bytes_ == 0 && shared_.empty()));
}

uint64_t PrefixPool::bytes() const {
  absl::MutexLock lock(&mu_);
  return bytes_;
}

}  // namespace hearth
