#include "cache_store/store/calls/recovery.h"

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "cache_store/base/prompt_chain.h"
#include "cache_store/store/background/disk_writer.h"
#include "proto/prefix_key.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

// A megabyte or two, for the longest prompts.
constexpr size_t kManifestsAtOnce = 8;

class Recovery {
 public:
  Recovery(StoreCore* core, DiskContents contents);
  absl::Status Run() ABSL_LOCKS_EXCLUDED(core_->mu);

 private:
  struct Object {
    ObjectRecord record;
    const StoredObject* adopted = nullptr;  // null until a manifest names it
  };

  absl::Status Load(absl::Span<const uint64_t> manifests) ABSL_LOCKS_EXCLUDED(core_->mu);
  // Whether all objects are as the manifest has them, and none of their keys is another's.
  bool FitsObjects(const ManifestRecord& record, const KvLayout& layout,
                   const PromptChain& chain) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // Rebuilds the path and the restore point.
  void Adopt(ManifestRecord record, std::shared_ptr<const KnownFingerprint> model,
             const PromptChain& chain) ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void Drop(uint64_t number, const std::string& tenant, const Digest& point)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  void SayWhatIsLost() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);
  // All manifests are done: what none of them names goes.
  void Collect() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu);

  StoreCore* const core_;
  DiskContents contents_;
  uint64_t next_number_ = 1;  // above every number in use on disk
  std::map<std::pair<std::string, Digest>, std::shared_ptr<const KnownFingerprint>> models_;
  const absl::flat_hash_set<uint64_t> pinned_;
  const absl::flat_hash_map<uint64_t, uint64_t> uses_;
  absl::flat_hash_map<uint64_t, Object> objects_;  // by number
  std::vector<Digest> lost_;                       // ids of dropped points; zeros: unknown
  size_t unread_ = 0;                              // manifests
};

Recovery::Recovery(StoreCore* core, DiskContents contents)
    : core_(core),
      contents_(std::move(contents)),
      pinned_(contents_.pinned.begin(), contents_.pinned.end()),
      uses_(contents_.uses.begin(), contents_.uses.end()) {
  for (const FingerprintRecord& record : contents_.fingerprints) {
    auto model = MakeKnown(record.fingerprint);
    if (model == nullptr) continue;
    models_[{record.tenant, record.fingerprint.digest()}] = std::move(model);
  }
  const auto above = [this](uint64_t number) { next_number_ = std::max(next_number_, number + 1); };
  above(contents_.last_number);
  for (const ManifestNames& manifest : contents_.manifests) above(manifest.number);
  for (const auto& [number, used] : contents_.uses) above(number);
  std::for_each(contents_.pinned.begin(), contents_.pinned.end(), above);
  std::for_each(contents_.unreadable_objects.begin(), contents_.unreadable_objects.end(), above);
  objects_.reserve(contents_.objects.size());
  for (ObjectRecord& record : contents_.objects) {
    const uint64_t number = record.number;
    above(number);
    objects_.emplace(number, Object{std::move(record)});
  }
}

absl::Status Recovery::Run() {
  core_->Count(Counter::kRecoveryLostRestorePoints, contents_.lost_points);
  // A crash between a write and the erase of what it replaced may leave two of one key: the newest
  // comes first, and stays.
  std::vector<uint64_t> manifests;
  for (auto it = contents_.manifests.rbegin(); it != contents_.manifests.rend(); ++it) {
    manifests.push_back(it->number);
  }
  {
    StoreLock lock(core_);
    core_->objects.ReserveNumbersBelow(next_number_);
    // All of them: the book forgets entries above its limit that no restore point refers to.
    for (const auto& [name, model] : models_) core_->fingerprints.Remember(model, name.first);
    core_->catalog.BeginAdopting();
  }
  std::vector<uint64_t> again;
  const absl::Span<const uint64_t> all(manifests);
  for (size_t i = 0; i < all.size(); i += kManifestsAtOnce) {
    const absl::Span<const uint64_t> some = all.subspan(i, kManifestsAtOnce);
    if (!Load(some).ok()) again.insert(again.end(), some.begin(), some.end());
  }
  // One that cannot be read keeps no other back.
  for (const uint64_t number : again) {
    absl::Status status = Load({number});
    if (status.ok()) continue;
    if (!core_->tiers.disk->IsOpen()) return status;
    core_->Count(Counter::kTierErrors);
    ++unread_;
  }
  StoreLock lock(core_, StoreLock::kErasesItself);
  SayWhatIsLost();
  Collect();
  return absl::OkStatus();
}

