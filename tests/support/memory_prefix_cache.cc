#include "tests/support/memory_prefix_cache.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

std::shared_ptr<const KvObject> CopyOf(const KvObject& object) {
  auto copy = std::make_shared<KvObject>(object);
  copy->device_block = nullptr;
  copy->bytes = AllocateAligned(object.size_bytes);
  std::memcpy(copy->bytes.get(), object.bytes.get(), object.size_bytes);
  return copy;
}

}  // namespace

std::vector<uint32_t> MemoryPrefixCache::InnerCuts(const PrefixRequest& prefix,
                                                   uint32_t end) const {
  std::vector<uint32_t> inner;
  if (!CutsAreKeyed(layout_.exactness)) return inner;
  for (uint32_t cut : prefix.cuts) {
    if (cut < end && cut % layout_.chunk_tokens != 0) inner.push_back(cut);
  }
  return inner;
}

std::string MemoryPrefixCache::PointKey(const PrefixRequest& prefix, uint32_t boundary) const {
  const auto tokens = absl::MakeConstSpan(prefix.token_ids).subspan(0, boundary);
  return absl::StrCat(prefix.tenant, "|", absl::StrJoin(tokens, ","), "|",
                      absl::StrJoin(InnerCuts(prefix, boundary), ","));
}

std::string MemoryPrefixCache::ObjectKey(const PrefixRequest& prefix, const ObjectId& id) const {
  return absl::StrCat(PointKey(prefix, id.begin + id.tokens), "|", id.begin,
                      id.group == LayerGroup::kGlobal ? "g" : "l");
}

FetchOutcome MemoryPrefixCache::Fetch(const PrefixRequest& prefix, uint32_t above_tokens,
                                      uint32_t max_tokens, absl::Duration timeout) {
  (void)timeout;
  if (before_fetch != nullptr) before_fetch();
  FetchOutcome outcome;
  {
    absl::MutexLock lock(&mu_);
    ++fetches_;
    last_above_tokens_ = above_tokens;
    for (const PublishRequestSpec& spec : published_) {
      if (spec.prefix.tenant != prefix.tenant) continue;
      const auto& theirs = spec.prefix.token_ids;
      const size_t limit = std::min(theirs.size(), prefix.token_ids.size());
      uint32_t common = 0;
      while (common < limit && theirs[common] == prefix.token_ids[common]) ++common;
      outcome.matched_tokens = std::max(outcome.matched_tokens, common);
    }
    std::vector<uint32_t> candidates =
        RestoreCandidates(max_tokens, prefix.cuts, layout_.chunk_tokens);
    if (!CutsAreKeyed(layout_.exactness)) {
      candidates.resize(max_tokens);
      std::iota(candidates.begin(), candidates.end(), 1);
    }
    std::reverse(candidates.begin(), candidates.end());
    for (uint32_t boundary : candidates) {
      if (boundary <= above_tokens || points_.count(PointKey(prefix, boundary)) == 0) continue;
      outcome.usable_tokens = boundary;
      outcome.slowest_tier = tier;
      for (const ObjectId& id : NeededObjects(layout_, boundary)) {
        outcome.objects.push_back(CopyOf(*objects_.at(ObjectKey(prefix, id))));
      }
      break;
    }
  }
  if (mangle != nullptr) mangle(&outcome);
  return outcome;
}

bool MemoryPrefixCache::Store(const PublishRequestSpec& spec, PublishOutcome* outcome) {
  for (const auto& object : spec.objects) {
    if (object->bytes == nullptr) continue;
    auto& slot = objects_[ObjectKey(spec.prefix, object->id)];
    if (slot == nullptr) {
      slot = CopyOf(*object);
      outcome->bytes_sent += object->size_bytes;
    } else if (slot->slice_digests != object->slice_digests) {
      ++conflicts_;
      return false;
    }
  }
  return true;
}

