// Engine: the inference engine. For each request (a prompt as token ids), the engine restores the
// longest cached prefix, computes the remaining prompt in fixed steps, streams the generated
// tokens, and publishes prefixes to the cache.
//
// One thread runs the model. In class invariant, a step has one token of every decoding sequence
// and some prompt tokens; in the other classes, a step has a single sequence. Fetches and publishes
// run on other threads. A request's first logits have the same bits with and without the cache
// (class exact), and also the same bits whatever other requests are in the batch (class invariant).
//
// Thread safety: all methods may be called from any thread. Callbacks run on the engine's threads,
// without locks, and for each request in order. Callbacks must not block.
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

// Cancel() ends the request. In class invariant, the request's slot is free after at most one step;
// in the other classes, after at most one step of each running sequence. After the request has
// ended, Cancel() does nothing.
class EngineRequestHandle {
 public:
  virtual ~EngineRequestHandle() = default;
  virtual void Cancel() = 0;
};

struct EngineStats {
  uint32_t running = 0, queued = 0;
  uint32_t places = 0;  // upper limit of `running`
  uint64_t pool_bytes = 0, staged_bytes = 0;
  uint64_t pool_limit_bytes = 0, staging_limit_bytes = 0;
  uint64_t kv_budget_bytes = 0, kv_used_bytes = 0;  // a budget of 0: unlimited
  uint64_t kv_blocks_taken = 0;  // KV blocks allocated since the start; 0 except in class invariant
  std::map<std::string, uint64_t> counters;  // by name; engine_counters.cc lists the names
};

class Engine {
 public:
  // Loads the model and, in class exact, computes the canary (a digest of KV computed on this
  // machine). Errors name the file, tensor or field.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options);
  virtual ~Engine() = default;  // cancels running requests

  // `cache` may be null: the engine then runs without a cache. Call SetCache before the first
  // Submit. (A cache is opened with the engine's fingerprint, so it is made after the engine.)
  virtual void SetCache(PrefixCache* cache) = 0;

  // Fills in the fields that the request leaves unset: the KV strategy and quantization, the number
  // of guessed tokens, and the cache mode. Submit calls it too; calling it twice has no further
  // effect. kInvalidArgument names the field.
  virtual absl::Status Complete(EngineRequest* request) const = 0;
  // Enqueues a request. kInvalidArgument names the wrong field. kResourceExhausted: the queue is
  // full.
  virtual absl::StatusOr<std::shared_ptr<EngineRequestHandle>> Submit(
      EngineRequest request, EngineCallbacks callbacks) = 0;
  // Adds a snapshot file to the worker's pool, for requests of `tenant`. Returns the name of the
  // adapter that computed the snapshot, or "" if no adapter did. kDataLoss: the file is damaged.
  // kFailedPrecondition: the snapshot was made by a different model or configuration; the error
  // names the difference. kResourceExhausted: the pool is too small.
  virtual absl::StatusOr<std::string> AddSnapshot(const std::string& tenant,
                                                  absl::string_view file) = 0;
  // Refuses new requests, then waits until running requests and their publishes have ended, but not
  // longer than `deadline`.
  virtual void Drain(absl::Time deadline) = 0;

  virtual const ModelConfig& config() const = 0;
  virtual const Fingerprint& fingerprint() const = 0;  // fingerprint of the model without adapters
  virtual const std::vector<AdapterInfo>& adapters() const = 0;
  // kInvalidArgument: no adapter has this name. The empty name is valid and means no adapter.
  virtual absl::Status CheckAdapter(const std::string& name) const = 0;
  virtual const KvLayout& layout() const = 0;
  virtual std::string device() const = 0;
  virtual std::string dtype() const = 0;
  // Form of the weights: "stored", "q8_0", ..., or a dtype.
  virtual std::string weights() const = 0;
  // Arithmetic of matrix products: "int8/32/1", "bf16/16/2", or a dtype.
  virtual std::string arithmetic() const = 0;
  virtual std::vector<std::string> notes() const = 0;  // information to log at start
  // Warnings to log at start, such as options that have no effect.
  virtual std::vector<std::string> warnings() const = 0;
  // Returns the reason, as a sentence, why the engine does not use class invariant; "" if it does.
  virtual std::string why_not_invariant() const = 0;
  virtual EngineStats Stats() const = 0;
  // Adds `tokens` to the counter cache_write_tokens: prompt tokens reported to callers as new to
  // the cache.
  virtual void NoteCacheWrites(uint32_t tokens) = 0;
  // Estimates the time to load a stored prefix of `boundary` tokens, and the time to compute the
  // same prefix.
  virtual LoadReport EstimateLoad(uint32_t boundary) const = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_ENGINE_H_