absl::Status Recovery::Load(absl::Span<const uint64_t> manifests) {
  auto records = core_->tiers.disk->ReadManifests(manifests);
  if (!records.ok()) return records.status();
  for (size_t i = 0; i < manifests.size(); ++i) {
    std::optional<ManifestRecord>& record = (*records)[i];
    StoreLock lock(core_);
    if (!record.has_value()) {
      Drop(manifests[i], "", {});
      continue;
    }
    const Manifest& manifest = record->manifest;
    const auto model = models_.find({record->tenant, manifest.fingerprint});
    if (model == models_.end() || !ValidateManifest(manifest, model->second->layout).ok()) {
      Drop(manifests[i], record->tenant, {});
      continue;
    }
    const KvLayout& layout = model->second->layout;
    const PromptChain chain =
        MakeChain(layout, core_->RootOf(manifest.fingerprint, record->tenant), manifest.token_ids,
                  manifest.cuts, manifest.token_count, {&manifest.token_count, 1});
    const KeyedSegment* last = chain.EndingAt(manifest.token_count, layout.chunk_tokens);
    if (last != nullptr && FitsObjects(*record, layout, chain)) {
      Adopt(*std::move(record), model->second, chain);
    } else {
      Drop(manifests[i], record->tenant, last == nullptr ? Digest{} : last->key);
    }
  }
  return absl::OkStatus();
}

bool Recovery::FitsObjects(const ManifestRecord& record, const KvLayout& layout,
                           const PromptChain& chain) const {
  const Manifest& manifest = record.manifest;
  const PrefixIndex& index = core_->catalog.index();
  if (core_->catalog.Find(chain.EndingAt(manifest.token_count, layout.chunk_tokens)->key) !=
      nullptr) {
    return false;
  }
  for (size_t i = 0; i < record.objects.size(); ++i) {
    const auto it = objects_.find(record.objects[i]);
    if (it == objects_.end()) return false;
    const ObjectRecord& object = it->second.record;
    const ObjectId& id = manifest.objects[i].id;
    const KeyedSegment* segment = chain.EndingAt(id.begin + id.tokens, layout.chunk_tokens);
    if (segment == nullptr || object.key != segment->key ||
        !IsObjectNamed(object, manifest.objects[i], layout)) {
      return false;
    }
    if (it->second.adopted != nullptr) continue;
    // Of two objects of one key the first adopted stays, and a manifest that names the other goes.
    const SegmentNode* node = index.Find(segment->key);
    if (node != nullptr && node->objects[static_cast<size_t>(id.group)] != nullptr) return false;
  }
  return true;
}

void Recovery::Adopt(ManifestRecord record, std::shared_ptr<const KnownFingerprint> model,
                     const PromptChain& chain) {
  const Manifest& manifest = record.manifest;
  const uint32_t chunk_tokens = model->layout.chunk_tokens;
  SegmentNode* node = core_->catalog.index().EnsureRoot(chain.root);
  std::vector<const StoredObject*> objects, made;
  for (const Segment& segment : SegmentsTo(manifest.token_count, chunk_tokens)) {
    const KeyedSegment& keyed = *chain.EndingAt(segment.end(), chunk_tokens);
    node = core_->catalog.index().Ensure(node, keyed, manifest.token_ids);
    assert(node != nullptr);
    while (objects.size() < record.objects.size() &&
           manifest.objects[objects.size()].id.begin == segment.begin) {
      Object& recovered = objects_.at(record.objects[objects.size()]);
      if (recovered.adopted == nullptr) {
        const ObjectRecord& object = recovered.record;
        recovered.adopted = made.emplace_back(
            core_->objects.NewObject(object.number, object.key, object.id, object.slice_digests,
                                     object.layers, object.slice_bytes));
        core_->objects.Link(recovered.adopted, node);
        recovered.adopted->in_table.store(object.in_table);
        core_->objects.AdoptOnDisk(recovered.adopted);
      }
      objects.push_back(recovered.adopted);
    }
  }
  const auto noted = uses_.find(record.number);
  const uint64_t used_unix_s =
      std::max(record.created_unix_s, noted == uses_.end() ? 0 : noted->second);
  const RestorePointEntry* point = core_->catalog.AddRestorePoint(
      record.number, record.tenant, std::move(model), node, std::move(objects), manifest.cuts,
      absl::FromUnixSeconds(static_cast<int64_t>(used_unix_s)));
  core_->catalog.AdoptEnd(point, EndOf(record), record.inherited);
  core_->catalog.SetDurable(point, record.number);
  core_->catalog.SetPinned(point, pinned_.contains(record.number));
  core_->Count(Counter::kRecoveredRestorePoints);
  for (const StoredObject* object : made) core_->objects.Release(object);
}

