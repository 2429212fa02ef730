// EngineOptions: what an engine is made with, as the worker's flags give it.
//
// Plain values. Validate names the field, its value and the limits.
#ifndef HEARTH_WORKER_ENGINE_REQUEST_ENGINE_OPTIONS_H_
#define HEARTH_WORKER_ENGINE_REQUEST_ENGINE_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "proto/kv_layout.h"
#include "worker/engine/runner/exactness_choice.h"
#include "worker/model/kv_choice.h"
#include "worker/prefix/load_model.h"
#include "worker/prefix/prefix_cache.h"

namespace hearth {

// Memory for keys and values, in bytes.
struct MemoryLimits {
  // Of running sequences. 0: by the machine's memory in the class invariant, by a device's where it
  // computes; else no budget.
  uint64_t kv_bytes = 0;
  uint64_t kv_offload_bytes = 0;  // without effect: offloaded requests are kept in kv_bytes
  uint64_t pool_bytes = uint64_t{512} << 20;  // restored prefixes kept in the worker; 0: none
  uint64_t staging_bytes = 0;  // tails waiting to be published; 0: two of the model's, or 1 GiB
};

// How the engine uses its PrefixCache, and how long it waits for it.
struct CacheTerms {
  absl::Duration fetch_budget = absl::Seconds(2);  // later than this the worker computes
  // Whether stored prefixes are loaded: where that is faster than computing, or in any case.
  LoadChoice load = LoadChoice::kAuto;
  std::function<absl::Time()> load_clock = LoadModel::SteadyNow;  // what loads and steps took by
  absl::Duration publish_timeout = absl::Seconds(30);
  // Of several workers that miss a prefix one computes it. The others wait at most `wait` beside
  // the fetch budget, or compute too where that is zero; they wait at most `lease` for this worker.
  // Fewer than `min_tokens` are computed without asking.
  LeaseTerms compute{absl::Seconds(10), absl::Seconds(10), 256};
  // The share of restored prefixes that an idle engine computes again and compares; wrong ones are
  // quarantined. In [0, 1]; 0: none.
  double audit_rate = 0;

  absl::Status Validate() const;
};

// With the token that is due these are two times the eight rows that the kernels take at once.
inline constexpr uint32_t kDefaultSpeculate = 15;
inline constexpr uint32_t kMostSpeculate = 15;

struct EngineOptions {
  // Parameters that affect behaviour.
  std::string model_dir;
  std::string device = "cpu";
  std::string dtype = "auto";  // auto, float32, bfloat16
  uint32_t chunk_tokens = kDefaultChunkTokens;
  ExactnessChoice exactness = ExactnessChoice::kAuto;
  WeightsChoice weights = WeightsChoice::kAuto;
  ArithmeticChoice arithmetic = ArithmeticChoice::kAuto;  // class invariant
  KvDtypeChoice kv_dtype = KvDtypeChoice::kAuto;          // class invariant
  RequestedKv kv;  // of requests that say nothing; empty: as the model says
  // Low-rank adapters, by the name that requests choose them by: folders as PEFT saves one. Class
  // invariant.
  std::map<std::string, std::string> adapters;
  // Folder of remembered weight digests. Empty: computed at each start.
  std::string digest_cache_dir;

  // Parameters that affect performance.
  int threads = 0;  // 0: the machine's cores
  MemoryLimits memory;
  uint32_t max_running = 0;  // sequences with a KV cache; 0: as PlacesOf says
  // Rows of a step with several sequences while one decodes: each decoded token waits for them. 0:
  // a chunk.
  uint32_t step_tokens = 0;
  // Tokens that a sequence guesses from its own text, at most, for a step to verify, of requests
  // that say nothing; 0: none. Class invariant; no answer depends on it.
  uint32_t speculate = kDefaultSpeculate;
  uint32_t max_queued = 64;  // beyond: RESOURCE_EXHAUSTED
  CacheTerms cache;

  absl::Status Validate() const;
  // The given choices that only the class invariant can have: flag and value.
  std::vector<std::pair<std::string, std::string>> ChoicesOfInvariant() const;
  // The given flags that only the class invariant reads, by name: "--step-tokens".
  std::string FlagsOfInvariant() const;
  // max_running, or its default: twice as many where memory is set aside for each and a step has
  // all that decode.
  uint32_t PlacesOf(Exactness exactness) const {
    return max_running > 0 ? max_running : exactness == Exactness::kInvariant ? 16 : 8;
  }
};

// All may decode in one step, whose logits take a megabyte each.
inline constexpr uint32_t kMaxRunning = 512;
inline constexpr uint32_t kMinSharedStepTokens = 16, kMaxSharedStepTokens = 512;

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_REQUEST_ENGINE_OPTIONS_H_
