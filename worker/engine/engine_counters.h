// EngineCounters: the engine's running totals. engine_counters.cc has the name and description of
// each counter.
//
// Thread safety: all methods may be called from any thread. Invariant: Snapshot() has every counter
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
  kRequests,
  kRequestsRefused,
  kRequestsFinished,
  kRequestsCancelled,
  kRequestsExpired,
  kRequestsFailed,
  kPromptTokens,
  kComputedTokens,
  kGeneratedTokens,
  kCachedTokensWorker,
  kCachedTokensGpu,
  kCachedTokensHost,
  kCachedTokensDisk,
  kCachedTokensShared,
  kUnaskedTokens,
  kUnaskedHeldTokens,
  kPrefillSteps,
  kDecodeSteps,
  kDraftedTokens,
  kAcceptedTokens,
  kForcedTokens,
  kGrammarMasks,
  kGrammarMaskUs,
  kGrammarLimits,
  kSteps,
  kStepRows,
  kFetches,
  kFetchMisses,
  kFetchTimeouts,
  kFetchesRefused,
  kLoads,
  kLoadsDeclined,
  kLoadsUnasked,
  kLoadsAbandoned,
  kLoadEstimatedUs,
  kLoadActualUs,
  kRestoreFailures,
  kPoolHits,
  kPoolInserts,
  kPoolTooLarge,
  kPublishes,
  kPublishesStored,
  kPublishesDropped,
  kPublishBytes,
  kCacheWriteTokens,
  kStagingSkips,
  kPreemptions,
  kKvOffloads,
  kRecomputedTokens,
  kNondeterminism,
  kAudits,
  kAuditsSkipped,
  kAuditsWrong,
  kAuditsQuarantined,
  kCount
};

const char* EngineCounterName(EngineCounter counter);
// Returns the description of the counter `name`, or "" if no counter has this name.
std::string EngineCounterMeaning(const std::string& name);

class EngineCounters {
 public:
  void Add(EngineCounter counter, uint64_t n = 1) {
    values_[static_cast<size_t>(counter)].fetch_add(n, std::memory_order_relaxed);
  }
  std::map<std::string, uint64_t> Snapshot() const;

 private:
  std::array<std::atomic<uint64_t>, static_cast<size_t>(EngineCounter::kCount)> values_{};
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_ENGINE_COUNTERS_H_
