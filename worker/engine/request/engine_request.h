// EngineRequest: a request to the engine, and its callbacks.
//
// Plain values. Engine describes when callbacks are called.
#ifndef HEARTH_WORKER_ENGINE_REQUEST_ENGINE_REQUEST_H_
#define HEARTH_WORKER_ENGINE_REQUEST_ENGINE_REQUEST_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"
#include "worker/model/kv_choice.h"
#include "worker/prefix/load_model.h"
#include "worker/prefix/prefix_cache.h"
#include "worker/text/beam_search.h"
#include "worker/text/grammar.h"
#include "worker/text/sampler.h"

namespace hearth {

inline constexpr uint32_t kMaxSamples = 16;

enum class CacheMode { kDefault, kRead, kWrite, kOff };  // kDefault: reads and writes

struct EngineRequest {
  std::vector<int32_t> token_ids;
  std::vector<uint32_t> breakpoints;  // declared by the caller or automatic; strictly increasing
  // Boundaries that the caller wants to be stored, ascending. A boundary below the restored one is
  // published too if its objects were restored or are in the cache. Otherwise only a request that
  // computes up to the boundary can store it.
  std::vector<uint32_t> asked;
  std::string tenant = "default";
  std::string adapter;  // name in EngineOptions::adapters; empty: no adapter
  SamplingParams sampling;
  // Grammar of the answer's text; null: free text. Its new states have accepted the first_draw
  // tokens (ContinueGrammar), so that no engine thread replays these tokens.
  std::shared_ptr<const Grammar> grammar;
  // Tokens drawn before this request; the first token's random number has this index.
  uint64_t first_draw = 0;
  // 0: prefill only. A prefill-only request that writes computes up to the last boundary to save,
  // and nothing if that boundary is cached.
  uint32_t max_new_tokens = 0;
  // Number of answers to the prompt. Each answer occupies a running slot and its own memory; the
  // prompt's memory is shared. Only the first answer can be saved for a next chat turn.
  uint32_t samples = 1;
  // Beam search if beams > 1: temperature 0, one sample, class invariant only. The answer is sent
  // when the search ends, and is not saved for a next chat turn.
  BeamOptions search;
  bool ignore_eos = false;
  bool hash_logits = false;  // hash the logits of every token, not only of the first
  CacheMode cache = CacheMode::kDefault;
  RequestedKv requested_kv;
  KvChoice kv;  // effective KV options; set by Complete
  // Maximum guessed tokens per step, up to kMostSpeculate. If unset, Complete sets
  // EngineOptions::speculate.
  std::optional<uint32_t> speculate;
  Durability durability = Durability::kDefault;
  uint32_t ttl_s = 0;       // TTL of published prefixes; 0: the cache's default
  KeepHint hint;            // retention hint for published prefixes
  std::string request_id;   // for logs of the worker and of the cache
  std::string traceparent;  // trace of the calls to the cache; empty: none
  absl::Time deadline = absl::InfiniteFuture();

  // Whether the request looks for cached prefixes; and whether it saves new restore points.
  bool reads() const { return cache == CacheMode::kDefault || cache == CacheMode::kRead; }
  bool writes() const { return cache == CacheMode::kDefault || cache == CacheMode::kWrite; }
  bool searches() const { return search.beams > 1; }
  // Returns the number of sequences that run at a time. Each needs a running slot.
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
  // SHA-256 of the logits from which the tokens were drawn, in order; includes the last token's
  // logits. Zero unless hash_logits is set.
  Digest logits_sha256{};
  double beam_score = 0;  // score of a beam search's answer
  // The stop string that ended the answer; empty: none. Set by the Generator.
  std::string stop_string = {};
};
struct FinishedInfo {
  FinishReason reason = FinishReason::kLength;  // finish reason of the first sample
  uint32_t generated_tokens = 0;                // tokens sent, sum of all samples
  std::vector<SampleEnd> samples;
  uint32_t computed_tokens = 0;  // prompt tokens computed by the model
  // Sums of all samples: decode steps, guessed tokens, and guessed tokens that were correct.
  uint32_t decode_steps = 0, drafted_tokens = 0, accepted_tokens = 0;
  double queue_ms = 0, fetch_ms = 0, prefill_ms = 0, ttft_ms = 0, total_ms = 0;
  // KV bytes of all samples when they ended. Bytes that samples share count once.
  uint64_t kv_bytes = 0;
  KvChoice kv;
  Exactness exactness = Exactness::kExact;
  Digest first_logits_sha256{};  // zero for prefill-only requests
};

// Makes a snapshot file from KV that it holds. Takes as long as copying the KV. Any thread. May
// outlive the request, but not the engine. kResourceExhausted: the machine is out of memory.
using SnapshotMaker = std::function<absl::StatusOr<std::string>()>;

// A request ends with exactly one call of on_finished or on_error. If the request writes prefixes,
// on_published follows on_finished, even if nothing was published.
struct EngineCallbacks {
  std::function<void(const StartedInfo&)> on_started;
  // Called after each prefill step except the last. Argument: number of prompt tokens restored or
  // computed so far.
  std::function<void(uint32_t)> on_progress;
  // Called with each token. Returns false to end the sample after this token, with reason kStop
  // (the caller found a stop string). Not called for the end token (kEos) or stop token (kStop)
  // that ends a sample.
  std::function<bool(const SampledToken&)> on_token;
  // For beam search: returns whether an answer with these tokens ends at the last of them, because
  // a stop string is complete. Null: there are no stop strings.
  std::function<bool(absl::Span<const int32_t>)> stops;
  std::function<void(const FinishedInfo&)> on_finished;
  std::function<void(const absl::Status&)> on_error;
  std::function<void(const PublishOutcome&)> on_published;
  // For a request that writes prefixes. Argument: number of prompt tokens that the cache did not
  // have. Called when the cache has reported this number, or when the cache cannot report it. May
  // be called twice, always before on_published.
  std::function<void(uint32_t)> on_planned;
  // For a request with prompt_logprobs: the next tokens of the prompt, in order. The prompt's first
  // token has no log probability.
  std::function<void(absl::Span<const SampledToken>)> on_prompt;
  // Called before on_finished, with a maker of a snapshot of the whole prompt. Requires class
  // invariant and a request that generates nothing and does not write prefixes. Null: no snapshot
  // is wanted.
  std::function<void(SnapshotMaker)> on_snapshot;
};

// An adapter of the worker, and the fingerprint of KV computed with it.
struct AdapterInfo {
  std::string name;
  int rank = 0;
  uint64_t bytes = 0;
  Fingerprint fingerprint;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_REQUEST_ENGINE_REQUEST_H_
