#include "worker/engine/prefix_keeper.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/restore_rule.h"
#include "proto/snapshot_format.h"
#include "proto/state_format.h"
#include "worker/engine/runner/kv_snapshot.h"

namespace hearth {
namespace {

bool Contains(const std::vector<uint32_t>& ascending, uint32_t boundary) {
  return std::binary_search(ascending.begin(), ascending.end(), boundary);
}

void AddNote(absl::string_view note, PublishOutcome* outcome) {
  absl::StrAppend(&outcome->note, outcome->note.empty() ? "" : "; ", note);
}

std::shared_ptr<const KvObject> WithoutBytes(const ObjectId& id) {
  auto object = std::make_shared<KvObject>();
  object->id = id;
  return object;
}

// Sorts objects by id and removes duplicates.
void SortEachOnce(KvObjects* objects) {
  std::stable_sort(objects->begin(), objects->end(),
                   [](const auto& a, const auto& b) { return a->id < b->id; });
  const auto equal = [](const auto& a, const auto& b) { return a->id == b->id; };
  objects->erase(std::unique(objects->begin(), objects->end(), equal), objects->end());
}

// Appends to `offered` the objects that `boundaries` need. REQUIRES: each boundary is below the
// restored boundary. Objects that were not restored are appended without bytes: the store may have
// their bytes.
void AddBelow(const KvLayout& layout, const std::vector<uint32_t>& boundaries,
              const KvObjects& restored, KvObjects* offered) {
  for (const uint32_t boundary : boundaries) {
    for (const ObjectId& id : NeededObjects(layout, boundary)) {
      const auto at = std::lower_bound(
          restored.begin(), restored.end(), id,
          [](const auto& object, const ObjectId& wanted) { return object->id < wanted; });
      offered->push_back(at != restored.end() && (*at)->id == id ? *at : WithoutBytes(id));
    }
  }
}

// Describes a publish of `boundaries`, with ascending `objects`. Several publishes of a request may
// run; each adds the tokens that the cache does not have to the same count, because the publish
// that the cache plans first is unknown. REQUIRES: the request writes prefixes.
PublishRequestSpec SpecFor(const Sequence& sequence, const PrefixRequest& prefix,
                           std::vector<uint32_t> boundaries, KvObjects objects) {
  const uint32_t end = boundaries.back();
  PublishRequestSpec spec;
  spec.prefix.tenant = prefix.tenant;
  spec.prefix.adapter = prefix.adapter;
  spec.prefix.request_id = prefix.request_id;
  spec.prefix.traceparent = prefix.traceparent;
  spec.prefix.token_ids.assign(prefix.token_ids.begin(), prefix.token_ids.begin() + end);
  for (uint32_t cut : prefix.cuts) {
    if (cut <= end) spec.prefix.cuts.push_back(cut);
  }
  spec.boundaries = std::move(boundaries);
  spec.objects = std::move(objects);
  spec.durability = sequence.request.durability;
  spec.ttl_s = sequence.request.ttl_s;
  spec.hint = sequence.request.hint;
  spec.on_plan = [written = sequence.kept.written](const auto& lacked) { written->Add(lacked); };
  return spec;
}

// Returns whether all values are finite. A NaN or infinity would fail every request that restores
// it. Checks the exponent bits in the upper 16 bits of each value. REQUIRES: float32 or bfloat16.
bool AreFinite(const KvObjects& objects, KvDtype dtype) {
  constexpr uint16_t kExponent = 0x7f80;
  const size_t step = KvDtypeBytes(dtype);
  for (const auto& object : objects) {
    for (size_t end = step; end <= object->size_bytes; end += step) {
      uint16_t upper = 0;
      std::memcpy(&upper, object->bytes.get() + end - sizeof(upper), sizeof(upper));
      if ((upper & kExponent) == kExponent) return false;
    }
  }
  return true;
}

}  // namespace

PrefixKeeper::PrefixKeeper(const MemoryLimits& memory, absl::Duration publish_timeout,
                           const KvLayout& layout, EngineCounters* counters)
    : memory_(memory),
      layout_(layout),
      counters_(counters),
      pool_(memory.pool_bytes, layout.chunk_tokens, layout.exactness),
      staging_(memory.staging_bytes),
      publisher_(publish_timeout, memory.staging_bytes, counters) {}

// Other requests wait for a lease's holder, so publish each restore point as soon as it is
// computed. Do not publish before the last step: this would delay the first token, and Keep()
// follows soon.
void PrefixKeeper::KeepPassed(Sequence* sequence, uint32_t begin, PrefixCache* cache) {
  if (sequence->next_step + 1 >= sequence->step_ends.size()) return;
  const std::vector<uint32_t> boundaries = sequence->kept.staged->boundaries();
  if (boundaries.empty()) return;
  if (boundaries.back() > begin && boundaries.back() <= sequence->position)
    return Keep(sequence, cache);
  for (const uint32_t boundary : boundaries) {
    if (boundary > begin && boundary <= sequence->position) KeepBoundary(sequence, boundary, cache);
  }
}

void PrefixKeeper::KeepBoundary(Sequence* sequence, uint32_t boundary, PrefixCache* cache) {
  AddKeptToPool(sequence->prefix, boundary, sequence->kept.staged->ObjectsOf(boundary));
  if (cache == nullptr) return;
  // The sequence keeps the lease on the bytes, because Keep() publishes them again with the other
  // restore points.
  PublishJob job;
  job.spec =
      SpecFor(*sequence, sequence->prefix, {boundary}, sequence->kept.staged->ObjectsOf(boundary));
  job.done = [](const PublishOutcome&) {};
  publisher_.Submit(cache, std::move(job));
}

void PrefixKeeper::Keep(Sequence* sequence, PrefixCache* cache) {
  // If the sequence ended before its prompt was computed, or was preempted since, `staged` is null.
  if (sequence->kept.staged == nullptr) return;
  if (sequence->kept.prompt) return sequence->restored.objects.clear();
  sequence->kept.prompt = true;
  if (sequence->writes()) {
    for (uint32_t boundary : sequence->kept.staged->boundaries()) {
      AddKeptToPool(sequence->prefix, boundary, sequence->kept.staged->ObjectsOf(boundary));
    }
    if (KeepsAnswer(*sequence, cache) && sequence->kept.published != nullptr)
      sequence->kept.published->Expect(2);
    Publish(sequence, cache);
  }
  if (!KeepsAnswer(*sequence, cache)) sequence->kept.staged.reset();
  sequence->kept.lease.reset();  // the publish job holds the lease now
  sequence->restored.objects.clear();
}

void PrefixKeeper::AddRestoredToPool(const Sequence& sequence) {
  if (sequence.restored.from > Tier::kWorker && MayBeKept(sequence.restored.objects)) {
    InsertIntoPool(sequence.prefix, sequence.restored.boundary, sequence.restored.objects);
  }
}

void PrefixKeeper::ShareRestored(Sequence* sequence) {
  if (sequence->kept.staged == nullptr || sequence->restored.boundary == 0 || !has_pool()) return;
  const KvObjects shared = sequence->kept.staged->ShareRestored(*sequence->kv);
  if (!shared.empty()) pool_.UseDeviceBlocks(shared);
}

void PrefixKeeper::AddKeptToPool(const PrefixRequest& prefix, uint32_t boundary,
                                 const KvObjects& objects) {
  if (!MayBeKept(objects)) return;
  if (InsertIntoPool(prefix, boundary, objects) == PrefixPool::InsertResult::kDiffers) {
    counters_->Add(EngineCounter::kNondeterminism);
  }
  publisher_.Seal(objects);
}

// Adds a restore point to the pool and counts the result.
PrefixPool::InsertResult PrefixKeeper::InsertIntoPool(const PrefixRequest& prefix,
                                                      uint32_t boundary, const KvObjects& objects) {
  const PrefixPool::InsertResult result = pool_.Insert(prefix, boundary, objects);
  if (result == PrefixPool::InsertResult::kInserted) counters_->Add(EngineCounter::kPoolInserts);
  const bool too_large = result == PrefixPool::InsertResult::kTooLarge;
  if (too_large && memory_.pool_bytes > 0) counters_->Add(EngineCounter::kPoolTooLarge);
  return result;
}

void PrefixKeeper::Publish(Sequence* sequence, PrefixCache* cache) {
  const std::shared_ptr<PublishedNotice> notice = sequence->kept.published;
  const uint32_t skipped = sequence->kept.staged->skipped();
  const bool in_blocks = layout_.exactness == Exactness::kInvariant;
  const auto planned = [written = sequence->kept.written,
                        on_planned = sequence->callbacks.on_planned] {
    if (on_planned != nullptr) on_planned(written->count());
  };
  const auto done = [notice, skipped, in_blocks, planned](PublishOutcome outcome) {
    planned();
    if (skipped > 0) {
      AddNote(absl::StrCat(skipped, " restore points were not saved: staging-bytes",
                           in_blocks ? " or kv-bytes" : "", " is full"),
              &outcome);
    }
    if (notice != nullptr) notice->OnOutcome(outcome);
  };
  const KvObjects& restored = sequence->restored.objects;
  std::vector<uint32_t> below;  // requested boundaries below the restored boundary
  for (const uint32_t boundary : sequence->request.asked) {
    if (boundary < sequence->restored.boundary) below.push_back(boundary);
  }
  std::vector<uint32_t> boundaries = below;
  const std::vector<uint32_t>& staged = sequence->kept.staged->boundaries();
  StagingBudget::Lease lease = sequence->kept.staged->TakeLease();
  KvObjects offered;
  AddBelow(layout_, below, restored, &offered);
  // Also offer the boundary that was restored from the pool: the store may have lost it, and the
  // offer marks it as used. If there is nothing new, offer the restored boundary from any source,
  // to learn whether it is durable.
  if (!restored.empty() && (sequence->restored.from == Tier::kWorker || staged.empty())) {
    offered.insert(offered.end(), restored.begin(), restored.end());
    boundaries.push_back(sequence->restored.boundary);
  }
  for (const uint32_t boundary : staged) {
    for (const auto& object : sequence->kept.staged->ObjectsOf(boundary)) offered.push_back(object);
  }
  SortEachOnce(&offered);
  boundaries.insert(boundaries.end(), staged.begin(), staged.end());
  if (cache == nullptr || boundaries.empty()) {
    PublishOutcome nothing;
    if (cache == nullptr) {
      nothing.note = "the worker has no store";
    } else if (skipped == 0) {
      nothing.note = kNothingToKeep;
    }
    return done(nothing);
  }
  PublishJob job;
  job.spec = SpecFor(*sequence, sequence->prefix, std::move(boundaries), std::move(offered));
  job.spec.on_plan = [count = job.spec.on_plan, planned](const auto& lacked) {
    count(lacked);
    planned();
  };
  job.done = done;
  if (sequence->generates()) {  // Prefill computes the lower boundaries; Generate does not
    job.done = [below, done](PublishOutcome outcome) {
      for (const uint32_t boundary : below) {
        if (outcome.boundaries.empty() || Contains(outcome.boundaries, boundary)) continue;
        AddNote(absl::StrCat("boundary ", boundary, " was not stored: compute it with Prefill"),
                &outcome);
      }
      done(std::move(outcome));
    };
  }
  job.lease = std::move(lease);
  job.compute_lease = std::move(sequence->kept.lease);
  publisher_.Submit(cache, std::move(job));
}

// Returns whether the answer's KV is saved: only in class invariant, where decoding computes the
// same bits as prefill. After a beam search it is not saved: the KV may belong to a beam that
// continued with other tokens.
bool PrefixKeeper::KeepsAnswer(const Sequence& sequence, PrefixCache* cache) const {
  if (layout_.exactness != Exactness::kInvariant) return false;
  if (!sequence.generates() || !sequence.writes() || sequence.request.searches()) return false;
  return cache != nullptr || memory_.pool_bytes > 0;
}

// Saves the prefix for a next chat turn: prompt and answer without the last sampled token, whose KV
// is not computed.
void PrefixKeeper::KeepAnswer(Sequence* sequence, PrefixCache* cache) {
  if (sequence->kept.staged == nullptr || !KeepsAnswer(*sequence, cache)) return;
  PublishOutcome nothing;
  nothing.note = kNothingToKeep;
  const auto done = [notice = sequence->kept.published](const PublishOutcome& outcome) {
    if (notice != nullptr) notice->OnOutcome(outcome);
  };
  StagedSnapshots& staged = *sequence->kept.staged;
  const uint32_t boundary =
      sequence->kv == nullptr ? 0 : static_cast<uint32_t>(sequence->kv->length());
  const auto& kept = staged.boundaries();
  if (boundary <= sequence->restored.boundary ||
      std::find(kept.begin(), kept.end(), boundary) != kept.end()) {
    return done(nothing);
  }
  if (!staged.AddNow(*sequence->kv, &staging_)) {
    counters_->Add(EngineCounter::kStagingSkips);
    nothing.note = "the answer was not saved: staging-bytes is full";
    return done(nothing);
  }
  PrefixRequest prefix = sequence->prefix;
  prefix.token_ids = sequence->Text();
  prefix.token_ids.resize(boundary);
  AddKeptToPool(prefix, boundary, staged.ObjectsOf(boundary));
  if (cache == nullptr) return done(nothing);
  PublishJob job;
  job.spec = SpecFor(*sequence, prefix, {boundary}, staged.ObjectsOf(boundary));
  job.done = done;
  job.lease = staged.TakeLease();
  publisher_.Submit(cache, std::move(job));
}

// Saves the KV up to the last computed token. Copies an incomplete last chunk; whole chunks are
// shared.
void PrefixKeeper::KeepPreempted(Sequence* sequence) {
  const auto boundary = static_cast<uint32_t>(sequence->kv->length());
  const EngineRequest& asked = sequence->asked();
  if (!asked.writes() || boundary == 0 || NeededBytes(layout_, boundary) > memory_.pool_bytes)
    return;
  // a `staged` with digests of earlier chunks avoids hashing them again
  std::unique_ptr<StagedSnapshots>& staged = sequence->kept.staged;
  if (staged == nullptr) {
    staged = std::make_unique<StagedSnapshots>(layout_, std::vector<uint32_t>(), 0, KvObjects(),
                                               &staging_, /*shares_chunks=*/true);
  }
  if (!staged->AddNow(*sequence->kv, &staging_)) return;
  PrefixRequest prefix = sequence->prefix;
  prefix.token_ids = sequence->Text();
  prefix.tenant = asked.tenant;
  prefix.adapter = asked.adapter;
  AddKeptToPool(prefix, boundary, staged->ObjectsOf(boundary));
}

bool PrefixKeeper::ReleaseStaged(Sequence* sequence) {
  StagedSnapshots* const staged = sequence->kept.staged.get();
  if (staged == nullptr || (!staged->holds_any() && sequence->restored.objects.empty())) {
    return false;
  }
  sequence->restored.objects.clear();
  sequence->kept.lease.reset();
  const uint32_t dropped = staged->Drop();
  if (!sequence->kept.prompt) counters_->Add(EngineCounter::kStagingSkips, dropped);
  return true;
}

// Returns the objects of the whole prompt. If the whole prompt was restored and is in host memory,
// `kv` is empty: return the restored objects.
absl::StatusOr<KvObjects> PrefixKeeper::SnapshotOf(const Sequence& sequence) {
  const uint32_t end = sequence.tokens();
  if (sequence.restored.boundary == end && MayBeKept(sequence.restored.objects)) {
    return sequence.restored.objects;
  }
  assert(sequence.kv->length() == static_cast<int>(end));
  StagedSnapshots& staged = *sequence.kept.staged;
  if (!staged.AddNow(*sequence.kv, &staging_)) {
    counters_->Add(EngineCounter::kStagingSkips);
    return absl::ResourceExhaustedError("cannot save the state: staging-bytes is full; retry");
  }
  return staged.ObjectsOf(end);
}

absl::Status PrefixKeeper::GiveSnapshot(Sequence* sequence, const Fingerprint& plain,
                                        const std::vector<AdapterInfo>& adapters) {
  if (sequence->callbacks.on_snapshot == nullptr) return absl::OkStatus();
  assert(!sequence->generates() && !sequence->writes());
  if (absl::Status has_states = CheckHasStates(layout_); !has_states.ok()) return has_states;
  const auto named = std::find_if(adapters.begin(), adapters.end(), [&](const AdapterInfo& info) {
    return info.name == sequence->prefix.adapter;
  });
  absl::StatusOr<KvObjects> objects = SnapshotOf(*sequence);
  if (!objects.ok()) return objects.status();
  sequence->callbacks.on_snapshot(
      [fingerprint = named == adapters.end() ? plain : named->fingerprint, layout = layout_,
       tokens = sequence->prefix.token_ids,
       held = *std::move(objects)] { return MakeSnapshotFile(fingerprint, layout, tokens, held); });
  return absl::OkStatus();
}

absl::StatusOr<std::string> PrefixKeeper::AddSnapshot(const std::string& tenant,
                                                      const Fingerprint& plain,
                                                      const std::vector<AdapterInfo>& adapters,
                                                      absl::string_view file) {
  if (absl::Status has_states = CheckHasStates(layout_); !has_states.ok()) return has_states;
  const absl::StatusOr<SnapshotHeader> header = ParseSnapshotHeader(file);
  if (!header.ok()) return header.status();
  // If no adapter matches, compare with `plain`, so that the error names the difference.
  const auto same = std::find_if(adapters.begin(), adapters.end(), [&](const AdapterInfo& info) {
    return info.fingerprint.digest() == header->fingerprint.digest();
  });
  PrefixRequest prefix;
  if (same != adapters.end()) prefix.adapter = same->name;
  absl::Status status =
      CheckRestorable(*header, same == adapters.end() ? plain : same->fingerprint);
  if (status.ok()) status = VerifySnapshotFile(file);
  if (!status.ok()) return status;
  const KvObjects objects = ObjectsOfSnapshot(*header, file);
  if (!AreFinite(objects, layout_.dtype)) {
    return absl::InvalidArgumentError(
        "cannot restore: the saved KV has values that are not finite");
  }
  prefix.token_ids = header->manifest.token_ids;
  prefix.tenant = tenant;
  const uint32_t boundary = header->manifest.token_count;
  switch (InsertIntoPool(prefix, boundary, objects)) {
    case PrefixPool::InsertResult::kTooLarge:
      return absl::ResourceExhaustedError(absl::StrCat("the state has ", file.size(),
                                                       " bytes; the pool's limit is ",
                                                       memory_.pool_bytes, " (--pool-bytes)"));
    case PrefixPool::InsertResult::kDiffers:
      return absl::FailedPreconditionError(
          "cannot restore: KV differs: this worker computed other bytes for the same tokens");
    default:
      return prefix.adapter;
  }
}

}  // namespace hearth
