#include "cache_store/catalog/catalog.h"

#include <algorithm>
#include <cassert>
#include <tuple>

namespace hearth {
namespace {

// RAM of a fingerprint with its fields and layout (about 3 KB); the FingerprintBook stores each
// fingerprint once.
constexpr uint64_t kModelCostBytes = 4096;
// RAM of a tenant's account and of the tenant's part of the eviction order.
constexpr uint64_t kTenantCostBytes = 2048;

}  // namespace

uint64_t Catalog::SpaceCostBytes(size_t tenant_bytes) {
  return kModelCostBytes + kTenantCostBytes + tenant_bytes + PrefixIndex::NodeCostBytes(0, 0);
}

Catalog::Catalog(ObjectTable* objects, RetentionPolicy retention, OnRemoved on_removed)
    : objects_(objects), on_removed_(std::move(on_removed)), feed_(retention, &objects->index()) {}

const KnownFingerprint* Catalog::HoldModel(std::shared_ptr<const KnownFingerprint> known) {
  Model& model = models_[known.get()];
  if (model.points++ == 0) {
    model.known = std::move(known);
    cost_bytes_ += kModelCostBytes;
  }
  return model.known.get();
}

void Catalog::ReleaseModel(const KnownFingerprint* known) {
  const auto found = models_.find(known);
  assert(found != models_.end());
  if (--found->second.points > 0) return;
  models_.erase(found);
  cost_bytes_ -= kModelCostBytes;
}

RestorePointEntry* Catalog::AddRestorePoint(uint64_t number, const std::string& tenant,
                                            std::shared_ptr<const KnownFingerprint> model,
                                            SegmentNode* node,
                                            absl::Span<StoredObject* const> objects,
                                            absl::Span<const uint32_t> cuts, absl::Time now) {
  assert(node->restore_point == nullptr && !objects.empty());
  auto owned = std::make_unique<RestorePointEntry>();
  RestorePointEntry* point = owned.get();
  point->number = point->manifest = number;
  point->account = objects_->accounts().AccountOf(tenant);
  ++point->account->usage.restore_points;
  OwnedPoints& siblings = points_of_[tenant];
  if (siblings.empty()) cost_bytes_ += kTenantCostBytes + tenant.size();
  siblings.insert(std::move(owned));
  ++size_;
  point->model = HoldModel(std::move(model));
  point->node = node;
  point->objects.assign(objects.begin(), objects.end());
  if (!cuts.empty()) {
    point->own_cuts = std::make_unique<const std::vector<uint32_t>>(cuts.begin(), cuts.end());
  }
  cost_bytes_ += point->cost_bytes();
  point->uses.last = point->uses.last_through = point->uses.noted = now;
  point->expiry.at = InheritedExpiry(point->objects, now);
  point->uses.tick = ++tick_;
  point->manifest_cost_bytes = ManifestCostBytes(node->end(), tenant.size(), point->objects);
  node->restore_point = point;
  objects_->sums().Count(*point, 1);
  expiry_.Add(point);
  if (!is_adopting_) feed_.Add(point, now);
  for (StoredObject* object : point->objects) {
    assert(object->node != nullptr && (object->in_host() || object->on_disk));
    point->object_bytes += object->bytes();
    objects_->Charge(object, point->account);
    objects_->ChangeNames(object, 1);
  }
  return point;
}

RestorePointEntry* Catalog::Find(const Digest& id) const {
  const SegmentNode* node = objects_->index().Peek(id);
  return node == nullptr ? nullptr : node->restore_point;
}

void Catalog::Remove(RestorePointEntry* point, Removal why) {
  assert(point->node->restore_point == point);
  on_removed_(*point, why);
  if (IsEviction(why)) ++evicted_;
  SetPinned(point, false);
  expiry_.Remove(*point);
  kept_.erase({point->hint.kept_until, point->number});
  used_.erase(point);
  if (point->durable) objects_->DiscardManifest(point->manifest);
  objects_->sums().Count(*point, uint64_t{0} - 1);
  point->durable = false;
  point->sessions = 0;  // a session that still holds the point finds it removed
  feed_.Remove(*point, MayReturn(why));
  cost_bytes_ -= point->cost_bytes();
  point->node->restore_point = nullptr;
  const auto objects = std::move(point->objects);
  for (StoredObject* object : objects) {
    objects_->ChangeNames(object, -1);
    objects_->DropUnneeded(object);  // removing a node's last object may also remove the node
  }
  ReleaseModel(point->model);
  TenantAccount* const account = point->account;
  const auto siblings = points_of_.find(account->tenant);
  assert(siblings != points_of_.end() && account->usage.restore_points > 0);
  const size_t erased = siblings->second.erase(point);
  assert(erased == 1);
  if (siblings->second.empty()) {
    cost_bytes_ -= kTenantCostBytes + account->tenant.size();
    points_of_.erase(siblings);
  }
  --account->usage.restore_points;
  --size_;
  objects_->accounts().RemoveIfEmpty(account);
}

void Catalog::ForEach(absl::FunctionRef<void(RestorePointEntry*)> visit) const {
  for (const auto& [tenant, points] : points_of_) {
    for (const auto& point : points) visit(point.get());
  }
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
  own.at = own.inherited ? expires : std::max<absl::Time>(own.at, expires);
  own.inherited = false;
  expiry_.Add(point);
  for (StoredObject* object : point->objects) objects_->KeepUntil(object, own.at);
}

// The restore points from which this point inherited its expiry may be gone, so this point's own
// expiry also extends the time for which its objects are wanted.
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
  hint.kept_until = std::max<absl::Time>(hint.kept_until, kept_until);
  if (priority != 0) hint.priority = priority;
  const bool is_kept = now < hint.kept_until;
  if (is_kept) {
    kept_.emplace(std::make_pair(absl::Time(hint.kept_until), point->number), point);
  }
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
    // A point that is not on disk yet needs no record of its use: its manifest will contain the
    // use.
    if (point->durable) taken.emplace_back(point->manifest, uses.last_through);
  }
  return taken;
}

