#include "worker/engine/engine_counters.h"

#include <cassert>

namespace hearth {
namespace {

constexpr const char* kNames[] = {
    "requests",
    "requests_refused",
    "requests_finished",
    "requests_cancelled",
    "requests_expired",
    "requests_failed",
    "prompt_tokens",
    "computed_tokens",
    "generated_tokens",
    "cached_tokens_worker",
    "cached_tokens_gpu",
    "cached_tokens_host",
    "cached_tokens_disk",
    "cached_tokens_shared",
    "prefill_steps",
    "decode_steps",
    "drafted_tokens",
    "accepted_tokens",
    "steps",
    "step_rows",
    "fetches",
    "fetch_misses",
    "fetch_timeouts",
    "fetches_refused",
    "loads",
    "loads_declined",
    "loads_unasked",
    "loads_abandoned",
    "load_estimated_us",
    "load_took_us",
    "restore_failures",
    "lent_not_kept",
    "lent_changed",
    "pool_hits",
    "pool_inserts",
    "pool_too_large",
    "publishes",
    "publishes_stored",
    "publishes_dropped",
    "publish_bytes",
    "staging_skips",
    "nondeterminism",
    "audits",
    "audits_skipped",
    "audits_wrong",
    "audits_quarantined",
};
constexpr size_t kCount = static_cast<size_t>(EngineCounter::kCount);
static_assert(sizeof(kNames) / sizeof(kNames[0]) == kCount, "one name a counter");

}  // namespace

const char* EngineCounterName(EngineCounter counter) {
  assert(counter < EngineCounter::kCount);
  return kNames[static_cast<size_t>(counter)];
}

std::map<std::string, uint64_t> EngineCounters::Snapshot() const {
  std::map<std::string, uint64_t> snapshot;
  for (size_t i = 0; i < kCount; ++i) {
    snapshot[kNames[i]] = values_[i].load(std::memory_order_relaxed);
  }
  return snapshot;
}

}  // namespace hearth