void Recovery::Drop(uint64_t number, const std::string& tenant, const Digest& point) {
  core_->Count(Counter::kRecoveryDroppedManifests);
  core_->erasures.AddManifests({number});
  if (core_->drop_numbers.Of(tenant) > 0) {
    // From before a drop of all: its keys are of a smaller number.
    core_->meters.AddRemoved(Removal::kDropped);
  } else {
    lost_.push_back(point);
  }
}

void Recovery::SayWhatIsLost() {
  if (unread_ > 0) {
    core_->Count(Counter::kRecoveryUnreadManifests, unread_);
    core_->warnings.Say("damage", absl::StrCat(unread_,
                                               " restore points cannot be read, and are "
                                               "left alone until the next start"));
  }
  std::string first;
  size_t lost = 0;
  for (const Digest& id : lost_) {
    if (core_->catalog.Find(id) != nullptr) continue;  // of two manifests of it
    core_->Count(Counter::kRecoveryLostRestorePoints);
    core_->meters.AddRemoved(Removal::kLost);
    core_->history.Record(id, Removal::kLost, core_->clock->Now());
    if (lost++ == 0) first = DigestHex(id).substr(0, 16);
  }
  if (lost == 0) return;
  core_->warnings.Say("damage", absl::StrCat(lost,
                                             " restore points that were acknowledged do not match "
                                             "their objects and are lost, the first is ",
                                             first));
}

void Recovery::Collect() {
  core_->catalog.EndAdopting(core_->clock->Now());
  while (core_->Expire(1)) {
  }
  // Opened with a smaller limit than it was filled under.
  if (!core_->evictor.ReserveDisk(0, "")) core_->Count(Counter::kPublishesRefusedFull);
  Garbage garbage = core_->objects.TakeGarbage();
  if (unread_ == 0) {  // else what was not read may name it
    garbage.disk_objects.insert(garbage.disk_objects.end(), contents_.unreadable_objects.begin(),
                                contents_.unreadable_objects.end());
    for (const auto& [number, object] : objects_) {
      if (object.adopted == nullptr) garbage.disk_objects.push_back(number);
    }
  }
  // Of manifests that went while their use was noted.
  absl::flat_hash_set<uint64_t> known;
  for (const ManifestNames& manifest : contents_.manifests) known.insert(manifest.number);
  for (const auto& [number, used] : uses_) {
    if (!known.contains(number)) garbage.manifests.push_back(number);
  }
  // Evicted now, collected, or erased before and not yet given back.
  const uint64_t file_bytes = core_->tiers.disk->FileBytes();
  garbage.disk_bytes = file_bytes - std::min(file_bytes, core_->objects.sums().disk_bytes());
  core_->Count(Counter::kRecoveryCollectedObjects, garbage.disk_objects.size());
  core_->CarryOut(garbage);
  core_->fingerprints.Trim();
}

}  // namespace

absl::Status RecoverIndex(StoreCore* core) {
  DiskContents contents = core->tiers.disk->Load();
  core->damage = std::move(contents.damage);
  core->Count(Counter::kRecoveryDamage, core->damage.size());
  for (const std::string& line : core->damage) core->warnings.Say("damage", line);
  absl::Status status = Recovery(core, std::move(contents)).Run();
  if (!status.ok()) return status;
  core->EraseFromDisk().IgnoreError();  // a full disk takes no erase: what it could not is noted
  return absl::OkStatus();
}

}  // namespace hearth
