#include "cache_store/store/background/quarantiner.h"

#include <algorithm>
#include <cassert>
#include <set>

#include "absl/strings/str_cat.h"
#include "proto/caller_gone.h"

namespace hearth {
namespace {

// Reads of one object. Bytes that stay wrong are given up after half a minute. Errors say nothing
// about the bytes, and a disk may be away for longer: after five minutes.
constexpr int kMaxWrongReads = 5, kMaxFailedReads = 22;
constexpr absl::Duration kFirstPause = absl::Seconds(1);

// Where the objects end; kInvalidArgument: not in the prompt.
absl::StatusOr<std::vector<uint32_t>> EndsOf(absl::Span<const ObjectId> objects, uint32_t tokens) {
  std::set<uint32_t> ends;
  for (const ObjectId& id : objects) {
    if (id.begin + id.tokens > tokens) {
      return absl::InvalidArgumentError(absl::StrCat("objects: one ends at ", id.begin + id.tokens,
                                                     ", past the ", tokens, " tokens"));
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
      core_->objects.Hold(object);  // it may be there only because another's restore points are
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

void Quarantiner::Suspect(StoredObject* object, const absl::Status& why) {
  // A lack of file descriptors or memory says nothing about the object.
  if (absl::IsResourceExhausted(why)) return;
  core_->tiers.disk->DropCached(object->number);
  const int counts = core_->tiers.disk->IsOpen() ? 1 : 0;
  const int most = absl::IsDataLoss(why) ? kMaxWrongReads : kMaxFailedReads;
  absl::Duration pause;
  {
    StoreLock lock(core_);
    const absl::Time now = core_->clock->Now();
    if (object->retired || object->hidden(now)) return;
    object->failures = static_cast<uint8_t>(std::min(object->failures + counts, 255));
    if (object->on_disk && object->failures < most) {
      pause = kFirstPause * (1 << std::min<int>(object->failures, 5)) / 2;
      pause = std::clamp(pause, kFirstPause, StoredObject::kLongestHidden);
      object->hidden_until = now + pause;
    }
  }
  if (pause == absl::ZeroDuration()) return QuarantineObject(object, why);
  if (pause > kFirstPause) return;  // said before
  core_->warnings.Say(
      "damage", absl::StrCat("object ", object->number,
                             " cannot be read, and is not served for a moment: ", why.message()));
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
    core_->warnings.Say("damage", absl::StrCat("object ", object->number,
                                               " is quarantined with all that "
                                               "names it: ",
                                               why.message()));
  }
}

bool Quarantiner::QuarantineLocked(StoredObject* object) {
  core_->mu.AssertHeld();
  assert(object->sessions > 0);  // the reader's: it stays until the session ends
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
    // What a session still reads would be found by the next lookup, and stay for good. What a
    // publish under way names is its.
    if (why == Removal::kDropped && object->promised == 0) core_->objects.Retire(object);
    core_->objects.Release(object);
  }
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
