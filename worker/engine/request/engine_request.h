// EngineRequest: one request to an engine, and what is called back of it.
//
// Plain values; callbacks as Engine says.
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
  RequestedKv requested_kv;
  KvChoice kv;  // Complete sets it
  // As EngineOptions::speculate, up to kMostSpeculate; Complete sets it where it is not given.
  std::optional<uint32_t> speculate;
  Durability durability = Durability::kDefault;
  uint32_t ttl_s = 0;      // of what it publishes; 0: as the cache has it
  KeepHint hint;           // likewise
  std::string request_id;  // for logs, the cache's too
  absl::Time deadline = absl::InfiniteFuture();

  // Whether prefixes are looked up, and whether they are kept.
  bool reads() const { return cache == CacheMode::kDefault || cache == CacheMode::kRead; }
  bool writes() const { return cache == CacheMode::kDefault || cache == CacheMode::kWrite; }
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
// thread; may outlive the engine's request, not the engine. kResourceExhausted: there is no memory.
using SnapshotMaker = std::function<absl::StatusOr<std::string>()>;

// Exactly one of on_finished / on_error ends a request; on_published follows on_finished when the
// request may write (also when nothing needed publishing: boundaries then name what is stored).
struct EngineCallbacks {
  std::function<void(const StartedInfo&)> on_started;
  // After each step of the prompt but its last: how many of its tokens are restored or computed.
  std::function<void(uint32_t)> on_progress;
  // Returns false to end the token's sample now with kStop (a stop string was seen). The token that
  // ends a sample with kEos, or is one of the rules' stop_ids (kStop), is not passed on.
  std::function<bool(const SampledToken&)> on_token;
  // Of a request with several beams: whether an answer of these tokens ends with the last of them
  // (a stop string is complete). Null: none does.
  std::function<bool(absl::Span<const int32_t>)> stops;
  std::function<void(const FinishedInfo&)> on_finished;
  std::function<void(const absl::Status&)> on_error;
  std::function<void(const PublishOutcome&)> on_published;
  // Of a request that writes, once the cache has said what it lacks of the prompt, or cannot be
  // asked: how many of the prompt's tokens that is. May come twice, before on_published.
  std::function<void(uint32_t)> on_planned;
  // Of a request for prompt_logprobs: the prompt's next tokens, in order. The first of all has no
  // logprob.
  std::function<void(absl::Span<const SampledToken>)> on_prompt;
  // Before on_finished: keys and values of the whole prompt, for a request that generates nothing
  // and does not write, in the class invariant; null: not wanted.
  std::function<void(SnapshotMaker)> on_snapshot;
};

// An adapter that requests may choose, and what its keys and values are known by.
struct AdapterInfo {
  std::string name;
  int rank = 0;
  uint64_t bytes = 0;
  Fingerprint fingerprint;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_REQUEST_ENGINE_REQUEST_H_
