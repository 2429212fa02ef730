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
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"
#include "worker/engine/draft/draft_length.h"
#include "worker/engine/runner/exactness_choice.h"
#include "worker/model/kv_choice.h"
#include "worker/model/model_config.h"
#include "worker/prefix/load_trial.h"
#include "worker/prefix/prefix_cache.h"
#include "worker/text/beam_search.h"
#include "worker/text/sampler.h"

namespace hearth {

// Memory for keys and values, in bytes.
struct MemoryLimits {
  uint64_t kv_bytes = 0;  // of running sequences, class invariant; 0: by the machine's memory
  uint64_t kv_offload_bytes = 0;              // the second arena of those offloaded; likewise
  uint64_t pool_bytes = uint64_t{512} << 20;  // restored prefixes kept in the worker; 0: none
  uint64_t staging_bytes = 0;  // tails waiting to be published; 0: two of the model's, or 1 GiB
};

// How the engine uses its PrefixCache, and how long it waits for it.
struct CacheTerms {
  absl::Duration fetch_budget = absl::Seconds(2);  // later than this the worker computes
  // Whether stored prefixes are loaded: where that is faster than computing, or in any case.
  LoadChoice load = LoadChoice::kAuto;
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

struct EngineOptions {
  // Parameters that affect behaviour.
  std::string model_dir;
  std::string device = "cpu";
  std::string dtype = "auto";  // auto, float32, bfloat16
  uint32_t chunk_tokens = kDefaultChunkTokens;
  ExactnessChoice exactness = ExactnessChoice::kAuto;
  WeightsChoice weights = WeightsChoice::kAuto;
  KvWish kv;  // of requests that say nothing; empty: as the model says
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
  // The given flags that only the class invariant reads, by name: "--kv-bytes".
  std::string FlagsOfInvariant() const;
  // max_running, or its default: twice as many where memory is set aside for each and a step has
  // all that decode.
  uint32_t PlacesOf(Exactness exactness) const {
    return max_running > 0 ? max_running : exactness == Exactness::kInvariant ? 16 : 8;
  }
};

inline constexpr uint32_t kMaxSamples = 16;
// All may decode in one step, whose logits take a megabyte each.
inline constexpr uint32_t kMaxRunning = 512;
inline constexpr uint32_t kMinSharedStepTokens = 16, kMaxSharedStepTokens = 512;

enum class CacheMode { kDefault, kRead, kWrite, kOff };  // kDefault reads and writes
enum class FinishReason { kLength, kEos, kStop };

struct EngineRequest {
  std::vector<int32_t> token_ids;
  std::vector<uint32_t> breakpoints;  // declared and automatic, strictly increasing
  // Boundaries to be kept below a restored one too, ascending: as far as its objects have what they
  // need, or the cache does; the rest is to be computed, by a request that ends there.
  std::vector<uint32_t> asked;
  std::string tenant = "default";
  std::string adapter;  // one of EngineOptions::adapters; empty: none
  SamplingParams sampling;
  uint64_t first_draw = 0;  // number of the first token's draw: of those drawn before in its answer
  // 0: prefill only. When it may write, it computes no further than the last boundary worth
  // keeping, and nothing at all when that is cached already.
  uint32_t max_new_tokens = 0;
  // Number of answers to the prompt, each with a place and memory of its own; the prompt's memory
  // is shared. Only the first is kept for a next turn.
  uint32_t samples = 1;
  // With several beams its one answer is known at its end alone, and is not kept for a next turn.
  // Class invariant; greedy, with one sample.
  BeamOptions search;
  bool ignore_eos = false;
  bool hash_logits = false;  // of every token, not of the first alone
  CacheMode cache = CacheMode::kDefault;
  KvWish kv_wish;
  KvChoice kv;  // Complete sets it
  // As EngineOptions::speculate, up to DraftLength::kMost; Complete sets it where it is not given.
  std::optional<uint32_t> speculate;
  Durability durability = Durability::kDefault;
  uint32_t ttl_s = 0;      // of what it publishes; 0: as the cache has it
  std::string request_id;  // for logs, the cache's too
  absl::Time deadline = absl::InfiniteFuture();

