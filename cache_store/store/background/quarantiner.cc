#include "cache_store/store/background/quarantiner.h"

#include <algorithm>
#include <cassert>
#include <set>

#include "absl/strings/str_cat.h"
#include "proto/caller_gone.h"

namespace hearth {
namespace {

// Limits of consecutive failed reads of an object. If all reads give the same wrong bytes, the
// object is quarantined after a quarter of a minute (kMaxWrongReads). Read errors say nothing about
// the bytes, and a disk may be unavailable for longer, so they are tolerated for five minutes
// (kMaxFailedReads).
constexpr int kMaxWrongReads = 5, kMaxFailedReads = 22;
constexpr absl::Duration kFirstPause = absl::Seconds(1);
// If reads of more than kMaxFailing objects fail within a minute, the disk is at fault, and no
// object is quarantined. The minute is longer than the longest pause between reads of an object, so
// that objects that stay wrong are counted.
constexpr size_t kMaxFailing = 8;
constexpr absl::Duration kFailingWindow = absl::Minutes(1);

// Returns the token position at which each object ends. kInvalidArgument: an object ends after the
// prompt.
absl::StatusOr<std::vector<uint32_t>> EndsOf(absl::Span<const ObjectId> objects, uint32_t tokens) {
  std::set<uint32_t> ends;
  for (const ObjectId& id : objects) {
    if (id.begin + id.tokens > tokens) {
      return absl::InvalidArgumentError(absl::StrCat("objects: an object ends at ",
                                                     id.begin + id.tokens, ", after the prompt's ",
                                                     tokens, " tokens"));
    }
    ends.insert(id.begin + id.tokens);
  }
  return std::vector<uint32_t>(ends.begin(), ends.end());
}

bool Names(const RestorePointEntry& point, StoredObject* object) {
  const auto it =
      std::lower_bound(point.objects.begin(), point.objects.end(), object->id,
                       [](StoredObject* named, const ObjectId& id) { return named->id < id; });
  return it != point.objects.end() && *it == object;
}

}  // namespace

absl::StatusOr<QuarantineResult> Quarantiner::Quarantine(const PrefixQuery& query,
                                                         absl::Span<const ObjectId> objects) {
  if (absl::Status status = CheckPrefix(query.token_ids, query.cuts); !status.ok()) return status;
  const uint32_t tokens = static_cast<uint32_t>(query.token_ids.size());
  const auto model = core_->fingerprints.Find(query.fingerprint, query.tenant);
  if (model == nullptr) return absl::NotFoundError("nothing is stored for this fingerprint");
  const absl::StatusOr<std::vector<uint32_t>> ends = EndsOf(objects, tokens);
  if (!ends.ok()) return ends.status();
  const KvLayout& layout = model->layout;
  const PromptChain chain = MakeChain(layout, core_->RootOf(query.fingerprint, query.tenant),
                                      query.token_ids, query.cuts, tokens, *ends, query.stopped);
  if (!chain.is_whole) return CallerGone();

  QuarantineResult result;
  {
    StoreLock lock(core_, StoreLock::kErasesItself);
    std::vector<StoredObject*> wrong;
    absl::flat_hash_set<StoredObject*> held;
    for (const ObjectId& id : objects) {
      const KeyedSegment* segment = chain.EndingAt(id.begin + id.tokens, layout.chunk_tokens);
      const SegmentNode* node =
          segment == nullptr ? nullptr : core_->catalog.index().Find(*segment, query.token_ids);
      StoredObject* object =
          node == nullptr ? nullptr : node->objects[static_cast<size_t>(id.group)];
      if (object == nullptr || !(object->id == id) || !held.insert(object).second) continue;
      wrong.push_back(object);
      core_->objects.Hold(
          object);  // removing a restore point below could free the object otherwise
    }
    for (StoredObject* object : wrong) {
      const std::string publisher = object->publisher() == nullptr ? "" : *object->publisher();
      QuarantineLocked(object);
      core_->objects.Release(object);
      ++result.objects;
      std::vector<std::string>& names = result.publishers;
      if (std::find(names.begin(), names.end(), publisher) == names.end()) {
        names.push_back(publisher);
      }
    }
  }
  if (result.objects == 0) return absl::NotFoundError("none of these objects is stored");
  result.on_disk = core_->EraseForGood();
  return result;
}

void Quarantiner::NoteReadFailure(StoredObject* object, const absl::Status& why) {
  // Ignore a lack of file descriptors or memory, which says nothing about the object.
  if (absl::IsResourceExhausted(why)) return;
  core_->tiers.disk->DropCached(object->number);
  const bool is_open = core_->tiers.disk->IsOpen();
  const bool is_wrong = absl::IsDataLoss(why);
  // The hash of the message distinguishes different wrong bytes, because the message contains the
  // digest of the read bytes. All read errors count as equal.
  const uint64_t digest = is_wrong ? SliceDigest(why.message().data(), why.message().size()) : 0;
  const uint16_t wrong = static_cast<uint16_t>(digest);
  absl::Duration pause;
  bool many_fail = false;
  {
    StoreLock lock(core_);
    const absl::Time now = core_->clock->Now();
    // Keep an object that has a copy in RAM, which serves all other readers.
    if (object->retired || object->hidden(now) || (object->in_host() && object->on_disk)) return;
    if (is_open) {
      object->failures = object->wrong != wrong ? 1 : std::min(object->failures + 1, 255);
      object->wrong = wrong;
    }
    many_fail = ManyFail(object->number, now);
    const int most = is_wrong ? kMaxWrongReads : kMaxFailedReads;
    if (object->on_disk && (object->failures < most || many_fail)) {
      pause = kFirstPause * (1 << std::min<int>(object->failures, 5)) / 2;
      pause = std::clamp(pause, kFirstPause, StoredObject::kLongestHidden);
      object->hidden_until = now + pause;
    }
  }
  if (many_fail) {
    core_->warnings.Say("disk", absl::StrCat("reads of more than ", kMaxFailing,
                                             " objects failed within a minute; no object is "
                                             "quarantined until fewer reads fail; the last error: ",
                                             why.message()));
  }
  if (pause == absl::ZeroDuration()) return QuarantineObject(object, why);
  if (pause > kFirstPause) return;  // the first failure was reported; do not repeat the warning
  core_->warnings.Say(
      "reads", absl::StrCat("object ", object->number,
                            " cannot be read; not served until a retry succeeds: ", why.message()));
}

void Quarantiner::NoteRead(StoredObject* object) {
  core_->mu.AssertHeld();
  object->failures = 0;
  if (!failing_.empty()) failing_.erase(object->number);
}

bool Quarantiner::ManyFail(uint64_t object, absl::Time now) {
  core_->mu.AssertHeld();
  absl::erase_if(failing_, [now](const auto& entry) {
    return now - entry.second > kFailingWindow ||
           now < entry.second;  // the second condition: the clock was set back
  });
  if (failing_.size() > kMaxFailing && !failing_.contains(object)) failing_.erase(failing_.begin());
  assert(failing_.size() <= kMaxFailing || failing_.contains(object));
  failing_[object] = now;
  return failing_.size() > kMaxFailing;
}

void Quarantiner::QuarantineHostCopy(StoredObject* object) {
  StoreLock lock(core_);
  if (!object->in_host()) return;
  if (object->on_disk) {
    core_->objects.DropHostCopy(object);
  } else {
    QuarantineLocked(object);
  }
}

void Quarantiner::QuarantineObject(StoredObject* object, const absl::Status& why) {
  bool is_new = false;
  {
    StoreLock lock(core_);
    is_new = QuarantineLocked(object);
  }
  if (is_new) {
    core_->warnings.Say(
        "damage",
        absl::StrCat("object ", object->number,
                     " is quarantined with all restore points that need it: ", why.message()));
  }
}

bool Quarantiner::QuarantineLocked(StoredObject* object) {
  core_->mu.AssertHeld();
  assert(object->sessions > 0);  // the reader holds the object, so it stays until the session ends
  if (object->retired) return false;
  core_->Count(Counter::kQuarantined);
  core_->history.Record(object->key(), Removal::kQuarantined, core_->clock->Now());
  while (object->names > 0) {
    RemovePoints(std::string(object->account->tenant), Removal::kQuarantined,
                 [object](const RestorePointEntry& point) {
                   return object->names > 0 && Names(point, object);
                 });
  }
  if (!object->retired) core_->objects.Retire(object);
  return true;
}

void Quarantiner::RemovePoint(RestorePointEntry* point, Removal why, DropResult* result) {
  core_->mu.AssertHeld();
  std::vector<StoredObject*> freed;
  for (StoredObject* object : point->objects) {
    if (object->names > 1) continue;
    core_->objects.Hold(object);
    freed.push_back(object);
  }
  core_->catalog.Remove(point, why);
  ++result->dropped;
  const uint64_t before = core_->objects.bytes();
  for (StoredObject* object : freed) {
    // Retire an object that a session still reads: otherwise the next lookup would find it, and it
    // would never be removed. Objects of a running publish belong to that publish.
    if (why == Removal::kDropped && object->promised == 0) core_->objects.Retire(object);
    core_->objects.Release(object);
  }
  assert(core_->objects.bytes() <= before);
  result->freed_bytes += before - core_->objects.bytes();
}

DropResult Quarantiner::RemovePoints(const std::string& tenant, Removal why,
                                     absl::FunctionRef<bool(const RestorePointEntry&)> leaves) {
  core_->mu.AssertHeld();
  DropResult result;
  bool any = false, others_came = false;
  do {
    any = others_came = false;
    for (const Catalog::PointName& name : core_->catalog.NamesOf(tenant)) {
      RestorePointEntry* point = core_->catalog.Find(name);
      const bool goes = point != nullptr && leaves(*point);
      const size_t count = goes ? point->objects.size() : 1;
      if (goes) RemovePoint(point, why, &result);
      any |= goes;
      others_came |= core_->Yield(count);
    }
  } while (any && others_came);
  return result;
}

}  // namespace hearth
