// EngineCounters: the engine's running totals, by name.
//
// Thread safety: all methods from any thread. Invariant: every counter is in a snapshot
// from the start, so that a metric reads 0 before its first event.
#ifndef HEARTH_WORKER_ENGINE_ENGINE_COUNTERS_H_
#define HEARTH_WORKER_ENGINE_ENGINE_COUNTERS_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <string>

namespace hearth {

enum class EngineCounter {
  kRequests,         // accepted by Submit
  kRequestsRefused,  // queue full or draining
  kRequestsFinished,
  kRequestsCancelled,
  kRequestsExpired,  // deadline passed
  kRequestsFailed,   // an internal error
  kPromptTokens,     // of requests whose lookup has ended
  kComputedTokens,   // prompt tokens that went through the model
  kGeneratedTokens,
  kCachedTokensWorker,  // prompt tokens restored, by the slowest tier used
  kCachedTokensGpu,
  kCachedTokensHost,
  kCachedTokensDisk,
  kCachedTokensShared,
  kPrefillSteps,
  kDecodeSteps,     // as those: of one sequence
  kDraftedTokens,   // guessed ones that decode steps computed beside their own
  kAcceptedTokens,  // of these: what was decoded
  kSteps,           // passes through the model, of one or several sequences
  kStepRows,        // tokens in them, prefilled and decoded
  kFetches,
  kFetchMisses,
  kFetchTimeouts,    // later than the fetch budget
  kFetchesRefused,   // an outcome that does not fit its request
  kLoads,            // fetches that were restored, while loading is chosen by its cost
  kLoadsDeclined,    // what was stored was computed: loading would have taken longer
  kLoadsUnasked,     // of these: the store was not even asked
  kLoadsAbandoned,   // loads that became slower than computing, and were cut off
  kLoadEstimatedUs,  // of the loads with an estimate: microseconds that were expected
  kLoadTookUs,       // and those that they took
  kRestoreFailures,  // what was lent was used again too early: the pool's point, or computed
  kLentNotKept,      // likewise before the pool had its copy
  kLentChanged,      // of these: while the loan held, so that a wrong answer may have been given
  kPoolHits,
  kPoolInserts,
  kPoolTooLarge,      // restore points that are larger than the pool, and not kept in it
  kPublishes,         // handed to the cache
  kPublishesStored,   // of these: at least one boundary is stored now
  kPublishesDropped,  // too many waiting, or the engine stopped
  kPublishBytes,
  kStagingSkips,       // kept boundaries skipped because staging was full
  kNondeterminism,     // a prefix computed twice with different bits
  kAudits,             // restored prefixes computed again and compared
  kAuditsSkipped,      // taken for one that did not come about: too many wait, or it is gone
  kAuditsWrong,        // of the audits: the cache had given other bytes
  kAuditsQuarantined,  // of these: the cache took them out
  kCount
};

const char* EngineCounterName(EngineCounter counter);

class EngineCounters {
 public:
  void Add(EngineCounter counter, uint64_t n = 1) {
    values_[static_cast<size_t>(counter)].fetch_add(n, std::memory_order_relaxed);
  }
  uint64_t Get(EngineCounter counter) const {
    return values_[static_cast<size_t>(counter)].load(std::memory_order_relaxed);
  }
  std::map<std::string, uint64_t> Snapshot() const;

 private:
  std::array<std::atomic<uint64_t>, static_cast<size_t>(EngineCounter::kCount)> values_{};
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_ENGINE_COUNTERS_H_
