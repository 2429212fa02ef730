#include "cache_store/store/background/index_loader.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/prefix_key.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

// Under one hold of the lock.
constexpr size_t kObjectsAtOnce = 1024;  // objects, or restore points
// After an error of the disk.
constexpr absl::Duration kReadAgain = absl::Seconds(1);

// An object of it was found wrong while the index loaded, and is gone.
bool NamesRetired(const ManifestRecord& record, const UnloadedIndex::Objects& objects) {
  return std::any_of(record.objects.begin(), record.objects.end(), [&](uint64_t number) {
    const auto it = objects.find(number);
    return it != objects.end() && it->second.adopted != nullptr && it->second.adopted->retired;
  });
}

}  // namespace

Digest ReadManifest::point() const {
  if (model == nullptr) return {};
  const KeyedSegment* last =
      chain.EndingAt(record.manifest.token_count, model->layout.chunk_tokens);
  return last == nullptr ? Digest{} : last->key;
}

absl::Status IndexLoader::Recover() {
  assert(!is_loading_.load());
  if (core_->tiers.disk == nullptr) return absl::OkStatus();
  DiskContents contents = core_->tiers.disk->Load();
  NoteDamage(std::move(contents.damage));
  core_->Count(Counter::kRecoveryLostRestorePoints, contents.lost_points);
  auto unloaded = std::make_shared<UnloadedIndex>(std::move(contents));
  {
    StoreLock lock(core_);
    core_->objects.ReserveNumbersBelow(unloaded->next_number());
    // All of them: the book forgets entries above its limit that no restore point refers to.
    for (const auto& [name, model] : unloaded->models()) {
      if (model != nullptr) core_->fingerprints.Remember(model, name.first);
    }
    unloaded_ = std::move(unloaded);
    core_->catalog.BeginAdopting();
    writer_->BeginDeferring();
  }
  is_loading_.store(true);
  if (core_->options.load_in_background) return absl::OkStatus();
  absl::StatusOr<bool> more = true;
  while (more.ok() && *more) more = LoadNext();
  // A full disk takes no erase: what could not be erased is noted.
  if (more.ok()) Finish().IgnoreError();
  return more.status();
}

void IndexLoader::NoteDamage(std::vector<std::string> damage) {
  core_->Count(Counter::kRecoveryDamage, damage.size());
  for (const std::string& line : damage) core_->warnings.Say("damage", line);
  damage_ = std::move(damage);
}

// Of the restore points of no use: a crash may leave two of one id.
void IndexLoader::NoteLost() {
  std::string first;
  size_t lost = 0;
  StoreLock lock(core_);
  for (const Digest& id : useless_) {
    // Another manifest of it may have been adopted, and the point have left since, as by its end.
    if (core_->catalog.Find(id) != nullptr || core_->history.Find(id) != nullptr) continue;
    core_->Count(Counter::kRecoveryLostRestorePoints);
    core_->meters.AddRemoved(Removal::kLost);
    core_->history.Record(id, Removal::kLost, core_->clock->Now());
    if (lost++ == 0) first = DigestHex(id).substr(0, 16);
  }
  useless_.clear();
  if (lost == 0) return;
  core_->warnings.Say("damage", absl::StrCat(lost,
                                             " restore points that were acknowledged do not match "
                                             "their objects and are lost, the first is ",
                                             first));
}

absl::Duration IndexLoader::Step() {
  if (!is_loading_.load()) return absl::InfiniteDuration();
  const absl::StatusOr<bool> more = LoadNext();
  if (!more.ok()) return kReadAgain;
  if (*more) return absl::ZeroDuration();
  Finish().IgnoreError();  // what could not be erased is noted
  return absl::InfiniteDuration();
}

// False: none is left.
absl::StatusOr<bool> IndexLoader::LoadNext() {
  std::vector<uint64_t> numbers;
  {
    StoreLock lock(core_);
    numbers = unloaded_->Next(kManifestsAtOnce);
  }
  if (numbers.empty()) return false;
  if (LoadManifests(numbers).ok()) return true;
  // One that cannot be read keeps no other back.
  absl::Status failed;
  bool any = false;
  for (const uint64_t number : numbers) {
    absl::Status status = LoadManifests({number});
    if (status.ok()) {
      any = true;
      continue;
    }
    core_->Count(Counter::kTierErrors);
    failed = std::move(status);
    StoreLock lock(core_);
    unloaded_->Postpone(number);
  }
  if (any || failed.ok()) return true;
  return failed;
}

