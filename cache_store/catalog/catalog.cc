#include "cache_store/catalog/catalog.h"

#include <algorithm>
#include <cassert>
#include <tuple>

namespace hearth {

Catalog::Catalog(ObjectTable* objects, RetentionPolicy retention, OnRemoved on_removed)
    : objects_(objects), on_removed_(std::move(on_removed)), feed_(retention) {}

RestorePointEntry* Catalog::AddRestorePoint(uint64_t number, const std::string& tenant,
                                            std::shared_ptr<const KnownFingerprint> model,
                                            SegmentNode* node, std::vector<StoredObject*> objects,
                                            std::vector<uint32_t> cuts, absl::Time now) {
  assert(node->restore_point == nullptr && !objects.empty());
  auto owned = std::make_unique<RestorePointEntry>();
  RestorePointEntry* point = owned.get();
  point->number = point->manifest = number;
  point->id = node->key;
  point->tenant = tenant;
  point->account = objects_->ledger().AccountOf(tenant);
  ++point->account->usage.restore_points;
  points_of_[tenant].insert(point);
  point->model = std::move(model);
  point->node = node;
  point->objects = std::move(objects);
  point->cuts = std::move(cuts);
  point->uses.last = point->uses.last_through = point->uses.noted = now;
  point->expiry.at = InheritedExpiry(point->objects, now);
  point->uses.tick = ++tick_;
  point->manifest_cost_bytes = ManifestCostBytes(node->end(), tenant.size(), point->objects);
  node->restore_point = point;
  expiry_.Add(point);
  if (!is_adopting_) feed_.Add(point, now);
  for (StoredObject* object : point->objects) {
    assert(object->node != nullptr && (object->in_host() || object->on_disk));
    point->object_bytes += object->bytes();
    objects_->Charge(object, point->account);
    objects_->ChangeNames(object, 1);
  }
  const bool inserted = points_.emplace(point->id, std::move(owned)).second;
  assert(inserted);
  return point;
}

RestorePointEntry* Catalog::Find(const Digest& id) const {
  const auto it = points_.find(id);
  return it == points_.end() ? nullptr : it->second.get();
}

void Catalog::Remove(RestorePointEntry* point, Removal why) {
  assert(point->node->restore_point == point);
  on_removed_(*point, why);
  if (IsEviction(why)) ++evicted_;
  SetPinned(point, false);
  expiry_.Remove(*point);
  kept_.erase({point->hint.kept_until, point->number});
  used_.erase(point);
  if (point->durable) {
    objects_->DiscardManifest(point->manifest);
    const Change change(&objects_->sums(), point);
    point->durable = false;
  }
  point->node->restore_point = nullptr;
  const std::vector<StoredObject*> objects = std::move(point->objects);
  for (StoredObject* object : objects) {
    objects_->ChangeNames(object, -1);
    objects_->DropUnneeded(object);  // with the last one its node may go
  }
  feed_.Remove(*point, MayReturn(why));
  const auto siblings = points_of_.find(point->tenant);
  assert(siblings != points_of_.end() && point->account->usage.restore_points > 0);
  siblings->second.erase(point);
  if (siblings->second.empty()) points_of_.erase(siblings);
  --point->account->usage.restore_points;
  objects_->ledger().RemoveIfEmpty(point->account);
  points_.erase(Digest(point->id));
}

void Catalog::HoldPoint(RestorePointEntry* point) {
  const Change change(&objects_->sums(), point);
  ++point->sessions;
}

void Catalog::ReleasePoint(RestorePointEntry* point) {
  const Change change(&objects_->sums(), point);
  assert(point->sessions > 0);
  --point->sessions;
}

void Catalog::Renew(RestorePointEntry* point, absl::Time expires) {
  expiry_.Remove(*point);
  RestorePointEntry::Expiry& own = point->expiry;
  own.at = own.inherited ? expires : std::max(own.at, expires);
  own.inherited = false;
  expiry_.Add(point);
  for (StoredObject* object : point->objects) objects_->KeepUntil(object, own.at);
}

// The points that it inherited its end from may be gone: then its own end tells until when somebody
// wanted its objects.
void Catalog::AdoptEnd(RestorePointEntry* point, absl::Time expires, bool inherited) {
  assert(point->expiry.inherited);
  Renew(point, expires);
  point->expiry.inherited = inherited;
}

void Catalog::BeginRenewal(RestorePointEntry* point) {
  expiry_.Remove(*point);
  ++point->expiry.renewals;
}

void Catalog::EndRenewal(RestorePointEntry* point) {
  assert(point->expiry.renewals > 0);
  --point->expiry.renewals;
  expiry_.Add(point);
}

void Catalog::SetHint(RestorePointEntry* point, int priority, absl::Time kept_until,
                      absl::Time now) {
  RestorePointEntry::Hint& hint = point->hint;
  kept_.erase({hint.kept_until, point->number});
  hint.kept_until = std::max(hint.kept_until, kept_until);
  if (priority != 0) hint.priority = priority;
  const bool is_kept = hint.kept_until > now;
  if (is_kept) kept_.emplace(std::make_pair(hint.kept_until, point->number), point);
  feed_.Weigh(*point, is_kept);
}

void Catalog::EndKeeps(absl::Time now) {
  while (!kept_.empty() && kept_.begin()->first.first <= now) {
    feed_.Weigh(*kept_.begin()->second, false);
    kept_.erase(kept_.begin());
  }
}

void Catalog::Touch(RestorePointEntry* point, absl::Time now) {
  ++tick_;
  point->uses.last = now;
  std::vector<RestorePointEntry*> path;
  for (SegmentNode* node = point->node; node != nullptr; node = node->parent) {
    RestorePointEntry* used = node->restore_point;
    if (used == nullptr) continue;
    RestorePointEntry::Uses& uses = used->uses;
    uses.tick = tick_;
    uses.last_through = now;
    if (absl::ToUnixSeconds(now) != absl::ToUnixSeconds(uses.noted)) used_.insert(used);
    path.push_back(used);
  }
  std::reverse(path.begin(), path.end());
  feed_.Renew(path, now);
}

std::vector<std::pair<uint64_t, absl::Time>> Catalog::TakeUses(size_t most) {
  std::vector<std::pair<uint64_t, absl::Time>> taken;
  while (!used_.empty() && taken.size() < most) {
    RestorePointEntry* point = *used_.begin();
    used_.erase(used_.begin());
    RestorePointEntry::Uses& uses = point->uses;
    uses.noted = uses.last_through;
    // A point written later has it in its manifest.
    if (point->durable) taken.emplace_back(point->manifest, uses.last_through);
  }
  return taken;
}

void Catalog::BeginAdopting() {
  assert(points_.empty() && !is_adopting_);
  is_adopting_ = true;
}

void Catalog::EndAdopting(absl::Time now) {
  assert(is_adopting_);
  is_adopting_ = false;
  std::vector<RestorePointEntry*> adopted;
  adopted.reserve(points_.size());
  for (const auto& [id, point] : points_) adopted.push_back(point.get());
  // The last used first. Last uses are whole seconds: within one second the longer point counts as
  // older, to go first.
  std::sort(adopted.begin(), adopted.end(), [](const auto* a, const auto* b) {
    return std::make_tuple(a->uses.last_through, b->tokens(), a->number) >
           std::make_tuple(b->uses.last_through, a->tokens(), b->number);
  });
  uint64_t tick = tick_;  // each has had one
  for (RestorePointEntry* point : adopted) {
    feed_.Adopt(point, point->uses.last_through, now);
    point->uses.tick = tick--;
  }
}

void Catalog::SetDurable(RestorePointEntry* point, uint64_t manifest, absl::Time end) {
  if (point->durable) objects_->DiscardManifest(point->manifest);
  const Change change(&objects_->sums(), point);
  point->manifest = manifest;
  point->durable = true;
  point->expiry.written = end;
}

void Catalog::SetManifest(RestorePointEntry* point, uint64_t number) { point->manifest = number; }

void Catalog::SetPinned(RestorePointEntry* point, bool pinned) {
  if (point->pinned == pinned) return;
  expiry_.Remove(*point);
  {
    const Change change(&objects_->sums(), point);
    point->pinned = pinned;
  }
  expiry_.Add(point);
  feed_.Update(*point);
  for (StoredObject* object : point->objects) objects_->ChangePins(object, pinned ? 1 : -1);
}

uint64_t Catalog::BytesToPin(const RestorePointEntry& point) {
  uint64_t bytes = 0;
  for (StoredObject* object : point.objects) {
    if (object->pins == 0) bytes += object->bytes();
  }
  return bytes;
}

bool Catalog::PointName::operator<(const PointName& other) const {
  return std::make_tuple(tick, ~tokens, number) <
         std::make_tuple(other.tick, ~other.tokens, other.number);
}

std::vector<Catalog::PointName> Catalog::NamesOf(const std::string& tenant) const {
  std::vector<PointName> names;
  const auto found = points_of_.find(tenant);
  if (found == points_of_.end()) return names;
  names.reserve(found->second.size());
  for (RestorePointEntry* point : found->second) {
    names.push_back({point->uses.tick, point->tokens(), point->number, point->id});
  }
  return names;
}

RestorePointEntry* Catalog::Find(const PointName& name) const {
  RestorePointEntry* point = Find(name.id);
  return point != nullptr && point->number == name.number ? point : nullptr;
}

std::vector<RestorePointEntry*> Catalog::MostHit(size_t limit) const {
  std::vector<RestorePointEntry*> most;
  most.reserve(points_.size());
  for (const auto& [id, point] : points_) most.push_back(point.get());
  limit = std::min(limit, most.size());
  std::partial_sort(most.begin(), most.begin() + static_cast<ptrdiff_t>(limit), most.end(),
                    [](RestorePointEntry* a, RestorePointEntry* b) {
                      const auto &x = a->uses, &y = b->uses;
                      return x.hits != y.hits ? x.hits > y.hits : x.tick > y.tick;
                    });
  most.resize(limit);
  return most;
}

std::vector<RestorePointEntry*> Catalog::Pinned() const {
  std::vector<RestorePointEntry*> pinned;
  for (const auto& [id, point] : points_) {
    if (point->pinned) pinned.push_back(point.get());
  }
  return pinned;
}

}  // namespace hearth
