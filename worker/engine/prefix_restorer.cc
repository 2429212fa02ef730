#include "worker/engine/prefix_restorer.h"

#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

#include "proto/restore_rule.h"
#include "worker/engine/runner/kv_snapshot.h"

namespace hearth {
namespace {

EngineCounter CachedTokensCounter(Tier tier) {
  switch (tier) {
    case Tier::kWorker:
      return EngineCounter::kCachedTokensWorker;
    case Tier::kGpu:
      return EngineCounter::kCachedTokensGpu;
    case Tier::kHost:
      return EngineCounter::kCachedTokensHost;
    case Tier::kDisk:
      return EngineCounter::kCachedTokensDisk;
    case Tier::kShared:
      return EngineCounter::kCachedTokensShared;
    case Tier::kNone:
      break;
  }
  assert(false);
  return EngineCounter::kCachedTokensWorker;
}

// Returns whether the sequence may be restored at `boundary`.
bool MayRestoreAt(uint32_t boundary, const Sequence& sequence, const KvLayout& layout) {
  if (!CutsAreKeyed(layout.exactness)) return true;
  return boundary % layout.chunk_tokens == 0 ||
         std::binary_search(sequence.prefix.cuts.begin(), sequence.prefix.cuts.end(), boundary);
}

}  // namespace

absl::Status PrefixRestorer::Restore(Sequence* sequence, FetchOutcome fetched, bool has_cache) {
  const bool is_counted = fetched.is_counted;
  const uint32_t counted_held = fetched.counted_held;
  ChooseSource(sequence, std::move(fetched));
  uint32_t& matched = sequence->pooled.matched_tokens;
  matched = std::max(matched, sequence->restored.boundary);
  absl::Status status = Prepare(sequence, has_cache);
  while (sequence->restored.boundary > 0 && (KvMemory::IsLack(status) || absl::IsAborted(status))) {
    DropRestored(sequence);
    status = Prepare(sequence, has_cache);
  }
  if (status.ok()) sequence->pooled.objects.clear();  // only DropRestored needs the objects
  if (!status.ok() || sequence->resumed) return status;
  counters_->Add(EngineCounter::kPromptTokens, sequence->tokens());
  const RestoredPrefix& restored = sequence->restored;
  if (restored.boundary > 0) counters_->Add(CachedTokensCounter(restored.from), restored.boundary);
  if (!is_counted) counters_->Add(EngineCounter::kUnaskedTokens, sequence->tokens());
  if (restored.boundary > counted_held && restored.from == Tier::kWorker) {
    counters_->Add(EngineCounter::kUnaskedHeldTokens, restored.boundary - counted_held);
  }
  return status;
}

bool PrefixRestorer::IsUsable(const Sequence& sequence, FetchOutcome* fetched) const {
  const uint32_t boundary = fetched->usable_tokens;
  return boundary <= sequence.max_boundary() && MayRestoreAt(boundary, sequence, layout_) &&
         CheckAndSortObjects(layout_, boundary, &fetched->objects).ok();
}

// Replaces fetched objects by equal objects of the pool, because sequences can share the pool's
// memory (class invariant).
void PrefixRestorer::TakePooled(const KvObjects& pooled, KvObjects* objects) const {
  if (layout_.exactness != Exactness::kInvariant) return;
  for (auto& object : *objects) {
    const auto known = std::find_if(pooled.begin(), pooled.end(), [&](const auto& other) {
      return other->id == object->id && other->Complete() &&
             other->slice_digests == object->slice_digests;
    });
    if (known != pooled.end()) object = *known;
  }
}

void PrefixRestorer::ChooseSource(Sequence* sequence, FetchOutcome fetched) {
  // Use the fetched objects only if they are longer than the pool's prefix. Another request may
  // have added an equally long one to the pool during the fetch.
  if (fetched.usable_tokens > sequence->pooled.boundary) {
    if (IsUsable(*sequence, &fetched)) {
      TakePooled(sequence->pooled.objects, &fetched.objects);
      sequence->restored.boundary = fetched.usable_tokens;
      assert(fetched.usable_tokens <= sequence->max_boundary());
      sequence->restored.objects = std::move(fetched.objects);
      sequence->restored.from = fetched.slowest_tier;
      // If the cache does not report a tier, count the objects as kHost.
      if (sequence->restored.from == Tier::kNone) sequence->restored.from = Tier::kHost;
      return;
    }
    counters_->Add(EngineCounter::kFetchesRefused);
  }
  if (sequence->pooled.boundary > 0) {
    counters_->Add(EngineCounter::kPoolHits);
    sequence->restored.boundary = std::exchange(sequence->pooled.boundary, 0);
    sequence->restored.objects = std::move(sequence->pooled.objects);
    sequence->restored.from = Tier::kWorker;
  }
}

void PrefixRestorer::PlanKept(Sequence* sequence, bool has_cache) {
  assert(sequence->step_ends.empty() && sequence->restored.boundary <= sequence->max_boundary());
  std::vector<uint32_t> kept;
  if (sequence->writes() && !sequence->kept.prompt && (has_cache || keeper_->has_pool())) {
    kept =
        KeptBoundaries(sequence->tokens(), sequence->prefix.cuts, sequence->pooled.matched_tokens,
                       sequence->restored.boundary, layout_.chunk_tokens);
  }
  sequence->kept.staged = std::make_unique<StagedSnapshots>(
      layout_, kept, sequence->restored.boundary, sequence->restored.objects, keeper_->staging(),
      layout_.exactness == Exactness::kInvariant, sequence->kv->is_on_device());
  uint32_t end = sequence->tokens();
  // A prefill-only request that writes ends at its last staged boundary: no one uses the KV after
  // it.
  if (!sequence->generates() && sequence->writes()) {
    const std::vector<uint32_t>& staged = sequence->kept.staged->boundaries();
    end = staged.empty() ? sequence->restored.boundary : staged.back();
  }
  counters_->Add(EngineCounter::kStagingSkips, sequence->kept.staged->skipped());
  if (sequence->kept.staged->boundaries().empty()) sequence->kept.lease.reset();
  for (uint32_t step_end :
       StepEnds(sequence->tokens(), sequence->prefix.cuts, layout_.chunk_tokens)) {
    if (step_end > sequence->restored.boundary && step_end <= end) {
      sequence->step_ends.push_back(step_end);
    }
  }
}

// Plans the prefill steps and restores the KV. kResourceExhausted, kUnavailable: no memory for the
// restored prefix. kAborted: the cache overwrote bytes that it lends.
absl::Status PrefixRestorer::Prepare(Sequence* sequence, bool has_cache) {
  KvObjects objects = sequence->restored.objects;
  ReturnLent(&sequence->restored.objects);  // the cache lends them until the KV is restored
  PlanKept(sequence, has_cache);
  sequence->position = sequence->restored.boundary;
  // If there is nothing to compute, only a snapshot of bytes that the host lacks needs the KV.
  if (sequence->step_ends.empty() &&
      (sequence->callbacks.on_snapshot == nullptr || MayBeKept(sequence->restored.objects))) {
    fetcher_->Return(std::move(objects));
    return absl::OkStatus();
  }
  absl::Status restored;
  // a longer `kv` comes from a failed attempt
  if (sequence->position > 0 || sequence->kv->length() > 0) {
    restored = memory_->RetryFreeingMemory(*sequence, [&] {
      return model_->Restore(layout_, sequence->position, objects, sequence->kv.get());
    });
  }
  fetcher_->Return(std::move(objects));
  assert(!restored.ok() || sequence->kv->length() == static_cast<int>(sequence->position));
  return restored;
}

// Call if there was no memory for the restored prefix, or the cache overwrote it. Discards the
// prefix and chooses the next source: the worker's pool, if it has a prefix and was not tried yet;
// otherwise no source, so that the whole prompt is computed.
void PrefixRestorer::DropRestored(Sequence* sequence) {
  counters_->Add(EngineCounter::kRestoreFailures);
  sequence->kept.staged.reset();
  sequence->step_ends.clear();
  sequence->restored.objects.clear();
  sequence->restored.boundary = 0;
  sequence->restored.from = Tier::kNone;
  ChooseSource(sequence, FetchOutcome());
}

}  // namespace hearth