void IndexLoader::LoadFor(const PromptChain& chain, const KvLayout& layout) {
  if (!is_loading_.load()) return;
  std::vector<uint64_t> numbers;
  {
    StoreLock lock(core_);
    if (unloaded_ == nullptr) return;
    numbers = unloaded_->Touching(chain, layout.exactness);
  }
  if (LoadManifests(numbers).ok()) return;
  // An unreadable one is not found now.
  for (const uint64_t number : numbers) {
    if (!LoadManifests({number}).ok()) core_->Count(Counter::kTierErrors);
  }
}

absl::Status IndexLoader::LoadPoint(const Digest& id) {
  if (!is_loading_.load()) return absl::OkStatus();
  std::vector<uint64_t> numbers;
  {
    StoreLock lock(core_);
    if (unloaded_ == nullptr) return absl::OkStatus();
    numbers = unloaded_->EndingAt(id);
  }
  absl::Status status = LoadManifests(numbers);
  if (!status.ok()) core_->Count(Counter::kTierErrors);
  return status;
}

absl::Status IndexLoader::WaitUntilLoaded() {
  if (!is_loading_.load()) return absl::OkStatus();
  StoreLock lock(core_);  // not counted: it waits
  const auto is_loaded = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(core_->mu) {
    return unloaded_ == nullptr;
  };
  if (core_->mu.AwaitWithTimeout(absl::Condition(&is_loaded), patience_)) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("the index is still loading, ", unloaded_->left(),
                                             " of ", unloaded_->manifests(),
                                             " restore points are left: try again later"));
}

// All manifests are done: what none of them names is collected, and the store is as any other.
absl::Status IndexLoader::Finish() {
  const uint64_t file_bytes = core_->tiers.disk->FileBytes();
  // Freed behind the lock: it may be large.
  std::shared_ptr<UnloadedIndex> unloaded;
  std::vector<Digest> points;
  {
    StoreLock lock(core_);
    unloaded = unloaded_;
    points = writer_->deferred();
  }
  core_->Count(Counter::kRecoveryUnreadManifests, unloaded->given_up());
  NoteLost();
  const bool may_erase = unloaded->given_up() == 0;
  std::vector<uint64_t> collected;
  if (may_erase) collected = unloaded->unreadable_objects();
  std::vector<const StoredObject*> held;
  for (const auto& [number, object] : unloaded->objects()) {
    if (object.adopted != nullptr) {
      held.push_back(object.adopted);
    } else if (may_erase) {  // else what was not read may name it
      collected.push_back(number);
    }
  }
  // Objects that only this held go with the rest below: nobody else is to take them in between,
  // since their bytes are counted there.
  Garbage garbage;
  for (size_t i = 0; i < held.size(); i += kObjectsAtOnce) {
    LetOthersIn();
    StoreLock lock(core_);
    for (const StoredObject* object : absl::MakeSpan(held).subspan(i, kObjectsAtOnce)) {
      core_->objects.Release(object);
    }
    garbage.Add(core_->objects.TakeGarbage());
  }
  const size_t known = points.size();
  for (const Digest& id : unloaded->Ids()) points.push_back(id);
  AdoptUses(points);
  std::vector<Digest> write_behind;
  {
    StoreLock lock(core_);
    core_->catalog.EndAdopting(absl::MakeConstSpan(writer_->deferred()).subspan(known),
                               core_->clock->Now());
    // Opened with a smaller limit than it was filled under.
    if (!core_->evictor.ReserveDisk(0, "")) core_->Count(Counter::kPublishesRefusedFull);
    garbage.Add(core_->objects.TakeGarbage());
    garbage.disk_objects.insert(garbage.disk_objects.end(), collected.begin(), collected.end());
    // Of manifests that went while the note was written.
    const std::vector<uint64_t>& strays = unloaded->stray_uses();
    garbage.manifests.insert(garbage.manifests.end(), strays.begin(), strays.end());
    // Evicted now, collected, or erased before and not yet given back.
    garbage.disk_bytes = file_bytes - std::min(file_bytes, core_->objects.sums().disk_bytes());
    core_->Count(Counter::kRecoveryCollectedObjects, garbage.disk_objects.size());
    core_->CarryOut(garbage);
    unloaded_ = nullptr;
    write_behind = writer_->EndDeferring();
    is_loading_.store(false);
  }
  unloaded = nullptr;
  {
    StoreLock lock(core_);
    core_->fingerprints.Trim();
  }
  for (const Digest& id : write_behind) writer_->Schedule({id}, 0);
  // Who quarantined them meanwhile may have waited in vain.
  return names_retired_ ? core_->EraseForGood() : core_->EraseFromDisk();
}

