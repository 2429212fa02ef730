// Engine: the inference engine. For each request (a prompt as token ids) it restores the cached
// prefix, computes the rest on the canonical schedule, streams the generated tokens, and publishes
// prefixes worth keeping.
//
// One thread runs the model and shares its steps fairly between prefill and decode. In the class
// invariant a step holds all decoding sequences and some prefill tokens; in the other classes it
// holds one sequence. Fetches and publishes run on their own threads. A request has the same first
// logits with the cache as without it (class exact), and also with any other requests in its batch
// (class invariant).
//
// Thread safety: all methods may be called from any thread. Callbacks come from the engine's
// threads, never under a lock, and in order within a request. They must not block.
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

// Cancel() ends the request. Its place is free within one step (invariant), or within one step of
// each running sequence (exact and portable). Cancel() after the request's end has no effect.
class EngineRequestHandle {
 public:
  virtual ~EngineRequestHandle() = default;
  virtual void Cancel() = 0;
};

struct EngineStats {
  uint32_t running = 0, queued = 0;
  uint32_t places = 0;  // maximum of `running`
  uint64_t pool_bytes = 0, staged_bytes = 0;
  uint64_t pool_limit_bytes = 0, staging_limit_bytes = 0;
  uint64_t kv_budget_bytes = 0, kv_used_bytes = 0;  // in bytes; 0 without a budget
  uint64_t kv_blocks_taken = 0;                     // total since the start; class invariant
  std::map<std::string, uint64_t> counters;         // names in engine_counters.h
};

class Engine {
 public:
  // Loads the model and computes the numeric canary (class exact). Errors name the file, tensor or
  // field.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options);
  virtual ~Engine() = default;  // cancels running requests

  // Null: no cache. The cache needs the fingerprint, so call SetCache after Create and before
  // Submit.
  virtual void SetCache(PrefixCache* cache) = 0;

  // Fills in the fields that the request leaves unset: how its keys and values are kept, and
  // whether it uses the cache. Idempotent; Submit calls it. kInvalidArgument names the field.
  virtual absl::Status Complete(EngineRequest* request) const = 0;
  // Enqueues a request. kInvalidArgument names the field; kResourceExhausted: the queue is full.
  virtual absl::StatusOr<std::shared_ptr<EngineRequestHandle>> Submit(
      EngineRequest request, EngineCallbacks callbacks) = 0;
  // Adds a snapshot file to the worker's pool, for requests of `tenant`. Returns the name of the
  // adapter that computed the snapshot, or "" for none. kDataLoss: the file is damaged.
  // kFailedPrecondition names the part that differs. kResourceExhausted: the pool is too small.
  virtual absl::StatusOr<std::string> AddSnapshot(const std::string& tenant,
                                                  absl::string_view file) = 0;
  // Refuses new requests, finishes running requests and their publishes, until `deadline`.
  virtual void Drain(absl::Time deadline) = 0;

  virtual const ModelConfig& config() const = 0;
  virtual const Fingerprint& fingerprint() const = 0;  // of the model without an adapter
  virtual const std::vector<AdapterInfo>& adapters() const = 0;
  // kInvalidArgument if no adapter has this name. An empty name is valid: no adapter.
  virtual absl::Status CheckAdapter(const std::string& name) const = 0;
  virtual const KvLayout& layout() const = 0;
  virtual std::string device() const = 0;
  virtual std::string dtype() const = 0;
  virtual std::string weights() const = 0;             // "stored", "q8_0", ..., or a dtype
  virtual std::string arithmetic() const = 0;          // "int8/32/1", or a dtype
  virtual std::vector<std::string> notes() const = 0;  // for the log at start
  // Options without effect, for the log at start.
  virtual std::vector<std::string> warnings() const = 0;
  // A sentence that gives the reason; empty in the class invariant.
  virtual std::string why_not_invariant() const = 0;
  virtual EngineStats Stats() const = 0;
  // Counts prompt tokens that were reported to a caller as written to the cache.
  virtual void NoteCacheWrites(uint32_t tokens) = 0;
  // Estimates the time to load a stored prefix of `boundary` tokens, and the time to compute it.
  virtual LoadReport EstimateLoad(uint32_t boundary) const = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_ENGINE_H_
