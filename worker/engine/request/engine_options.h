// EngineOptions: the engine's configuration, as given by the worker's flags.
//
// Plain values. Validate() names the field, its value and the limits.
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

// Memory limits, in bytes.
struct MemoryLimits {
  // Keys and values of running sequences. 0: derived from the machine's or device's memory (class
  // invariant, or on a device); else unlimited.
  uint64_t kv_bytes = 0;
  uint64_t kv_offload_bytes = 0;              // no effect: offloaded requests use kv_bytes
  uint64_t pool_bytes = uint64_t{512} << 20;  // restore points kept in the worker; 0: none
  uint64_t staging_bytes = 0;  // tails waiting to be published; 0: 2 of the model's, at least 1 GiB
};

// How the engine uses its PrefixCache, and its timeouts.
struct CacheTerms {
  absl::Duration fetch_budget = absl::Seconds(2);  // then the worker computes
  // Whether stored prefixes are loaded: if faster than computing, always, or never.
  LoadChoice load = LoadChoice::kAuto;
  std::function<absl::Time()> load_clock = LoadModel::SteadyNow;  // clock for measured durations
  absl::Duration publish_timeout = absl::Seconds(30);
  // If several workers miss a prefix, one computes it under a lease. The others wait at most `wait`
  // in addition to the fetch budget; if `wait` is 0, they compute too. They wait at most `lease`
  // for this worker. A gain of fewer than `min_tokens` tokens is computed without a lease.
  LeaseTerms compute{absl::Seconds(10), absl::Seconds(10), 256};
  // Share of restored prefixes that the idle engine recomputes and compares; wrong prefixes are
  // quarantined. In [0, 1]; 0: none.
  double audit_rate = 0;

  absl::Status Validate() const;
};

// With the decoded token this makes 16 rows, twice the 8 rows that the kernels compute at once.
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
  RequestedKv kv;  // default of requests; empty: the model's default
  // Low-rank adapters: name to folder, as PEFT saves one. Requests choose an adapter by name. Class
  // invariant.
  std::map<std::string, std::string> adapters;
  // Folder that caches digests of weights. Empty: digests are computed at each start.
  std::string digest_cache_dir;

  // Parameters that affect performance.
  int threads = 0;  // 0: number of cores
  MemoryLimits memory;
  uint32_t max_running = 0;  // sequences with a KV cache; 0: see PlacesOf
  // Maximum rows of a step in which a sequence decodes: each decoded token waits for them. 0: a
  // chunk.
  uint32_t step_tokens = 0;
  // Default of requests: maximum tokens that a sequence guesses from its own text for a step to
  // verify; 0: none. Class invariant; does not change answers.
  uint32_t speculate = kDefaultSpeculate;
  uint32_t max_queued = 64;  // more are refused with RESOURCE_EXHAUSTED
  CacheTerms cache;

  absl::Status Validate() const;
  // Returns the explicit options that only the class invariant supports, as (flag, value).
  std::vector<std::pair<std::string, std::string>> ChoicesOfInvariant() const;
  // Returns the explicit flags that only the class invariant uses, such as "--step-tokens".
  std::string FlagsOfInvariant() const;
  // Returns max_running or its default: 16 in the class invariant, whose steps batch all decoding
  // sequences, else 8.
  uint32_t PlacesOf(Exactness exactness) const {
    return max_running > 0 ? max_running : exactness == Exactness::kInvariant ? 16 : 8;
  }
};

// All sequences may decode in one step, and each has about 1 MB of logits.
inline constexpr uint32_t kMaxRunning = 512;
inline constexpr uint32_t kMinSharedStepTokens = 16, kMaxSharedStepTokens = 512;

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_REQUEST_ENGINE_OPTIONS_H_