// A part under each hold of the lock: there may be millions.
void IndexLoader::AdoptUses(absl::Span<const Digest> points) {
  std::vector<Catalog::PastUse> uses;
  uses.reserve(points.size());
  for (size_t i = 0; i < points.size(); i += kObjectsAtOnce) {
    LetOthersIn();
    StoreLock lock(core_);
    const std::vector<Catalog::PastUse> some =
        core_->catalog.UsesOf(points.subspan(i, kObjectsAtOnce));
    uses.insert(uses.end(), some.begin(), some.end());
  }
  std::sort(uses.rbegin(), uses.rend());
  for (size_t i = 0; i < uses.size(); i += kObjectsAtOnce) {
    LetOthersIn();
    StoreLock lock(core_);
    core_->catalog.AdoptUses(absl::MakeSpan(uses).subspan(i, kObjectsAtOnce), core_->clock->Now());
  }
}

// Reads and checks without the lock, adopts under it.
absl::Status IndexLoader::LoadManifests(absl::Span<const uint64_t> numbers) {
  std::shared_ptr<UnloadedIndex> unloaded;
  {
    StoreLock lock(core_);
    unloaded = unloaded_;
  }
  if (unloaded == nullptr) return absl::OkStatus();  // all was loaded meanwhile
  for (size_t begin = 0; begin < numbers.size(); begin += kManifestsAtOnce) {
    const auto some = numbers.subspan(begin, kManifestsAtOnce);
    auto records = core_->tiers.disk->ReadManifests(some);
    if (!records.ok()) return records.status();
    std::vector<ReadManifest> read(some.size());
    for (size_t i = 0; i < some.size(); ++i) {
      if (!(*records)[i].has_value()) continue;
      ManifestRecord& record = *(*records)[i];
      // From here on it is the last use, as when it was written again.
      record.created_unix_s = std::max(record.created_unix_s, unloaded->UseOf(some[i]));
      read[i] = Check(std::move(record), *unloaded);
    }
    {
      StoreLock lock(core_);
      if (unloaded_ == nullptr) break;
      for (size_t i = 0; i < some.size(); ++i) {
        if (unloaded_->MarkDone(some[i]) && !Adopt(read[i], unloaded_.get())) {
          NoteUseless(some[i], read[i]);
        }
      }
      core_->ExpireFew();  // while any is there, fewer boundaries are usable
    }
  }
  return absl::OkStatus();
}

// Of a manifest that was not adopted.
void IndexLoader::NoteUseless(uint64_t number, const ReadManifest& read) {
  core_->mu.AssertHeld();
  core_->Count(Counter::kRecoveryDroppedManifests);
  core_->erasures.AddManifests({number});
  const Digest point = read.point();
  // Known, and said then: it goes as those went that were there.
  if (NamesRetired(read.record, unloaded_->objects())) {
    names_retired_.store(true);
    core_->meters.AddRemoved(Removal::kQuarantined);
    if (point != Digest{} && core_->catalog.Find(point) == nullptr) {
      core_->history.Record(point, Removal::kQuarantined, core_->clock->Now());
    }
    return;
  }
  // From before a drop of all: its keys are of a smaller number.
  if (core_->DropNumber(read.record.tenant) > 0) return core_->meters.AddRemoved(Removal::kDropped);
  useless_.push_back(point);
}

absl::Status IndexLoader::CheckIsWhole() const {
  if (damage_.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "no backup was made: ", damage_[0],
      "; this start found it, and older backups may have what is lost: start the store again to "
      "back up what is left"));
}