void Catalog::BeginAdopting() {
  assert(size_ == 0 && !is_adopting_);
  is_adopting_ = true;
}

void Catalog::EndAdopting(absl::Time now) {
  assert(is_adopting_);
  is_adopting_ = false;
  std::vector<RestorePointEntry*> adopted;
  adopted.reserve(size_);
  ForEach([&](RestorePointEntry* point) { adopted.push_back(point); });
  // Sort by last use, most recent first. Uses are recorded in whole seconds; within one second,
  // longer points count as older, so that they are evicted first.
  std::sort(adopted.begin(), adopted.end(), [](const auto* a, const auto* b) {
    const absl::Time used_a = a->uses.last_through, used_b = b->uses.last_through;
    return std::make_tuple(used_a, b->tokens(), a->number) >
           std::make_tuple(used_b, a->tokens(), b->number);
  });
  uint64_t tick = tick_;  // tick_ has increased by at least one for each point
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
  const auto add = [&names](const OwnedPoints& points) {
    for (const auto& point : points) {
      names.push_back({point->uses.tick, point->tokens(), point->number, point->id()});
    }
  };
  if (tenant == kAllTenants) {
    names.reserve(size_);
    for (const auto& [owner, points] : points_of_) add(points);
  } else if (const auto found = points_of_.find(tenant); found != points_of_.end()) {
    names.reserve(found->second.size());
    add(found->second);
  }
  return names;
}

RestorePointEntry* Catalog::Find(const PointName& name) const {
  RestorePointEntry* point = Find(name.id);
  return point != nullptr && point->number == name.number ? point : nullptr;
}

std::vector<RestorePointEntry*> Catalog::MostHit(size_t limit) const {
  std::vector<RestorePointEntry*> most;
  most.reserve(size_);
  ForEach([&](RestorePointEntry* point) { most.push_back(point); });
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
  ForEach([&](RestorePointEntry* point) {
    if (point->pinned) pinned.push_back(point);
  });
  return pinned;
}

}  // namespace hearth
