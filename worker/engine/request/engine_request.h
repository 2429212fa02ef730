// EngineRequest: a request to the engine, and its callbacks.
//
// Plain values. Callbacks: see Engine.
#ifndef HEARTH_WORKER_ENGINE_REQUEST_ENGINE_REQUEST_H_
#define HEARTH_WORKER_ENGINE_REQUEST_ENGINE_REQUEST_H_

#include <cstdint>
#include <functional>
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
#include "worker/text/sampler.h"

namespace hearth {

inline constexpr uint32_t kMaxSamples = 16;

enum class CacheMode { kDefault, kRead, kWrite, kOff };  // kDefault reads and writes

struct EngineRequest {
  std::vector<int32_t> token_ids;
  std::vector<uint32_t> breakpoints;  // declared and automatic; strictly increasing
  // Boundaries that the caller asked for, ascending. Requested boundaries below the restored one
  // are published too if the restored objects or the cache have their objects; otherwise only a
  // request that computes up to them can keep them.
  std::vector<uint32_t> asked;
  std::string tenant = "default";
  std::string adapter;  // a name of EngineOptions::adapters; empty: none
  SamplingParams sampling;
  uint64_t first_draw = 0;  // draw number of the first token: tokens already drawn
  // 0: prefill only. Such a request, if it writes, computes up to the last boundary worth keeping,
  // and nothing if that is cached.
  uint32_t max_new_tokens = 0;
  // Number of answers to the prompt. Each has its own place and memory; the prompt's memory is
  // shared. Only the first answer is kept for a next turn.
  uint32_t samples = 1;
  // Beam search, if beams > 1: greedy, one sample, class invariant. The answer is sent at its end,
  // and is not kept for a next turn.
  BeamOptions search;
  bool ignore_eos = false;
  bool hash_logits = false;  // of every token, not only the first
  CacheMode cache = CacheMode::kDefault;
  RequestedKv requested_kv;
  KvChoice kv;  // set by Complete
  // As EngineOptions::speculate, up to kMostSpeculate. Complete sets the default.
  std::optional<uint32_t> speculate;
  Durability durability = Durability::kDefault;
  uint32_t ttl_s = 0;      // of published prefixes; 0: the cache's default
  KeepHint hint;           // of published prefixes
  std::string request_id;  // for logs, also the cache's
  absl::Time deadline = absl::InfiniteFuture();

  // Whether the request looks prefixes up, and whether it keeps them.
  bool reads() const { return cache == CacheMode::kDefault || cache == CacheMode::kRead; }
  bool writes() const { return cache == CacheMode::kDefault || cache == CacheMode::kWrite; }
  bool searches() const { return search.beams > 1; }
  // Number of sequences, each with a place.
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
  // Digest of all logits that tokens were drawn from, in order, including the last token's. Zero
  // unless requested.
  Digest logits_sha256{};
  double beam_score = 0;  // score of a search's answer
};
struct FinishedInfo {
  FinishReason reason = FinishReason::kLength;  // of the first sample
  uint32_t generated_tokens = 0;                // tokens sent, of all samples
  std::vector<SampleEnd> samples;
  uint32_t computed_tokens = 0;  // prompt tokens computed by the model
  // Sums of all samples: decode steps, guessed tokens, and guessed tokens that were right.
  uint32_t decode_steps = 0, drafted_tokens = 0, accepted_tokens = 0;
  double queue_ms = 0, fetch_ms = 0, prefill_ms = 0, ttft_ms = 0, total_ms = 0;
  // Bytes of keys and values at the end. Bytes that samples share count once.
  uint64_t kv_bytes = 0;
  KvChoice kv;
  Exactness exactness = Exactness::kExact;
  Digest first_logits_sha256{};  // zero for prefill-only requests
};

// Makes a snapshot file of the keys and values that it holds, which takes as long as copying them.
// Any thread. May outlive the request, but not the engine. kResourceExhausted: out of memory.
using SnapshotMaker = std::function<absl::StatusOr<std::string>()>;

// Exactly one of on_finished and on_error ends a request. If the request writes, on_published
// follows on_finished, even if there was nothing to publish.
struct EngineCallbacks {
  std::function<void(const StartedInfo&)> on_started;
  // After each prefill step except the last: prompt tokens restored or computed so far.
  std::function<void(uint32_t)> on_progress;
  // Returns false to end the sample now with kStop (a stop string was seen). An end token (kEos) or
  // a token of stop_ids (kStop) ends the sample without this call.
  std::function<bool(const SampledToken&)> on_token;
  // For a beam search: returns whether an answer of these tokens ends with its last token (a stop
  // string is complete). Null: no stops.
  std::function<bool(absl::Span<const int32_t>)> stops;
  std::function<void(const FinishedInfo&)> on_finished;
  std::function<void(const absl::Status&)> on_error;
  std::function<void(const PublishOutcome&)> on_published;
  // For a request that writes: the number of prompt tokens that the cache does not have, once the
  // cache has reported them or cannot be asked. May be called twice, before on_published.
  std::function<void(uint32_t)> on_planned;
  // For a request with prompt_logprobs: the prompt's next tokens, in order. The very first token
  // has no logprob.
  std::function<void(absl::Span<const SampledToken>)> on_prompt;
  // Before on_finished: a maker of the whole prompt's snapshot. Only for a request that generates
  // nothing and does not write, in the class invariant. Null: not wanted.
  std::function<void(SnapshotMaker)> on_snapshot;
};

// An adapter of the worker, with the fingerprint of its keys and values.
struct AdapterInfo {
  std::string name;
  int rank = 0;
  uint64_t bytes = 0;
  Fingerprint fingerprint;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_REQUEST_ENGINE_REQUEST_H_