  bool searches() const { return search.beams > 1; }
  // Sequences that it has at a time, its places.
  uint32_t sequences() const { return searches() ? search.beams : samples; }
};

struct StartedInfo {
  uint32_t prompt_tokens = 0;
  uint32_t cached_tokens = 0;
  uint32_t matched_tokens = 0;
  Tier source_tier = Tier::kNone;
  LoadReport load;
};
struct SampleEnd {
  FinishReason reason = FinishReason::kLength;
  uint32_t generated_tokens = 0;
  // Digest of all logits that tokens were drawn from, in order, the last token's included; zero
  // unless asked for.
  Digest logits_sha256{};
  double beam_score = 0;  // of the answer that a search found
};
struct FinishedInfo {
  FinishReason reason = FinishReason::kLength;  // of the first sample
  uint32_t generated_tokens = 0;                // those passed to on_token, of all samples
  std::vector<SampleEnd> samples;
  uint32_t computed_tokens = 0;  // prompt tokens that went through the model
  // Of all samples: steps that decoded, guessed tokens in them, and how many of these were right.
  uint32_t decode_steps = 0, drafted_tokens = 0, accepted_tokens = 0;
  double queue_ms = 0, fetch_ms = 0, prefill_ms = 0, ttft_ms = 0, total_ms = 0;
  // Bytes of keys and values held at its end; those that samples share count once.
  uint64_t kv_bytes = 0;
  KvChoice kv;
  Exactness exactness = Exactness::kExact;
  Digest first_logits_sha256{};  // zero for prefill-only requests
};

// Makes a snapshot file of keys and values that it holds; takes as long as copying them does. Any
// thread; may outlive the engine's request, not the engine. kResourceExhausted: there is no memory;
// kAborted: what the store had lent is gone.
using SnapshotMaker = std::function<absl::StatusOr<std::string>()>;

// Exactly one of on_finished / on_error ends a request; on_published follows on_finished when the
// request may write (also when nothing needed publishing: boundaries then name what is stored).
struct EngineCallbacks {
  std::function<void(const StartedInfo&)> on_started;
  // After each step of the prompt but its last: how many of its tokens are restored or computed.
  std::function<void(uint32_t)> on_progress;
  // Returns false to end the token's sample now with kStop (a stop string was seen). The token that
  // ends a sample with kEos is not passed on.
  std::function<bool(const SampledToken&)> on_token;
  // Of a request with several beams: whether an answer of these tokens ends with the last of them
  // (a stop string is complete). Null: none does.
  std::function<bool(absl::Span<const int32_t>)> stops;
  std::function<void(const FinishedInfo&)> on_finished;
  std::function<void(const absl::Status&)> on_error;
  std::function<void(const PublishOutcome&)> on_published;
  // Before on_finished: keys and values of the whole prompt, for a request that generates nothing
  // and does not write, in the class invariant; null: not wanted.
  std::function<void(SnapshotMaker)> on_snapshot;
};

// Cancels when Cancel() is called; the place is free within one step. Safe after the end.
class EngineRequestHandle {
 public:
  virtual ~EngineRequestHandle() = default;
  virtual void Cancel() = 0;
};

// An adapter that requests may choose, and what its keys and values are known by.
struct AdapterInfo {
  std::string name;
  int rank = 0;
  uint64_t bytes = 0;
  Fingerprint fingerprint;
};

struct EngineStats {
  uint32_t running = 0, queued = 0;
  uint32_t places = 0;  // the most that may run
  uint64_t pool_bytes = 0, staged_bytes = 0;
  uint64_t pool_limit_bytes = 0, staging_limit_bytes = 0;
  uint64_t kv_budget_bytes = 0, kv_used_bytes = 0;                  // class invariant; else 0
  uint64_t kv_offload_budget_bytes = 0, kv_offload_used_bytes = 0;  // of the second arena
  uint64_t kv_blocks_taken = 0;                                     // likewise: so far
  std::map<std::string, uint64_t> counters;                         // names in engine_counters.h
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
  virtual std::string weights() const = 0;             // "stored", "int8", or a dtype
  virtual std::vector<std::string> notes() const = 0;  // to be logged at start
  // Likewise, as warnings: options without effect.
  virtual std::vector<std::string> warnings() const = 0;
  // A sentence; empty in the class invariant.
  virtual std::string why_not_invariant() const = 0;
  virtual EngineStats Stats() const = 0;
  // The cost expected now of loading a stored prefix of so many tokens, and of computing it.
  virtual LoadReport EstimateLoad(uint32_t boundary) const = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_ENGINE_H_
