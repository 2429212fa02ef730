#include "tests/simulation/ledger.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

// Manifests store the expiry rounded to whole seconds, so checks of the expiry allow this
// difference.
constexpr absl::Duration kSecond = absl::Seconds(1);

size_t LevelOf(Durability level) { return static_cast<size_t>(level) - 1; }

std::string Hex(const Digest& id) { return DigestHex(id).substr(0, 8); }

}  // namespace

std::string PrefixName(const std::string& tenant, const std::vector<uint32_t>& tokens,
                       const std::vector<uint32_t>& cuts, uint32_t end, const KvLayout& layout) {
  uint64_t hash = 14695981039346656037u;
  const auto fold = [&hash](uint64_t value) { hash = (hash ^ value) * 1099511628211u; };
  for (uint32_t i = 0; i < end; ++i) fold(tokens[i] + 1);
  for (const Segment& segment : SegmentsTo(end, layout.chunk_tokens)) {
    for (const uint32_t cut : CutsBetween(segment, cuts, layout.exactness)) fold(cut << 16);
  }
  return absl::StrCat(tenant, ":", end, ":", absl::Hex(hash, absl::kZeroPad16));
}

std::string ObjectName(const std::string& tenant, const std::vector<uint32_t>& tokens,
                       const std::vector<uint32_t>& cuts, const ObjectId& id,
                       const KvLayout& layout) {
  return absl::StrCat(PrefixName(tenant, tokens, cuts, id.begin + id.tokens, layout),
                      id.group == LayerGroup::kGlobal ? " g" : " l");
}

void Ledger::Committing(const PublishSpec& spec, const std::vector<uint32_t>& put) {
  const absl::Time now = time_->store_clock()->Now();
  absl::Duration ttl = spec.ttl;
  if (ttl == absl::ZeroDuration()) ttl = absl::Seconds(quotas_->Of(spec.tenant).default_ttl_s);
  const absl::Time end = ttl == absl::ZeroDuration() ? absl::InfiniteFuture() : now + ttl;
  for (const uint32_t boundary : spec.boundaries) {
    const std::string name = PrefixName(spec.tenant, spec.token_ids, spec.cuts, boundary, layout_);
    Point& point = points_[name];
    point.tokens = boundary;
    point.latest_end = std::max(point.latest_end, end);
    for (const ObjectId& id : NeededObjects(layout_, boundary)) {
      objects_[ObjectName(spec.tenant, spec.token_ids, spec.cuts, id, layout_)].insert(name);
    }
  }
  for (const uint32_t index : put) {
    quarantined_.erase(
        ObjectName(spec.tenant, spec.token_ids, spec.cuts, spec.objects[index].id, layout_));
  }
}

void Ledger::Committed(const PublishSpec& spec, const PublishResult& result) {
  const absl::Time now = time_->store_clock()->Now();
  const absl::Duration own = absl::Seconds(quotas_->Of(spec.tenant).default_ttl_s);
  const absl::Duration ttl = spec.ttl == absl::ZeroDuration() ? own : spec.ttl;
  for (const uint32_t boundary : result.boundaries) {
    Point& point = points_[PrefixName(spec.tenant, spec.token_ids, spec.cuts, boundary, layout_)];
    const bool is_promised = point.promised != Durability::kDefault;
    for (size_t level = 0; level <= LevelOf(result.durable); ++level) {
      absl::Time& end = point.earliest_end[level];
      if (ttl > absl::ZeroDuration()) {
        // If the restore point may have been lost, its earlier expiry may have been lost with it.
        end = is_promised ? std::max(end, now + ttl) : now + ttl;
      } else if (!point.may_be_there) {
        end = absl::InfiniteFuture();  // a new restore point without a time to live never expires
      }
    }
    point.may_be_there = true;
    point.promised = std::max(point.promised, result.durable);
    ++promises_;
  }
  if (result.durable != Durability::kSync) return;
  // The log keeps its order, so syncing this entry also syncs all entries that were acknowledged
  // before it.
  for (auto& [name, point] : points_) {
    if (point.promised == Durability::kDisk) point.promised = Durability::kSync;
    point.earliest_end[2] = point.earliest_end[1];
  }
}

void Ledger::CommitFailed(const PublishSpec& spec) {
  for (const uint32_t boundary : spec.boundaries) {
    points_[PrefixName(spec.tenant, spec.token_ids, spec.cuts, boundary, layout_)].may_be_there =
        true;
  }
}

