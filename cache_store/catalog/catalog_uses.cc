// Which restore points were used, and which would make room by going.
#include <algorithm>
#include <cassert>
#include <tuple>

#include "cache_store/catalog/catalog.h"

namespace hearth {
namespace {

// Where the names of an object are counted.
struct NameCount {
  uint32_t StoredObject::*names;
  uintptr_t StoredObject::*points;
  uint32_t RestorePointEntry::*sole;
};
constexpr NameCount kStoreNames{&StoredObject::restore_points, &StoredObject::points,
                                &RestorePointEntry::sole};
constexpr NameCount kHostNames{&StoredObject::host_restore_points, &StoredObject::host_points,
                               &RestorePointEntry::host_sole};

}  // namespace

bool Catalog::PastUse::operator<(const PastUse& other) const {
  return std::make_tuple(last_use, other.tokens, number) <
         std::make_tuple(other.last_use, tokens, other.number);
}

void Catalog::BeginAdopting() {
  assert(points_.empty());
  is_adopting_ = true;
}

void Catalog::EndAdopting(absl::Span<const Digest> ids, absl::Time now) {
  is_adopting_ = false;
  const auto add = [&](RestorePointEntry* point) {
    if (point != nullptr && !point->listed) feed_.Add(point, now);
  };
  for (const Digest& id : ids) add(Find(id));
  for (auto point = points_.begin(); feed_.size() < points_.size(); ++point) {
    add(point->second.get());
  }
}

std::vector<Catalog::PastUse> Catalog::UsesOf(absl::Span<const Digest> ids) const {
  std::vector<PastUse> uses;
  uses.reserve(ids.size());
  for (const Digest& id : ids) {
    const RestorePointEntry* point = Find(id);
    if (point == nullptr || point->listed) continue;
    uses.push_back({point->last_touch, point->tokens(), point->number, point->tick, id});
  }
  return uses;
}

void Catalog::AdoptUses(absl::Span<const PastUse> uses, absl::Time now) {
  for (const PastUse& use : uses) {
    RestorePointEntry* point = Find(use.id);
    if (point == nullptr || point->listed) continue;
    feed_.Adopt(point, use.last_use, now);
    if (point->tick == use.tick) {
      point->tick = --oldest_tick_;
    } else {
      feed_.Renew({point}, point->last_touch);
    }
  }
}

std::vector<std::pair<uint64_t, absl::Time>> Catalog::TakeUses(size_t most) {
  std::vector<std::pair<uint64_t, absl::Time>> uses;
  while (!used_.empty() && uses.size() < most) {
    RestorePointEntry* point = *used_.begin();
    used_.erase(used_.begin());
    point->noted = point->last_touch;
    // What is written later has it in its manifest.
    if (point->durable) uses.emplace_back(point->manifest, point->last_touch);
  }
  return uses;
}

void Catalog::Touch(RestorePointEntry* point, absl::Time now) {
  ++tick_;
  point->last_use = now;
  std::vector<const RestorePointEntry*> path;
  for (SegmentNode* node = point->node; node != nullptr; node = node->parent) {
    RestorePointEntry* used = node->restore_point;
    if (used == nullptr) continue;
    used->tick = tick_;
    used->last_touch = now;
    if (absl::ToUnixSeconds(now) != absl::ToUnixSeconds(used->noted)) used_.insert(used);
    path.push_back(used);
  }
  std::reverse(path.begin(), path.end());
  feed_.Renew(path, now);
}

bool Catalog::IsWorthWriting(const RestorePointEntry& point) const {
  uint64_t bytes = point.manifest_cost_bytes;
  for (const StoredObject* object : point.objects) {
    if (!object->on_disk) bytes += object->disk_cost_bytes();
  }
  if (disk_bytes() + bytes <= limits_.disk_bytes) return true;
  return !feed_.IsLeastWorth(point);
}

// An object knows the only point that names it: the addresses of all that do, combined by xor.
void Catalog::CountName(Retention::Scope scope, StoredObject* object, RestorePointEntry* point,
                        int by) {
  const NameCount& count = scope == Retention::Scope::kStore ? kStoreNames : kHostNames;
  const auto change_sole = [&](int change) {
    if (object->*count.names != 1) return;
    auto* only = reinterpret_cast<RestorePointEntry*>(object->*count.points);
    const bool was = only->*count.sole > 0;
    only->*count.sole += change;
    if (was != (only->*count.sole > 0)) feed_.Update(*only);
  };
  change_sole(-1);
  object->*count.points ^= reinterpret_cast<uintptr_t>(point);
  {
    const Change change(this, object);
    object->*count.names += by;
  }
  change_sole(1);
}

void Catalog::CheckSole() const {
  assert(feed_.held() == feed_.size());
  assert(is_adopting_ || feed_.size() == points_.size());
  for (const auto& [id, point] : points_) {
    assert(point->listed == feed_.Contains(*point));
    uint32_t sole = 0, host_sole = 0;
    for (const StoredObject* object : point->objects) {
      if (object->restore_points == 1) ++sole;
      if (point->in_host && object->host_restore_points == 1) ++host_sole;
    }
    assert(sole == point->sole && host_sole == point->host_sole);
  }
}

}  // namespace hearth
