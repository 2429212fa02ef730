// EngineOptions: the engine's configuration, set by the worker's flags.
//
// Plain values. Errors of Validate() name the field, its value and the allowed range.
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
  // Limit for keys and values of running sequences. 0: chosen from the memory of the machine or
  // device if the class is invariant or the model runs on a device; otherwise unlimited.
  uint64_t kv_bytes = 0;
  // Limit for keys and values in host memory of sequences that run on a device. 0: chosen from the
  // memory of the machine. On the CPU it has no effect.
  uint64_t kv_offload_bytes = 0;
  // Limit for restore points in the worker's memory; 0: keep none.
  uint64_t pool_bytes = uint64_t{512} << 20;
  // Limit for KV copies that wait to be published; 0: twice the model's tail, at least 1 GiB.
  uint64_t staging_bytes = 0;
};

// The engine's use of its PrefixCache, and the time limits of cache calls.
struct CacheTerms {
  absl::Duration fetch_budget = absl::Seconds(2);  // after this wait, the prefix is computed
  // Whether to load stored prefixes: only if faster than computing (kAuto), always, or never.
  LoadChoice load = LoadChoice::kAuto;
  // Clock that measures loads and steps.
  std::function<absl::Time()> load_clock = LoadModel::SteadyNow;
  absl::Duration publish_timeout = absl::Seconds(30);
  // If several workers miss a prefix, one worker computes it under a lease, and the others wait.
  // `wait`: maximum wait of this worker, in addition to the fetch budget; 0: it computes at once.
  // `lease`: maximum time that other workers wait for this one. `min_tokens`: if fewer tokens are
  // missing, the worker computes them without a lease.
  LeaseTerms compute{absl::Seconds(10), absl::Seconds(10), 256};
  // Fraction of restored prefixes that the engine recomputes when idle and compares. Wrong prefixes
  // are quarantined. In [0, 1]; 0: no audits.
  double audit_rate = 0;

  absl::Status Validate() const;
};

// With the decoded token, 15 guessed tokens make 16 rows: twice the 8 rows that the kernels compute
// at once.
inline constexpr uint32_t kDefaultSpeculate = 15;
inline constexpr uint32_t kMostSpeculate = 15;

struct EngineOptions {
  // Options that affect results.
  std::string model_dir;
  std::string device = "cpu";
  std::string dtype = "auto";  // "auto", "float32" or "bfloat16"
  uint32_t chunk_tokens = kDefaultChunkTokens;
  ExactnessChoice exactness = ExactnessChoice::kAuto;
  WeightsChoice weights = WeightsChoice::kAuto;
  ArithmeticChoice arithmetic = ArithmeticChoice::kAuto;  // class invariant only
  KvDtypeChoice kv_dtype = KvDtypeChoice::kAuto;          // class invariant
  RequestedKv kv;  // default for requests; empty: the model's default
  // Low-rank adapters: name -> folder in PEFT's format. A request chooses an adapter by name. Class
  // invariant only.
  std::map<std::string, std::string> adapters;
  // Folder that caches digests of weights. Empty: weights are hashed at each start.
  std::string digest_cache_dir;

  // Options that affect only performance and limits.
  int threads = 0;  // 0: one per core
  MemoryLimits memory;
  uint32_t max_running = 0;  // maximum sequences with a KV cache at a time; 0: default of PlacesOf
  // Maximum rows of a step in which a sequence decodes. Every decoded token waits for all rows of
  // its step. 0: chunk_tokens.
  uint32_t step_tokens = 0;
  // Default for requests: maximum tokens that a sequence guesses from its own text, for the next
  // step to verify; 0: none. Does not change answers. Class invariant only.
  uint32_t speculate = kDefaultSpeculate;
  uint32_t max_queued = 64;  // further requests are refused with RESOURCE_EXHAUSTED
  CacheTerms cache;
  // Receives warnings at run time; called by the engine's thread. May be null.
  std::function<void(const std::string&)> on_warning;
  // Receives the error of the device after its first failure, when the requests of the failed step
  // have ended. All later steps fail: only a new process can use the device again. Called once, by
  // the engine's thread. May be null.
  std::function<void(const std::string& failure)> on_device_failure;

  absl::Status Validate() const;
  // Returns the options set explicitly that only class invariant supports, as (flag, value).
  std::vector<std::pair<std::string, std::string>> ChoicesOfInvariant() const;
  // Returns the flags set explicitly that have an effect only in class invariant, such as
  // "--step-tokens".
  std::string FlagsOfInvariant() const;
  // Returns max_running, or its default if it is 0: 16 in class invariant, whose steps batch all
  // decoding sequences, else 8.
  uint32_t PlacesOf(Exactness exactness) const {
    return max_running > 0 ? max_running : exactness == Exactness::kInvariant ? 16 : 8;
  }
};

// Limit of max_running. All sequences may decode in the same step, and the logits of each take
// about 1 MB.
inline constexpr uint32_t kMaxRunning = 512;
inline constexpr uint32_t kMinSharedStepTokens = 16, kMaxSharedStepTokens = 512;

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_REQUEST_ENGINE_OPTIONS_H_