void Ledger::Learn(const std::string& name, const Digest& id) {
  Point& point = points_[name];
  if (!point.has_id) time_->LogOnly(absl::StrCat(Hex(id), " is ", name));
  point.has_id = true;
  point.id = id;
  names_[id] = name;
}

void Ledger::OnEvent(const StoreEvent& event, bool may_damage, bool may_evict) {
  const RestorePoint& told = event.restore_point;
  const auto it = names_.find(told.id);
  Point* const point = it == names_.end() ? nullptr : &points_[it->second];
  if (event.kind == StoreEvent::Kind::kPinned) reported_pinned_.insert(told.id);
  if (event.kind == StoreEvent::Kind::kUnpinned || event.removed.has_value()) {
    reported_pinned_.erase(told.id);
  }
  if (point != nullptr && event.kind == StoreEvent::Kind::kPinned) {
    point->was_pinned = true;
  }
  if (point != nullptr && event.kind == StoreEvent::Kind::kUnpinned) point->is_pinned = false;
  if (!event.removed.has_value()) return;
  const Removal why = *event.removed;
  const std::string what = absl::StrCat(told.tokens, " tokens of ", told.tenant, ", ", Hex(told.id),
                                        ", left: ", RemovalName(why));
  if (IsEviction(why)) {
    if (told.pinned) time_->Violated(20, absl::StrCat("pinned and evicted: ", what));
    // An entry that was not acknowledged as on disk may exist only in RAM.
    const bool was_durable =
        told.durable || (point != nullptr && point->promised >= Durability::kDisk);
    if (!may_evict && (why != Removal::kHostFull || was_durable)) {
      time_->Violated(6, absl::StrCat("there was room: ", what));
    }
  }
  if (why == Removal::kDropped && !dropping_) {
    time_->Violated(6, absl::StrCat("nobody asked for it: ", what));
  }
  if (why == Removal::kQuarantined && !may_damage && !dropping_) {
    time_->Violated(6, absl::StrCat("nothing was damaged: ", what));
  }
  if (point == nullptr) return;
  const absl::Time now = time_->store_clock()->Now();
  // Damage may lose the manifest with the later expiry. Then the earlier expiry applies.
  if (why == Removal::kExpired && point->promised != Durability::kDefault && !may_damage &&
      now + kSecond < point->earliest_end[0]) {
    time_->Violated(
        26, absl::StrCat("too early by ", absl::FormatDuration(point->earliest_end[0] - now), ": ",
                         what));
  }
  Forget(point);
}

void Ledger::BeginPins(const std::vector<RestorePoint>& listed) {
  reported_pinned_.clear();
  for (const RestorePoint& point : listed) {
    if (point.pinned) reported_pinned_.insert(point.id);
  }
}

void Ledger::CheckPins(const std::vector<RestorePoint>& listed) {
  for (const RestorePoint& point : listed) {
    if (point.pinned == (reported_pinned_.count(point.id) > 0)) continue;
    time_->Violated(20, absl::StrCat(point.pinned ? "pinned" : "not pinned",
                                     ", and told otherwise: ", Hex(point.id)));
  }
}

void Ledger::Pinned(const Digest& id) {
  const auto it = names_.find(id);
  if (it != names_.end()) points_[it->second].is_pinned = true;
}

void Ledger::PinnedUnpublished(const std::string& tenant, const LookupPlan& plan) {
  const std::string name =
      PrefixName(tenant, plan.token_ids, plan.cuts, plan.usable_tokens, layout_);
  points_[name].tokens = plan.usable_tokens;
  points_[name].was_pinned = true;
  for (const PlannedObject& object : plan.objects) {
    objects_[ObjectName(tenant, plan.token_ids, plan.cuts, object.id, layout_)].insert(name);
  }
}

void Ledger::Quarantined(const std::string& object, bool for_good) {
  if (for_good) quarantined_.insert(object);
  for (const std::string& name : objects_[object]) Forget(&points_[name]);
}

void Ledger::Forget(Point* point) {
  point->promised = Durability::kDefault;
  point->is_pinned = point->may_be_there = false;
  point->earliest_end.fill(absl::InfinitePast());
}

