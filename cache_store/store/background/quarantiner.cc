#include "cache_store/store/background/quarantiner.h"

#include <algorithm>
#include <cassert>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/caller_gone.h"
#include "proto/prefix_key.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

constexpr size_t kRetiredAtOnce = 1024;  // under one hold of the lock
// Bytes that stay wrong are given up after half a minute. Errors say nothing about the bytes, and a
// disk may be away for longer: after five minutes.
constexpr int kMaxWrongReads = 5, kMaxFailedReads = 22;
constexpr absl::Duration kFirstPause = absl::Seconds(1), kLongestPause = absl::Seconds(16);

// Where the objects end; kInvalidArgument: not in the prompt.
absl::StatusOr<std::vector<uint32_t>> EndsOf(absl::Span<const ObjectId> objects, uint32_t tokens) {
  std::vector<uint32_t> ends;
  for (const ObjectId& id : objects) {
    if (id.begin + id.tokens > tokens) {
      return absl::InvalidArgumentError(absl::StrCat("objects: one ends at ", id.begin + id.tokens,
                                                     ", past the ", tokens, " tokens"));
    }
    ends.push_back(id.begin + id.tokens);
  }
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

bool AreAmong(const std::vector<const StoredObject*>& objects,
              const absl::flat_hash_set<uint64_t>& numbers) {
  return std::all_of(objects.begin(), objects.end(),
                     [&](const StoredObject* object) { return numbers.contains(object->number); });
}

}  // namespace

std::vector<uint64_t> Quarantiner::PendingOf(const std::vector<uint64_t>& manifests) {
  std::vector<uint64_t> pending;
  StateLock lock(state_);
  for (const uint64_t number : manifests) {
    if (loader_->unloaded() != nullptr && loader_->unloaded()->IsPending(number)) {
      pending.push_back(number);
    }
  }
  return pending;
}

absl::Status Quarantiner::FindUnloaded(const absl::flat_hash_set<uint64_t>& objects,
                                       const std::function<bool()>& stopped,
                                       std::vector<UnloadedPoint>* names) {
  std::shared_ptr<UnloadedIndex> unloaded = loader_->SharedUnloaded();
  if (unloaded == nullptr) return absl::OkStatus();  // all was loaded meanwhile
  const absl::StatusOr<std::vector<uint64_t>> naming =
      core_->tiers.disk->ManifestsNaming(objects, stopped);
  if (!naming.ok()) return naming.status();
  const std::vector<uint64_t> pending = PendingOf(*naming);
  for (size_t begin = 0; begin < pending.size(); begin += IndexLoader::kManifestsAtOnce) {
    if (stopped != nullptr && stopped()) return CallerGone();
    const auto some = absl::MakeConstSpan(pending).subspan(begin, IndexLoader::kManifestsAtOnce);
    auto records = core_->tiers.disk->ReadManifests(some);
    if (!records.ok()) return records.status();
    for (std::optional<ManifestRecord>& record : *records) {
      // A damaged one names nothing for sure: its loader reports it.
      if (!record.has_value()) continue;
      const std::vector<uint64_t>& named = record->objects;
      const bool is_naming = std::any_of(named.begin(), named.end(),
                                         [&](uint64_t number) { return objects.contains(number); });
      const uint64_t number = record->number;
      if (is_naming)
        names->push_back({number, loader_->Check(*std::move(record), *unloaded).point()});
    }
  }
  return absl::OkStatus();
}

bool Quarantiner::HoldObjects(const PrefixQuery& query, const PromptChain& chain,
                              const KvLayout& layout, absl::Span<const ObjectId> objects,
                              std::vector<const StoredObject*>* found) {
  state_->mu.AssertHeld();
  absl::flat_hash_set<const StoredObject*> held;
  for (const ObjectId& id : objects) {
    const KeyedSegment* segment = chain.EndingAt(id.begin + id.tokens, layout.chunk_tokens);
    const SegmentNode* node =
        segment == nullptr ? nullptr : state_->catalog.index().Find(*segment, query.token_ids);
    const StoredObject* object =
        node == nullptr ? nullptr : node->objects[static_cast<size_t>(id.group)];
    if (object != nullptr && object->id == id && held.insert(object).second) {
      // One may be there only because another's restore points are.
      state_->objects.Hold(object);
      found->push_back(object);
    }
    if (state_->Yield(1) && query.stopped && query.stopped()) return false;
  }
  return true;
}

