#include "worker/engine/engine_counters.h"

#include <cassert>

namespace hearth {
namespace {

struct Named {
  const char* name;
  const char* meaning;
};
constexpr Named kNames[] = {
    {"requests", "Requests taken"},
    {"requests_refused", "Requests refused: the queue is full, or the worker drains"},
    {"requests_finished", "Requests that ended with an answer"},
    {"requests_cancelled", "Requests that their caller cancelled"},
    {"requests_expired", "Requests past their deadline"},
    {"requests_failed", "Requests that failed by an error of the worker"},
    {"prompt_tokens", "Prompt tokens of requests whose lookup has ended"},
    {"computed_tokens", "Prompt tokens that went through the model"},
    {"generated_tokens", "Tokens of answers"},
    {"cached_tokens_worker", "Prompt tokens restored from the worker's own memory"},
    {"cached_tokens_gpu", "Prompt tokens restored from the store's gpu tier"},
    {"cached_tokens_host", "Prompt tokens restored from the store's RAM"},
    {"cached_tokens_disk", "Prompt tokens restored from the store's disk"},
    {"cached_tokens_shared", "Prompt tokens restored from the shared engine"},
    {"prefill_steps", "Steps that computed prompts, each sequence's part counted"},
    {"decode_steps", "Steps that decoded, each sequence's part counted"},
    {"drafted_tokens", "Tokens guessed for decode steps to verify"},
    {"accepted_tokens", "Guessed tokens that were right"},
    {"steps", "Passes through the model"},
    {"step_rows", "Tokens in the passes through the model"},
    {"fetches", "Prefixes asked for"},
    {"fetch_misses", "Prefixes that were not there"},
    {"fetch_timeouts", "Fetches later than the fetch budget"},
    {"fetches_refused", "Answers that do not fit their request"},
    {"loads", "Requests that loaded a prefix"},
    {"loads_declined", "Requests that computed a stored prefix, which was expected to be faster"},
    {"loads_unasked", "Requests that computed for that reason without asking the store"},
    {"loads_abandoned", "Loads cut off because they became slower than computing"},
    {"load_estimated_us", "Microseconds that loads with an estimate were expected to take"},
    {"load_took_us", "Microseconds that loads with an estimate took"},
    {"restore_failures", "Prefixes whose memory was used again before they were restored"},
    {"pool_hits", "Prefixes found in the worker's pool"},
    {"pool_inserts", "Prefixes put into the worker's pool"},
    {"pool_too_large", "Prefixes larger than the pool"},
    {"publishes", "Publishes handed to the cache"},
    {"publishes_stored", "Publishes that stored a boundary"},
    {"publishes_dropped", "Publishes dropped: too many wait, or the worker stops"},
    {"publish_bytes", "Bytes handed to the cache"},
    {"cache_write_tokens", "Prompt tokens that the cache lacked and was offered in time to say so"},
    {"staging_skips", "Boundaries not kept because staging-bytes is in use"},
    {"preemptions", "Sequences whose memory was given to an older one, and that wait again"},
    {"recomputed_tokens", "Tokens of preempted sequences that were computed again"},
    {"nondeterminism", "Prefixes computed twice with different bits (alert)"},
    {"audits", "Restored prefixes computed again and compared"},
    {"audits_skipped", "Audits that did not come about: too many wait, or the prefix is gone"},
    {"audits_wrong", "Audits that found other bytes than the cache gave (alert)"},
    {"audits_quarantined", "Wrong prefixes that the cache took out"},
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
