#include "worker/engine/engine_counters.h"

#include <cassert>

namespace hearth {
namespace {

struct Named {
  const char* name;
  const char* meaning;
};
constexpr Named kNames[] = {
    {"requests", "Requests accepted"},
    {"requests_refused", "Requests refused because the queue is full or the worker is draining"},
    {"requests_finished", "Requests that ended with an answer"},
    {"requests_cancelled", "Requests cancelled by the caller"},
    {"requests_expired", "Requests whose deadline passed"},
    {"requests_failed", "Requests that failed because of an error in the worker"},
    {"prompt_tokens", "Prompt tokens of requests whose prefix lookup is complete"},
    {"computed_tokens", "Prompt tokens computed by the model"},
    {"generated_tokens", "Tokens generated"},
    {"cached_tokens_worker", "Prompt tokens restored from the worker's own memory"},
    {"cached_tokens_gpu", "Prompt tokens restored from the store's GPU memory"},
    {"cached_tokens_host", "Prompt tokens restored from the store's RAM"},
    {"cached_tokens_disk", "Prompt tokens restored from the store's disk"},
    {"cached_tokens_shared", "Prompt tokens restored from the tier that stores share"},
    {"unasked_tokens", "Prompt tokens of requests for which the store answered no lookup"},
    {"unasked_held_tokens",
     "Prompt tokens restored from the worker's own memory that no lookup told the store"},
    {"prefill_steps", "Prefill steps; a step counts once for each of its sequences"},
    {"decode_steps", "Decode steps; a step counts once for each of its sequences"},
    {"drafted_tokens", "Tokens guessed in advance, which decode steps verified"},
    {"accepted_tokens", "Tokens guessed in advance that were correct"},
    {"forced_tokens", "Tokens guessed in advance because a grammar allowed no other token"},
    {"grammar_masks", "Token masks computed by grammars, one for each drawn token"},
    {"grammar_mask_us", "Microseconds spent computing which tokens a grammar allowed"},
    {"grammar_limits", "Answers that ended because their grammar exceeded a limit"},
    {"steps", "Forward passes of the model"},
    {"step_rows", "Tokens in forward passes of the model"},
    {"fetches", "Prefix fetches started"},
    {"fetch_misses", "Prefix fetches that found nothing"},
    {"fetch_timeouts", "Prefix fetches that exceeded the fetch budget"},
    {"fetches_refused", "Prefix fetches whose answer did not match the request"},
    {"loads", "Requests that loaded a prefix"},
    {"loads_declined", "Requests that computed a stored prefix because loading seemed slower"},
    {"loads_unasked", "Requests computed without asking the store, since loading seemed slower"},
    {"loads_abandoned", "Loads stopped because computing had become faster"},
    {"load_estimated_us", "Sum of the estimated times of loads, in microseconds"},
    {"load_took_us", "Sum of the actual times of loads that had an estimate, in microseconds"},
    {"restore_failures", "Prefixes that could not be restored because the KV memory was full"},
    {"pool_hits", "Prefixes found in the worker's pool"},
    {"pool_inserts", "Prefixes put into the worker's pool"},
    {"pool_too_large", "Prefixes not put into the worker's pool because they exceed its size"},
    {"publishes", "Publishes that the worker started"},
    {"publishes_stored", "Publishes that stored at least one restore point"},
    {"publishes_dropped", "Publishes dropped because too many were waiting or the worker stopped"},
    {"publish_bytes", "Bytes sent by publishes"},
    {"cache_write_tokens", "Prompt tokens reported to callers as new to the cache"},
    {"staging_skips", "Restore points not saved because staging-bytes was full"},
    {"preemptions", "Sequences returned to the queue so that an older sequence got their memory"},
    {"kv_offloads", "Requests offloaded to host memory because the device had too little memory"},
    {"recomputed_tokens", "Tokens of preempted sequences that were computed again"},
    {"nondeterminism", "Prefixes that this worker computed twice with different bits; must stay 0"},
    {"audits", "Restored prefixes computed again and compared"},
    {"audits_skipped", "Audits skipped: too many were waiting, or the cache had lost the prefix"},
    {"audits_wrong", "Audits that found wrong bytes in the cache; must stay 0"},
    {"audits_quarantined", "Wrong prefixes that the cache quarantined"},
};
constexpr size_t kCount = static_cast<size_t>(EngineCounter::kCount);
static_assert(sizeof(kNames) / sizeof(kNames[0]) == kCount, "one name a counter");

}  // namespace

const char* EngineCounterName(EngineCounter counter) {
  assert(counter < EngineCounter::kCount);
  return kNames[static_cast<size_t>(counter)].name;
}

std::string EngineCounterMeaning(const std::string& name) {
  for (const Named& named : kNames) {
    if (name == named.name) return named.meaning;
  }
  return "";
}

std::map<std::string, uint64_t> EngineCounters::Snapshot() const {
  std::map<std::string, uint64_t> snapshot;
  for (size_t i = 0; i < kCount; ++i) {
    snapshot[kNames[i].name] = values_[i].load(std::memory_order_relaxed);
  }
  return snapshot;
}

}  // namespace hearth