void Quarantiner::Release(const std::vector<const StoredObject*>& held) {
  for (const StoredObject* object : held) {
    state_->objects.Release(object);
    state_->Yield(1);
  }
}

void Quarantiner::TakeOut(const std::vector<const StoredObject*>& objects,
                          QuarantineResult* result) {
  state_->mu.AssertHeld();
  const std::vector<const StoredObject*> freed = RemoveNaming(objects);
  for (const StoredObject* object : objects) {
    const std::string publisher = object->publisher == nullptr ? "" : *object->publisher;
    QuarantineLocked(object);
    ++result->objects;
    std::vector<std::string>& names = result->publishers;
    if (std::find(names.begin(), names.end(), publisher) == names.end()) names.push_back(publisher);
    state_->Yield(1);
  }
  Release(freed);
}

void Quarantiner::RetireUnloaded(const std::vector<UnloadedPoint>& names) {
  for (size_t begin = 0; begin < names.size(); begin += kRetiredAtOnce) {
    StateLock lock(state_);
    if (loader_->unloaded() == nullptr) return;
    for (const UnloadedPoint& name : absl::MakeConstSpan(names).subspan(begin, kRetiredAtOnce)) {
      if (loader_->unloaded()->MarkDone(name.manifest)) {
        loader_->NoteRetired(name.manifest, name.point);
      }
    }
  }
}

absl::StatusOr<QuarantineResult> Quarantiner::Quarantine(const PrefixQuery& query,
                                                         absl::Span<const ObjectId> objects) {
  if (absl::Status status = CheckPrefix(query.token_ids, query.cuts); !status.ok()) return status;
  const uint32_t tokens = static_cast<uint32_t>(query.token_ids.size());
  std::shared_ptr<const KnownFingerprint> model;
  {
    StateLock lock(state_);
    model = state_->fingerprints.Find(query.fingerprint, query.tenant);
  }
  if (model == nullptr) return absl::NotFoundError("nothing is stored for this fingerprint");
  const absl::StatusOr<std::vector<uint32_t>> ends = EndsOf(objects, tokens);
  if (!ends.ok()) return ends.status();
  const KvLayout& layout = model->layout;
  const PromptChain chain = MakeChain(layout, core_->RootOf(query.fingerprint, query.tenant),
                                      query.token_ids, query.cuts, tokens, *ends, query.stopped);
  if (!chain.is_whole) return CallerGone();
  loader_->LoadFor(chain, layout);

  QuarantineResult result;
  std::vector<UnloadedPoint> unloaded_names;
  absl::flat_hash_set<uint64_t> looked_for;
  while (true) {
    absl::flat_hash_set<uint64_t> wrong;
    {
      StoreLock lock(core_, StoreLock::kErasesItself);
      std::vector<const StoredObject*> found;
      const bool is_whole = HoldObjects(query, chain, layout, objects, &found);
      const bool is_all = loader_->unloaded() == nullptr || AreAmong(found, looked_for);
      if (is_whole && is_all) TakeOut(found, &result);
      for (const StoredObject* object : found) wrong.insert(object->number);
      Release(found);
      if (!is_whole) return CallerGone();
      if (is_all) break;
    }
    const absl::Status looked = FindUnloaded(wrong, query.stopped, &unloaded_names);
    if (absl::IsCancelled(looked)) {
      return absl::CancelledError(
          "nothing was quarantined: while the index loads, all that is stored is looked through "
          "for "
          "what else names these objects; ask again and wait longer, or once it is loaded");
    }
    // Wrong bytes are not served meanwhile.
    result.on_disk.Update(looked);
    looked_for.insert(wrong.begin(), wrong.end());
  }
  if (result.objects == 0) return absl::NotFoundError("none of these objects is stored");
  RetireUnloaded(unloaded_names);
  result.on_disk.Update(core_->eraser.EraseForGood());
  return result;
}

