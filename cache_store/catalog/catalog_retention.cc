// What the catalog tells its retention policy: which restore points there are, which were used, and
// which would make room by going.
#include <algorithm>
#include <cassert>
#include <cstring>
#include <tuple>

#include "cache_store/catalog/catalog.h"

namespace hearth {
namespace {

// The rest of a key adds nothing: 128 bits of a keyed hash chain do not meet by chance.
Retention::Key KeyOf(const Digest& key) {
  uint64_t parts[2];
  static_assert(sizeof(parts) <= sizeof(Digest));
  std::memcpy(parts, key.data(), sizeof(parts));
  return absl::MakeUint128(parts[0], parts[1]);
}

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

bool IsLocal(const StoredObject* object) { return object->id.group == LayerGroup::kLocal; }

// The point that another one of the same publish goes and stays with: a prompt's end, and the
// boundary before it, which are numbered one after the other.
const RestorePointEntry* Companion(const RestorePointEntry& point) {
  const SegmentNode* before = point.node->parent;
  if (before->restore_point != nullptr && before->restore_point->number + 1 == point.number) {
    return before->restore_point;
  }
  for (const SegmentNode* after : point.node->children) {
    const RestorePointEntry* end = after->restore_point;
    if (end != nullptr && end->number == point.number + 1) return end;
  }
  return nullptr;
}

Retention::Facts FactsOf(const RestorePointEntry& point) {
  Retention::Facts facts;
  facts.owner = point.account->owner;
  facts.tokens = facts.gain_tokens = point.tokens();
  facts.cost_steps = point.model->cost_steps;
  uint32_t tail_begin = point.tokens();
  for (const StoredObject* object : point.objects) {
    facts.bytes += object->bytes();
    if (!IsLocal(object)) continue;
    facts.tail_bytes += object->bytes();
    tail_begin = std::min(tail_begin, object->id.begin);
  }
  const SegmentNode* node = point.node->parent;
  while (node != nullptr && node->restore_point == nullptr) node = node->parent;
  if (node != nullptr) facts.parent = KeyOf(node->key);
  const RestorePointEntry* with = Companion(point);
  if (with == nullptr) return facts;
  facts.with = KeyOf(with->id);
  for (const StoredObject* object : with->objects) {
    if (!IsLocal(object) || object->id.begin >= tail_begin) continue;
    facts.tail_bytes += object->bytes();
    facts.bytes += object->bytes();
  }
  return facts;
}

}  // namespace

void Catalog::BeginPublish(uint32_t tokens) {
  ++publish_.number;
  publish_.tokens = tokens;
}

void Catalog::Register(RestorePointEntry* point, absl::Time now) {
  if (is_adopting_) return;
  retention_->Insert(KeyOf(point->id), FactsOf(*point), {publish_.number, publish_.tokens, now});
  SetListed(point);
}

void Catalog::SetListed(RestorePointEntry* point) {
  by_key_[KeyOf(point->id)] = point;
  point->listed = true;
  UpdateEvictable(point);
}

void Catalog::Delist(RestorePointEntry* point, bool may_return) {
  if (!point->listed) return;
  by_key_.erase(KeyOf(point->id));
  retention_->Erase(KeyOf(point->id), may_return);
}

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
  const auto enlist = [&](RestorePointEntry* point) {
    if (point != nullptr && !point->listed) Register(point, now);
  };
  for (const Digest& id : ids) enlist(Find(id));
  for (auto point = points_.begin(); by_key_.size() < points_.size(); ++point) {
    enlist(point->second.get());
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
    const Retention::Key key = KeyOf(use.id);
    retention_->Adopt(key, FactsOf(*point), !point->node->children.empty(), use.last_use, now);
    SetListed(point);
    if (point->tick == use.tick) {
      point->tick = --oldest_tick_;
    } else {
      retention_->Renew({key}, point->last_touch);
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
  std::vector<Retention::Key> path;
  for (SegmentNode* node = point->node; node != nullptr; node = node->parent) {
    RestorePointEntry* used = node->restore_point;
    if (used == nullptr) continue;
    used->tick = tick_;
    used->last_touch = now;
    if (absl::ToUnixSeconds(now) != absl::ToUnixSeconds(used->noted)) used_.insert(used);
    path.push_back(KeyOf(used->id));
  }
  std::reverse(path.begin(), path.end());
  retention_->Renew(path, now);
}

void Catalog::Request(const PromptChain& chain, uint32_t tokens, absl::Time now) {
  std::vector<Retention::Key> path;
  path.reserve(chain.chunks.size() + chain.remainders.size());
  auto remainder = chain.remainders.begin();
  for (const KeyedSegment& chunk : chain.chunks) {
    for (; remainder != chain.remainders.end() && remainder->segment.end() < chunk.segment.end();
         ++remainder) {
      path.push_back(KeyOf(remainder->key));
    }
    path.push_back(KeyOf(chunk.key));
  }
  for (; remainder != chain.remainders.end(); ++remainder) path.push_back(KeyOf(remainder->key));
  retention_->Touch(path, tokens, now);
}

bool Catalog::IsWorthWriting(const RestorePointEntry& point) const {
  uint64_t bytes = point.manifest_cost_bytes;
  for (const StoredObject* object : point.objects) {
    if (!object->on_disk) bytes += object->disk_cost_bytes();
  }
  if (disk_bytes() + bytes <= limits_.disk_bytes) return true;
  bool is_first = false;
  retention_->Visit(Retention::Scope::kStore, [&](Retention::Key key) {
    is_first = key == KeyOf(point.id);
    return Retention::Answer::kTake;
  });
  return !is_first;
}

void Catalog::VisitLeastWorth(Retention::Scope scope, Take take) {
  retention_->Visit(scope, [&](Retention::Key key) {
    const auto found = by_key_.find(key);
    assert(found != by_key_.end());
    return take(found->second);
  });
}

void Catalog::UpdateEvictable(RestorePointEntry* point) {
  if (!point->listed) return;
  const Retention::Key key = KeyOf(point->id);
  retention_->SetEvictable(key, Retention::Scope::kStore, point->sole > 0 && !point->pinned);
  retention_->SetEvictable(key, Retention::Scope::kHost, point->host_sole > 0);
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
    if (was != (only->*count.sole > 0)) UpdateEvictable(only);
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
  assert(retention_->held() == by_key_.size());
  assert(is_adopting_ || by_key_.size() == points_.size());
  for (const auto& [id, point] : points_) {
    assert(point->listed == (by_key_.count(KeyOf(id)) > 0));
    uint32_t sole = 0, host_sole = 0;
    for (const StoredObject* object : point->objects) {
      if (object->restore_points == 1) ++sole;
      if (point->in_host && object->host_restore_points == 1) ++host_sole;
    }
    assert(sole == point->sole && host_sole == point->host_sole);
  }
}

}  // namespace hearth
