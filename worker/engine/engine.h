// Engine: the inference engine: takes prompts as token ids, restores their cached part, computes
// the rest on the canonical schedule, streams tokens, publishes prefixes worth keeping.
//
// One thread steps the model, prefill and decode interleaved fairly: one sequence a step or, in the
// class invariant, all that decode and some of what prefills; fetches and publishes run on their
// own threads. The same request gives the same first logits with the cache as without (exact
// class), or, in the class invariant, whatever it came with.
//
// Thread safety: all methods may be called from any thread. Callbacks come from the engine's
// threads, never under a lock, in order for one request; they must not block.
// Ownership: the engine owns the model; the PrefixCache must outlive it.
#ifndef HEARTH_WORKER_ENGINE_ENGINE_H_
#define HEARTH_WORKER_ENGINE_ENGINE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"
#include "worker/engine/request/engine_options.h"
#include "worker/engine/request/engine_request.h"
#include "worker/model/model_config.h"
#include "worker/prefix/load_model.h"
#include "worker/prefix/prefix_cache.h"

namespace hearth {

// Cancels when Cancel() is called. The place is free within one step; in the classes exact and
// portable, whose steps hold one sequence, within one step of each running sequence. Safe after the
// end.
class EngineRequestHandle {
 public:
  virtual ~EngineRequestHandle() = default;
  virtual void Cancel() = 0;
};

struct EngineStats {
  uint32_t running = 0, queued = 0;
  uint32_t places = 0;  // the most that may run
  uint64_t pool_bytes = 0, staged_bytes = 0;
  uint64_t pool_limit_bytes = 0, staging_limit_bytes = 0;
  uint64_t kv_budget_bytes = 0, kv_used_bytes = 0;  // class invariant; else 0
  uint64_t kv_blocks_taken = 0;                     // likewise: so far
  std::map<std::string, uint64_t> counters;         // names in engine_counters.h
};

class Engine {
 public:
  // Loads the model, computes the numeric canary (exact class). The error names file, tensor or
  // field.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options);
  virtual ~Engine() = default;  // cancels what runs

  // The cache is built from the fingerprint, hence set after Create and before Submit. Null: none.
  virtual void SetCache(PrefixCache* cache) = 0;

  // Sets what a request leaves to the worker and the model: how its keys and values are kept, and
  // whether the cache is used for it. Submit does it too; once done it changes nothing.
  // kInvalidArgument names the field.
  virtual absl::Status Complete(EngineRequest* request) const = 0;
  // kInvalidArgument names the field; kResourceExhausted when the queue is full.
  virtual absl::StatusOr<std::shared_ptr<EngineRequestHandle>> Submit(
      EngineRequest request, EngineCallbacks callbacks) = 0;
  // Puts a snapshot file into the worker's pool, for requests of `tenant`. Returns the name of the
  // adapter that its tokens went through, or "". kDataLoss: damaged; kFailedPrecondition names the
  // part that differs; kResourceExhausted: the pool has no place for it.
  virtual absl::StatusOr<std::string> AddSnapshot(const std::string& tenant,
                                                  absl::string_view file) = 0;
  // Refuses new requests, finishes the running ones, then publishes, until `deadline`.
  virtual void Drain(absl::Time deadline) = 0;

  virtual const ModelConfig& config() const = 0;
  virtual const Fingerprint& fingerprint() const = 0;  // of what goes through no adapter
  virtual const std::vector<AdapterInfo>& adapters() const = 0;
  // kInvalidArgument, as Submit gives it, where there is no adapter of this name; empty: none.
  virtual absl::Status CheckAdapter(const std::string& name) const = 0;
  virtual const KvLayout& layout() const = 0;
  virtual std::string device() const = 0;
  virtual std::string dtype() const = 0;
  virtual std::string weights() const = 0;             // "stored", "q8_0", ..., or a dtype
  virtual std::string arithmetic() const = 0;          // "int8/32/1", or a dtype
  virtual std::vector<std::string> notes() const = 0;  // to be logged at start
  // Likewise, as warnings: options without effect.
  virtual std::vector<std::string> warnings() const = 0;
  // A sentence; empty in the class invariant.
  virtual std::string why_not_invariant() const = 0;
  virtual EngineStats Stats() const = 0;
  // Counts tokens of a prompt that its caller was told to have been written to the cache.
  virtual void NoteCacheWrites(uint32_t tokens) = 0;
  // The cost expected now of loading a stored prefix of so many tokens, and of computing it.
  virtual LoadReport EstimateLoad(uint32_t boundary) const = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_ENGINE_H_