void Quarantiner::Suspect(const StoredObject* object, const absl::Status& why) {
  // A lack of file descriptors or memory says nothing about the object.
  if (absl::IsResourceExhausted(why)) return;
  bool is_on_disk = false;
  {
    StateLock lock(state_);
    if (object->retired || object->reads.suspect) return;
    is_on_disk = object->on_disk;
    if (is_on_disk) {
      state_->objects.SetSuspect(object, true);
      suspects_.push_back({nullptr, object->number, core_->clock->Now() + kFirstPause, 0});
    }
  }
  if (!is_on_disk) return QuarantineObject(object, why);
  core_->warnings.Say("damage",
                      absl::StrCat("object ", object->number,
                                   " is not served until it can be read again: ", why.message()));
}

std::vector<Quarantiner::Suspected> Quarantiner::TakeDue() {
  const absl::Time now = core_->clock->Now();
  std::vector<Suspected> due, later;
  StateLock lock(state_);
  for (Suspected& suspect : suspects_) {
    if (suspect.due > now) {
      later.push_back(suspect);
      continue;
    }
    suspect.object = state_->objects.Find(suspect.number);
    if (suspect.object == nullptr || suspect.object->retired) continue;  // dropped meanwhile
    state_->objects.Hold(suspect.object);
    due.push_back(suspect);
  }
  suspects_ = std::move(later);
  return due;
}

size_t Quarantiner::ReadSuspects() {
  for (Suspected& suspect : TakeDue()) {
    core_->tiers.disk->DropCached(suspect.number);
    absl::Status read = ReadFromDisk(suspect.object);
    const int most = absl::IsDataLoss(read) ? kMaxWrongReads : kMaxFailedReads;
    const bool counts = read.ok() || core_->tiers.disk->IsOpen();
    const bool is_last = counts && ++suspect.reads >= most;
    if (!read.ok() && is_last && WriteAgain(suspect.object).ok()) read = absl::OkStatus();
    if (!read.ok() && is_last) QuarantineObject(suspect.object, read);
    StoreLock lock(core_);
    if (read.ok() || is_last) {
      state_->objects.SetSuspect(suspect.object, false);
    } else {
      suspect.due =
          core_->clock->Now() + std::min(kLongestPause, kFirstPause * (1 << suspect.reads));
      suspects_.push_back(suspect);
    }
    state_->objects.Release(suspect.object);
  }
  StateLock lock(state_);
  return suspects_.size();
}

absl::Status Quarantiner::ReadFromDisk(const StoredObject* object) {
  for (size_t i = 0; i < object->layers.size(); ++i) {
    const auto read = core_->tiers.disk_slices->Read(object->Slice(i));
    if (!read.ok()) return read.status();
    if (!read->has_value()) return absl::DataLossError("a slice is gone");
  }
  return absl::OkStatus();
}

absl::Status Quarantiner::WriteAgain(const StoredObject* object) {
  std::vector<SliceView> views;
  if (!core_->tiers.HostViews(object, &views)) return absl::NotFoundError("it is not in RAM");
  std::vector<SliceWrite> slices;
  for (size_t i = 0; i < views.size(); ++i) slices.push_back({object->Slice(i), views[i]});
  return core_->tiers.disk_slices->WriteAll(slices);
}

void Quarantiner::QuarantineHostCopy(const StoredObject* object) {
  StoreLock lock(core_);
  if (!object->in_host) return;
  if (object->on_disk) {
    for (const RestorePointEntry* point : state_->catalog.PointsNaming(object)) {
      state_->catalog.Demote(point);
    }
    state_->objects.DropHostCopy(object);
  } else {
    QuarantineLocked(object);
  }
}