ReadManifest IndexLoader::Check(ManifestRecord record, const UnloadedIndex& unloaded) const {
  const Manifest& manifest = record.manifest;
  const auto found = unloaded.models().find({record.tenant, manifest.fingerprint});
  if (found == unloaded.models().end() || found->second == nullptr) return {};
  const KvLayout& layout = found->second->layout;
  if (!ValidateManifest(manifest, layout).ok()) return {};
  uint64_t number = 0;
  {
    StoreLock lock(core_);
    number = core_->DropNumber(record.tenant);
  }
  PromptChain chain = MakeChain(
      layout, RootKey(manifest.fingerprint, record.tenant, core_->secret, number),
      manifest.token_ids, manifest.cuts, manifest.token_count, {&manifest.token_count, 1});
  return {std::move(record), found->second, std::move(chain), number};
}

bool IndexLoader::Adopt(const ReadManifest& read, UnloadedIndex* unloaded) {
  core_->mu.AssertHeld();
  if (read.model == nullptr) return false;
  const ManifestRecord& record = read.record;
  if (read.drop_number != core_->DropNumber(record.tenant)) return false;
  const Manifest& manifest = record.manifest;
  const KvLayout& layout = read.model->layout;
  const PromptChain& chain = read.chain;
  UnloadedIndex::Objects* const table = &unloaded->objects();
  const KeyedSegment* last = chain.EndingAt(manifest.token_count, layout.chunk_tokens);
  if (last == nullptr || core_->catalog.Find(last->key) != nullptr) return false;
  for (size_t i = 0; i < record.objects.size(); ++i) {
    const auto it = table->find(record.objects[i]);
    if (it == table->end()) return false;
    const ObjectRecord& object = it->second.record;
    const ManifestObject& named = manifest.objects[i];
    const KeyedSegment* segment =
        chain.EndingAt(named.id.begin + named.id.tokens, layout.chunk_tokens);
    if (segment == nullptr || object.key != segment->key || !IsObjectNamed(object, named, layout)) {
      return false;
    }
    // Of two objects of one key the first adopted stays; a manifest naming the other goes, and so
    // does one of an object that was found rotten since.
    if (it->second.adopted != nullptr) {
      if (it->second.adopted->retired) return false;
    } else {
      const SegmentNode* node = core_->catalog.index().Find(segment->key);
      if (node != nullptr && node->objects[static_cast<size_t>(named.id.group)] != nullptr) {
        return false;
      }
    }
  }
  SegmentNode* node = core_->catalog.index().EnsureRoot(chain.root);
  std::vector<const StoredObject*> objects;
  size_t next = 0;
  for (const Segment& segment : SegmentsTo(manifest.token_count, layout.chunk_tokens)) {
    const KeyedSegment& keyed = *chain.EndingAt(segment.end(), layout.chunk_tokens);
    node = core_->catalog.index().Ensure(node, keyed, manifest.token_ids);
    assert(node != nullptr);
    for (; next < record.objects.size(); ++next) {
      if (manifest.objects[next].id.begin != segment.begin) break;
      UnloadedIndex::Object& recovered = table->at(record.objects[next]);
      if (recovered.adopted == nullptr) {
        const ObjectRecord& object = recovered.record;
        recovered.adopted =
            core_->objects.NewObject(object.number, object.key, object.id, object.slice_digests,
                                     object.layers, object.slice_bytes);
        core_->objects.Link(recovered.adopted, node);
        recovered.adopted->in_table.store(object.in_table);
        core_->objects.AdoptOnDisk(recovered.adopted);
      }
      objects.push_back(recovered.adopted);
    }
  }
  const RestorePointEntry* point = core_->catalog.AddRestorePoint(
      record.number, record.tenant, read.model, node, std::move(objects), manifest.cuts,
      absl::FromUnixSeconds(record.created_unix_s));
  core_->catalog.AdoptEnd(point, EndOf(record), record.inherited);
  core_->catalog.SetDurable(point, record.number);
  core_->catalog.SetPinned(point, unloaded->IsPinned(record.number));
  core_->Count(Counter::kRecoveredRestorePoints);
  // Watchers that came earlier have not seen it yet.
  if (core_->options.load_in_background) {
    core_->events.Post(StoreEvent::Kind::kStored, core_->Describe(*point));
  }
  return true;
}

}  // namespace hearth
