#include "cache_store/store/background/unloaded_index.h"

#include <algorithm>
#include <functional>

namespace hearth {

UnloadedIndex::UnloadedIndex(DiskContents contents)
    : pinned_(contents.pinned.begin(), contents.pinned.end()),
      uses_(contents.uses.begin(), contents.uses.end()),
      unreadable_objects_(std::move(contents.unreadable_objects)),
      next_number_(contents.last_number + 1) {
  const auto above = [this](uint64_t number) { next_number_ = std::max(next_number_, number + 1); };
  for (const FingerprintRecord& record : contents.fingerprints) {
    models_[{record.tenant, record.fingerprint.digest()}] = MakeKnown(record.fingerprint);
  }
  objects_.reserve(contents.objects.size());
  for (ObjectRecord& record : contents.objects) {
    const uint64_t number = record.number;
    above(number);
    objects_.emplace(number, Object{std::move(record)});
  }
  manifests_.reserve(contents.manifests.size());
  for (const ManifestNames& manifest : contents.manifests) {
    above(manifest.number);
    manifests_.push_back({manifest.number});
  }
  for (const auto& [number, used] : uses_) {
    above(number);
    if (Find(number) == manifests_.end()) stray_uses_.push_back(number);
  }
  std::for_each(contents.pinned.begin(), contents.pinned.end(), above);
  std::for_each(unreadable_objects_.begin(), unreadable_objects_.end(), above);
  left_ = manifests_.size();
  AddKeys(contents.manifests);
  Order(contents.manifests);
}

void UnloadedIndex::AddKeys(const std::vector<ManifestNames>& manifests) {
  ending_at_.reserve(manifests.size());
  // Those that lost an object, which the catalog will not take: nothing is looked for with them.
  std::vector<const ManifestNames*> torn;
  const auto is_there = [this](uint64_t number) { return objects_.contains(number); };
  for (const ManifestNames& manifest : manifests) {
    if (manifest.objects.empty()) continue;
    if (!std::all_of(manifest.objects.begin(), manifest.objects.end(), is_there)) {
      torn.push_back(&manifest);
      continue;
    }
    const bool has_end = manifest.expires_unix_s > 0 && !pinned_.contains(manifest.number);
    const uint64_t until = has_end ? manifest.expires_unix_s : ~uint64_t{0};
    for (const uint64_t number : manifest.objects) {
      Object& object = objects_.at(number);
      if (until < object.until) continue;
      object.manifest = manifest.number;
      object.until = until;
    }
    // The last object is of the last segment, whose key is the restore point's.
    const ObjectRecord& last = objects_.at(manifest.objects.back()).record;
    ambiguous_ |= !ending_at_.emplace(last.key, manifest.number).second;
    const ObjectId& id = last.id;
    for (auto it = manifest.objects.rbegin() + 1; it != manifest.objects.rend(); ++it) {
      const ObjectRecord& before = objects_.at(*it).record;
      const ObjectId& chunk = before.id;
      if (chunk.begin == id.begin) continue;
      if (chunk.begin + chunk.tokens == id.begin && id.tokens < chunk.tokens) {
        remainders_of_[before.key].push_back(manifest.number);
      }
      break;
    }
  }
  for (const ManifestNames* manifest : torn) {
    const auto last = objects_.find(manifest->objects.back());
    if (last != objects_.end()) ending_at_.emplace(last->second.record.key, manifest->number);
  }
  objects_of_.reserve(objects_.size());
  for (const auto& [number, object] : objects_) {
    if (object.manifest == 0) continue;
    uint64_t& place = objects_of_[object.record.key][static_cast<size_t>(object.record.id.group)];
    ambiguous_ |= place != 0;
    place = number;
  }
}

std::vector<UnloadedIndex::Pending>::const_iterator UnloadedIndex::Find(uint64_t manifest) const {
  const auto found = std::lower_bound(
      manifests_.begin(), manifests_.end(), manifest,
      [](const Pending& pending, uint64_t number) { return pending.number < number; });
  return found != manifests_.end() && found->number == manifest ? found : manifests_.end();
}

bool UnloadedIndex::IsPending(uint64_t manifest) const {
  const auto found = Find(manifest);
  return found != manifests_.end() && !found->is_done;
}

bool UnloadedIndex::IsFresh(uint64_t manifest) const {
  const auto found = Find(manifest);
  return found != manifests_.end() && !found->is_done && found->tries == 0;
}

bool UnloadedIndex::IsPendingAt(const Digest& key) const {
  const auto found = ending_at_.find(key);
  return found != ending_at_.end() && IsPending(found->second);
}

void UnloadedIndex::Postpone(uint64_t manifest) {
  const auto found = Find(manifest);
  if (found == manifests_.end() || found->is_done) return;
  Pending& pending = manifests_[static_cast<size_t>(found - manifests_.begin())];
  if (pending.tries++ == 0) postponed_.push_back(manifest);
  if (pending.tries < kMaxTries) return;
  MarkDone(manifest);
  ++given_up_;
}

bool UnloadedIndex::MarkDone(uint64_t manifest) {
  const auto found = Find(manifest);
  if (found == manifests_.end() || found->is_done) return false;
  manifests_[static_cast<size_t>(found - manifests_.begin())].is_done = true;
  --left_;
  return true;
}

void UnloadedIndex::Order(const std::vector<ManifestNames>& manifests) {
  std::vector<std::pair<uint64_t, uint64_t>> uses;
  uses.reserve(manifests.size());
  for (const ManifestNames& manifest : manifests) {
    const uint64_t used = std::max(manifest.created_unix_s, UseOf(manifest.number));
    uses.emplace_back(ambiguous_ ? 0 : used, manifest.number);
  }
  std::sort(uses.begin(), uses.end());
  order_.reserve(uses.size());
  for (const auto& [used, number] : uses) order_.push_back(number);
  end_ = order_.size();
}

std::vector<Digest> UnloadedIndex::Ids() const {
  std::vector<Digest> ids;
  ids.reserve(ending_at_.size());
  for (const auto& [id, manifest] : ending_at_) ids.push_back(id);
  return ids;
}

std::vector<uint64_t> UnloadedIndex::Next(size_t most) {
  while (end_ > 0 && !IsFresh(order_[end_ - 1])) --end_;
  std::vector<uint64_t> numbers;
  for (size_t i = end_; i > 0 && numbers.size() < most; --i) {
    if (IsFresh(order_[i - 1])) numbers.push_back(order_[i - 1]);
  }
  if (!numbers.empty()) return numbers;
  for (const uint64_t number : postponed_) {
    if (IsPending(number)) numbers.push_back(number);
  }
  return numbers;
}

std::vector<uint64_t> UnloadedIndex::EndingAt(const Digest& key) const {
  const auto found = ambiguous_ ? ending_at_.end() : ending_at_.find(key);
  if (found == ending_at_.end() || !IsPending(found->second)) return {};
  return {found->second};
}

std::vector<uint64_t> UnloadedIndex::Touching(const PromptChain& chain, Exactness exactness) const {
  std::vector<uint64_t> numbers;
  if (ambiguous_ || left_ == 0) return numbers;
  const auto add = [&](const KeyedSegment& segment) {
    for (const uint64_t number : EndingAt(segment.key)) numbers.push_back(number);
    const auto found = objects_of_.find(segment.key);
    if (found == objects_of_.end()) return;
    for (const uint64_t number : found->second) {
      const auto object = objects_.find(number);
      if (object == objects_.end() || object->second.adopted != nullptr) continue;
      if (IsPending(object->second.manifest)) numbers.push_back(object->second.manifest);
    }
  };
  std::for_each(chain.chunks.begin(), chain.chunks.end(), add);
  std::for_each(chain.remainders.begin(), chain.remainders.end(), add);
  for (const KeyedSegment& chunk : chain.chunks) {
    const auto found =
        !CutsAreKeyed(exactness) ? remainders_of_.find(chunk.key) : remainders_of_.end();
    if (found == remainders_of_.end()) continue;
    for (const uint64_t number : found->second) {
      if (IsPending(number)) numbers.push_back(number);
    }
  }
  std::sort(numbers.begin(), numbers.end(), std::greater<>());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

}  // namespace hearth