void Ledger::CheckPlan(const PrefixQuery& query, uint32_t max_tokens, const LookupPlan& plan) {
  const uint32_t tokens = static_cast<uint32_t>(query.token_ids.size());
  if (plan.usable_tokens > (max_tokens > 0 ? max_tokens : tokens - 1)) {
    time_->Violated(14, absl::StrCat(plan.usable_tokens, " of ", tokens, " are usable"));
  }
  if (plan.usable_tokens == 0) return;
  if (!std::equal(plan.token_ids.begin(), plan.token_ids.end(), query.token_ids.begin()) ||
      plan.token_ids.size() != plan.usable_tokens ||
      plan.fingerprint.digest() != query.fingerprint) {
    return time_->Violated(1, "a plan of other tokens, or of another fingerprint");
  }
  const absl::Time now = time_->store_clock()->Now();
  for (const PlannedObject& object : plan.objects) {
    const std::string name =
        ObjectName(query.tenant, query.token_ids, query.cuts, object.id, layout_);
    const auto it = objects_.find(name);
    if (it == objects_.end()) {
      return time_->Violated(12, absl::StrCat("never published by this tenant: ", name));
    }
    if (quarantined_.count(name) > 0) {
      return time_->Violated(28, absl::StrCat("quarantined, and served: ", name));
    }
    const bool is_wanted = std::any_of(it->second.begin(), it->second.end(), [&](const auto& by) {
      const Point& point = points_[by];
      return point.latest_end > now || point.was_pinned;
    });
    if (!is_wanted) return time_->Violated(26, absl::StrCat("over, and served: ", name));
  }
}

bool Ledger::MustExist(const Point& point) const {
  if (!point.has_id || point.promised < Durability::kDisk) return false;
  return point.is_pinned || point.earliest_end[0] > time_->store_clock()->Now() + kSecond;
}

void Ledger::Died(Death death, bool is_clean, const std::vector<RestorePoint>& listed) {
  closed_with_.clear();
  closed_cleanly_ = death == Death::kClose && is_clean;
  for (const RestorePoint& point : listed) {
    if (point.durable) closed_with_.insert(point.id);
  }
  const Durability kept = death == Death::kMachine ? Durability::kSync : Durability::kDisk;
  for (auto& [name, point] : points_) {
    if (point.promised < kept) point.promised = Durability::kDefault;
    // A renewal that was acknowledged as in memory is lost too, unless the store was closed cleanly
    // and the disk accepted all writes.
    if (!closed_cleanly_) point.earliest_end.fill(point.earliest_end[LevelOf(kept)]);
    // A pin is written to disk before it is acknowledged, with the guarantee of durability `disk`.
    if (death == Death::kMachine) point.is_pinned = false;
  }
}

std::vector<std::string> Ledger::Missing(const std::vector<RestorePoint>& listed) const {
  std::set<Digest> there;
  for (const RestorePoint& point : listed) there.insert(point.id);
  std::vector<std::string> missing;
  for (const auto& [name, point] : points_) {
    if (MustExist(point) && there.count(point.id) == 0) {
      missing.push_back(
          absl::StrCat(name, " (", Hex(point.id), ", ", DurabilityName(point.promised), ")"));
    }
  }
  return missing;
}

void Ledger::Reopened(const std::vector<RestorePoint>& listed, bool may_damage) {
  const std::vector<std::string> missing = Missing(listed);
  if (!missing.empty() && !may_damage) {
    time_->Violated(6, absl::StrCat("acknowledged and lost: ", absl::StrJoin(missing, ", ")));
  }
  std::set<Digest> there;
  for (const RestorePoint& point : listed) {
    there.insert(point.id);
    const bool is_known = closed_with_.count(point.id) + missed_.count(point.id) > 0;
    if (closed_cleanly_ && !is_known) {
      time_->Violated(23, absl::StrCat("came back after a clean close: ", Hex(point.id)));
    }
  }
  for (auto& [name, point] : points_) {
    if (!point.has_id) continue;
    if (may_damage && point.may_be_there) missed_.insert(point.id);
    // If a full disk prevented deleting a restore point, a restart may bring it back.
    point.may_be_there = there.count(point.id) > 0;
    if (!point.may_be_there) Forget(&point);
  }
  closed_cleanly_ = false;
}

std::map<Digest, absl::Time> Ledger::Promised() const {
  std::map<Digest, absl::Time> promised;
  for (const auto& [name, point] : points_) {
    if (!MustExist(point)) continue;
    // A pin made shortly after the backup started may be in the backup or not.
    promised[point.id] = point.earliest_end[LevelOf(Durability::kDisk)];
  }
  return promised;
}

}  // namespace hearth