void Quarantiner::QuarantineObject(const StoredObject* object, const absl::Status& why) {
  bool is_new = false;
  {
    StoreLock lock(core_);
    is_new = QuarantineLocked(object);
  }
  if (is_new) {
    core_->warnings.Say("damage", absl::StrCat("object ", object->number,
                                               " is quarantined with all that "
                                               "names it: ",
                                               why.message()));
  }
}

bool Quarantiner::QuarantineLocked(const StoredObject* object) {
  state_->mu.AssertHeld();
  assert(object->sessions > 0);  // the reader's: it stays until the session ends
  if (object->retired) return false;
  core_->Count(Counter::kQuarantined);
  state_->history.Record(object->key, Removal::kQuarantined, core_->clock->Now());
  const std::vector<const StoredObject*> freed = RemoveNaming({object});
  const bool is_new = !object->retired;  // nor by another, meanwhile
  if (is_new) state_->objects.Retire(object);
  Release(freed);
  return is_new;
}

bool Quarantiner::RemoveHeld(const RestorePointEntry* point, Removal why, bool keeps_pinned,
                             std::vector<const StoredObject*>* freed) {
  state_->mu.AssertHeld();
  const auto may_go = [this, keeps_pinned, id = point->id, number = point->number] {
    const RestorePointEntry* known = state_->catalog.Find(id);
    return known != nullptr && known->number == number && !(keeps_pinned && known->pinned);
  };
  const size_t count = point->objects.size();
  for (size_t i = 0; i < count; ++i) {
    if (const StoredObject* object = point->objects[i]; object->names.count == 1) {
      state_->objects.Hold(object);
      freed->push_back(object);
    }
    if (state_->Yield(1) && !may_go()) return false;
  }
  state_->catalog.SetNotResident(point);
  if (state_->Yield(count) && !may_go()) return false;
  state_->catalog.Remove(point, why);
  return true;
}

// Each of these lies on one path or at its ends. A restore point names the global ones above it,
// and the local ones of its tail. Points that were added behind the walk are found by the next one.
std::vector<const StoredObject*> Quarantiner::RemoveNaming(
    const std::vector<const StoredObject*>& objects) {
  state_->mu.AssertHeld();
  struct Visit {
    Digest key;
    bool below_global = false;  // of these objects
    uint32_t local_end = 0;     // of the last local one above
  };
  std::vector<const StoredObject*> freed;
  const absl::flat_hash_set<const StoredObject*> wrong(objects.begin(), objects.end());
  const auto first_named = [&objects] {
    return std::find_if(objects.begin(), objects.end(),
                        [](const StoredObject* object) { return object->names.count > 0; });
  };
  for (auto named = first_named(); named != objects.end(); named = first_named()) {
    const SegmentNode* top = (*named)->node->parent;
    for (const StoredObject* object : objects) {
      if (object->names.count == 0 || object->node->begin >= top->end()) continue;
      top = object->node->parent;
    }
    std::vector<Visit> left;
    const auto push_children = [&left](const SegmentNode* node, const Visit& from) {
      for (const SegmentNode* child : node->children) {
        left.push_back({child->key, from.below_global, from.local_end});
      }
    };
    push_children(top, Visit());
    while (!left.empty()) {
      Visit at = left.back();
      left.pop_back();
      const SegmentNode* node = state_->catalog.index().Find(at.key);
      if (node == nullptr) continue;
      at.below_global |= wrong.contains(node->objects[0]);
      if (wrong.contains(node->objects[1])) at.local_end = node->end();
      push_children(node, at);
      if (const RestorePointEntry* point = node->restore_point; point != nullptr) {
        const uint32_t tail_begin = LocalTailBegin(point->model->layout, node->end());
        if (at.below_global || at.local_end > tail_begin) {
          const size_t count = point->objects.size();
          RemoveHeld(point, Removal::kQuarantined, false, &freed);
          state_->Yield(count);
        }
      }
      state_->Yield(1);
    }
  }
  return freed;
}

}  // namespace hearth