PublishOutcome MemoryPrefixCache::Publish(const PublishRequestSpec& spec, absl::Duration timeout) {
  (void)timeout;
  if (before_publish != nullptr) before_publish();
  PublishOutcome outcome;
  absl::MutexLock lock(&mu_);
  if (refuse_publishes) {
    outcome.note = "refused";
    return outcome;
  }
  std::vector<ObjectId> lacked;
  for (const auto& object : spec.objects) {
    const bool is_new = objects_.count(ObjectKey(spec.prefix, object->id)) == 0;
    if (object->bytes != nullptr && is_new) lacked.push_back(object->id);
  }
  if (spec.on_plan != nullptr) spec.on_plan(lacked);
  published_.push_back(spec);
  published_.back().on_plan = nullptr;
  // Copy the bytes, because the caller may reuse the memory after this call.
  for (auto& object : published_.back().objects) {
    if (object->bytes != nullptr) object = CopyOf(*object);
  }
  if (!Store(spec, &outcome)) {
    outcome.note = "conflict";
    return outcome;
  }
  for (uint32_t boundary : spec.boundaries) {
    bool whole = true;
    for (const ObjectId& id : NeededObjects(layout_, boundary)) {
      whole = whole && objects_.count(ObjectKey(spec.prefix, id)) == 1;
    }
    if (!whole) continue;
    points_[PointKey(spec.prefix, boundary)] = {spec.prefix.tenant, boundary};
    outcome.boundaries.push_back(boundary);
    outcome.published_tokens = boundary;
  }
  outcome.durable = Durability::kMemory;
  return outcome;
}

void MemoryPrefixCache::WaitForPublishes(size_t count) const {
  const auto is_done = [this, count]()
                           ABSL_SHARED_LOCKS_REQUIRED(mu_) { return published_.size() >= count; };
  absl::MutexLock lock(&mu_, absl::Condition(&is_done));
}

void MemoryPrefixCache::Clear() {
  absl::MutexLock lock(&mu_);
  objects_.clear();
  points_.clear();
  published_.clear();
}

std::vector<uint32_t> MemoryPrefixCache::BoundariesOf(const std::string& tenant) const {
  absl::MutexLock lock(&mu_);
  std::vector<uint32_t> boundaries;
  for (const auto& [key, point] : points_) {
    if (point.tenant == tenant) boundaries.push_back(point.boundary);
  }
  std::sort(boundaries.begin(), boundaries.end());
  return boundaries;
}

int MemoryPrefixCache::conflicts() const {
  absl::MutexLock lock(&mu_);
  return conflicts_;
}

int MemoryPrefixCache::fetches() const {
  absl::MutexLock lock(&mu_);
  return fetches_;
}

uint32_t MemoryPrefixCache::last_above_tokens() const {
  absl::MutexLock lock(&mu_);
  return last_above_tokens_;
}

std::vector<PublishRequestSpec> MemoryPrefixCache::published() const {
  absl::MutexLock lock(&mu_);
  return published_;
}

bool MemoryPrefixCache::Quarantine(const PrefixRequest& prefix,
                                   const std::vector<ObjectId>& objects, absl::Duration) {
  absl::MutexLock lock(&mu_);
  for (const ObjectId& id : objects) {
    quarantined_.push_back(id);
    objects_.erase(ObjectKey(prefix, id));
  }
  // Also remove the restore points that need the object. The next publish creates them again.
  points_.clear();
  return true;
}

void MemoryPrefixCache::Lend(FetchOutcome* outcome) const {
  for (auto& object : outcome->objects) {
    auto lent = std::make_shared<KvObject>(*object);
    lent->device_bytes = {lent->bytes, lent->bytes.get()};
    if (lent->id.tokens == layout_.chunk_tokens) lent->bytes = nullptr;
    object = std::move(lent);
  }
}

void MemoryPrefixCache::Poison(const PrefixRequest& prefix, const ObjectId& id) {
  absl::MutexLock lock(&mu_);
  auto& slot = objects_.at(ObjectKey(prefix, id));
  auto poisoned = std::make_shared<KvObject>(*slot);
  poisoned->bytes = AllocateAligned(slot->size_bytes);
  std::memcpy(poisoned->bytes.get(), slot->bytes.get(), slot->size_bytes);
  poisoned->bytes[slot->size_bytes / 2] ^= std::byte{1};
  const size_t slice_bytes = layout_.SliceBytes(id.tokens);
  for (size_t i = 0; i < poisoned->slice_digests.size(); ++i) {
    poisoned->slice_digests[i] = SliceDigest(poisoned->bytes.get() + i * slice_bytes, slice_bytes);
  }
  slot = poisoned;
}

std::vector<ObjectId> MemoryPrefixCache::quarantined() const {
  absl::MutexLock lock(&mu_);
  return quarantined_;
}

}  // namespace hearth
