// Sequence: one request on its way through the engine, from its place in the queue to its end or to
// its preemption: then another one, with the same id, is the rest of it.
//
// Thread safety: each field says who may touch it.
// Ownership: shared by the engine and, while a fetch runs, by the fetch. The KV goes back to the
// engine's model at the end.
// Invariant: position <= tokens; step_ends[next_step] > position while it prefills.
#ifndef HEARTH_WORKER_ENGINE_SEQUENCE_H_
#define HEARTH_WORKER_ENGINE_SEQUENCE_H_

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/digest.h"
#include "worker/engine/prefix_pool.h"
#include "worker/engine/request/engine_request.h"
#include "worker/engine/scheduler.h"
#include "worker/engine/speculation.h"
#include "worker/engine/staging.h"
#include "worker/model/sequence_kv.h"
#include "worker/text/sampler.h"

namespace hearth {

// Calls on_published after on_finished and the outcomes of all publishes, in any order of these,
// and never for a request that ended with an error. Thread safe.
class PublishedNotice {
 public:
  explicit PublishedNotice(std::function<void(const PublishOutcome&)> callback)
      : callback_(std::move(callback)) {}
  // There will be so many outcomes, reported as one. To be called before the first of them.
  void Expect(int outcomes) ABSL_LOCKS_EXCLUDED(mu_);
  void OnFinished() ABSL_LOCKS_EXCLUDED(mu_);
  void OnOutcome(const PublishOutcome& outcome) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const std::function<void(const PublishOutcome&)> callback_;
  absl::Mutex mu_;
  int awaited_ ABSL_GUARDED_BY(mu_) = 2;  // the end and the outcomes
  PublishOutcome outcome_ ABSL_GUARDED_BY(mu_);
};

// WrittenTokens: the tokens of a prompt that the cache lacked and was offered. Thread safe.
class WrittenTokens {
 public:
  explicit WrittenTokens(size_t tokens) : written_(tokens) {}
  void Add(const std::vector<ObjectId>& lacked) ABSL_LOCKS_EXCLUDED(mu_);
  uint32_t count() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  mutable absl::Mutex mu_;
  std::vector<bool> written_ ABSL_GUARDED_BY(mu_);
  uint32_t count_ ABSL_GUARDED_BY(mu_) = 0;
};

// The note of a publish that had nothing to offer.
inline constexpr char kNothingToKeep[] = "no boundary to keep";

// FetchWait: the engine's wait for the result of a sequence's lookup, until a deadline. Thread
// safe.
class FetchWait {
 public:
  // For the lookup. Waits until `deadline`, or the later one that was set before. False: nobody
  // waits any more.
  bool WaitUntil(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  bool IsAwaited() const ABSL_LOCKS_EXCLUDED(mu_);
  // False: nobody waits any more.
  bool Deliver(FetchOutcome fetched) ABSL_LOCKS_EXCLUDED(mu_);

  bool HasArrived() const ABSL_LOCKS_EXCLUDED(mu_);
  // For the engine. Returns the result once it has come, or an empty one once the deadline has
  // passed, each once. nullopt: it still waits, or there is no lookup.
  std::optional<FetchOutcome> Take(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Time deadline() const ABSL_LOCKS_EXCLUDED(mu_);  // while it waits
  // Nobody waits any more. True: the lookup may still be under way.
  bool GiveUp() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // kNone: before the lookup, and once its result was taken.
  enum class State { kNone, kWaiting, kArrived, kGivenUp };
  mutable absl::Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kNone;
  absl::Time deadline_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  FetchOutcome fetched_ ABSL_GUARDED_BY(mu_);
};

struct BeamGroup;  // beam_driver.cc

// State that the sequences of one request share.
struct RequestState {
  std::atomic<bool> cancelled{false};  // any thread
  // The engine's thread only.
  bool failed = false;  // and the caller was told
  uint32_t unfinished = 1;
  uint64_t own_kv_bytes = 0, shared_kv_bytes = 0;                      // of those that ended
  uint32_t decode_steps = 0, drafted_tokens = 0, accepted_tokens = 0;  // of all together
  std::vector<SampleEnd> ends;
  std::optional<Digest> first_logits;  // of the first token's
  std::shared_ptr<BeamGroup> beams;    // of a search, once its prompt is computed
};

// The restored part of a prompt.
struct RestoredPrefix {
  uint32_t boundary = 0;
  Tier from = Tier::kNone;
  KvObjects objects;  // dropped once prefill has ended
};

// The part of a sequence to be kept, until it is handed to the publisher.
struct KeptPrefix {
  std::unique_ptr<StagedSnapshots> staged;
  bool prompt = false;                  // its part of it is handed over
  std::shared_ptr<ComputeLease> lease;  // as long
  std::shared_ptr<PublishedNotice> published;
  std::shared_ptr<WrittenTokens> written;
};

// The answer that a sequence decodes.
struct GrowingAnswer {
  // `speculate`: tokens to guess at a time.
  explicit GrowingAnswer(uint32_t speculate) : speculation(speculate) {}

  Sampler sampler;
  std::optional<LogitRules> rules;  // once a token was drawn, if there are any
  std::vector<float> logits;
  std::unique_ptr<Sha256Stream> logits_digest;  // of all tokens', if asked for
  int32_t last_token = 0;
  std::vector<int32_t> tokens;  // those generated
  uint32_t generated = 0;
  Speculation speculation;  // on prompt and tokens
};

struct SequenceTimes {
  absl::Time admitted_at, restored_at, prefilled_at, first_token_at;
};

struct Sequence {
  Sequence(SequenceId sequence_id, EngineRequest engine_request, EngineCallbacks engine_callbacks);
  // Another sample, or beam, of a sequence whose prompt is computed: it decodes, and keeps nothing.
  Sequence(SequenceId sequence_id, std::shared_ptr<const Sequence> first_sample,
           uint32_t sample_number);
  // The rest of a preempted one: its prompt is the whole text so far, and its answer goes on.
  explicit Sequence(Sequence* preempted);

  bool reads() const { return request.reads(); }
  bool writes() const { return request.writes(); }
  bool generates() const { return request.max_new_tokens > 0; }
  // The caller's request, for all samples.
  const EngineRequest& asked() const { return (first == nullptr ? *this : *first).request; }
  // Tokens to compute: the prompt, and the answer up to a preemption.
  uint32_t tokens() const { return static_cast<uint32_t>(prefix.token_ids.size()); }
  // `count` of these tokens, from number `begin` on.
  absl::Span<const int32_t> PromptTokens(uint32_t begin, uint32_t count) const {
    return {reinterpret_cast<const int32_t*>(prefix.token_ids.data()) + begin, count};
  }
  // The prompt and all of its answer.
  std::vector<uint32_t> Text() const;
  // Samples, or beams, that will be forked from it.
  uint32_t unforked() const {
    return first != nullptr || answer.generated > 0 ? 0 : request.sequences() - 1;
  }
  // The highest boundary to restore: what generates must compute its last token.
  uint32_t max_boundary() const { return generates() ? tokens() - 1 : tokens(); }

  // The rules of the next token's logits; null: there are none.
  LogitRules* RulesOfNext(const std::vector<int32_t>& eos);

  // Stops waiting for its lookup, whose thread is then free for another. True: it was under way.
  bool StopWaiting();
  // Releases everything but the KV: staged snapshots, lease, objects and the wait for a fetch.
  void DropHeld();

  // Guesses from its text what it will decode behind its last token.
  void Speculate();
  // The last token, and behind it what was guessed, `tokens` in all.
  absl::Span<const int32_t> NextTokens(uint32_t tokens) const;

  // Never change after Submit.
  const SequenceId id;
  const EngineRequest request;
  const EngineCallbacks callbacks;
  const PrefixRequest prefix;
  const absl::Time submitted_at;

  const std::shared_ptr<RequestState> state;
  const std::shared_ptr<const Sequence> first;  // null: this is the first sample, or beam
  const uint32_t sample = 0;
  const bool resumed = false;  // it was preempted

  FetchWait fetch;

  // The engine's thread only, from here on.
  PooledPrefix pooled;
  RestoredPrefix restored;
  KeptPrefix kept;

  std::unique_ptr<SequenceKv> kv;
  std::vector<std::unique_ptr<SequenceKv>> fork_kvs;  // of the other samples, until they begin
  bool holds_whole_budget = false;  // admitted with all of the budget, and may need more
  uint32_t claimed_end = 0;  // admission of others leaves the memory of the tokens before it free
  std::vector<uint32_t> step_ends;
  size_t next_step = 0;
  uint32_t position = 0;
  uint32_t computed_tokens = 0;  // of the prompt
  uint32_t recomputed_end = 0;   // tokens before it were computed before it was preempted
  uint32_t reported_tokens = 0;  // of the prompt, passed to on_prompt

  GrowingAnswer answer;
  SequenceTimes times;
  SequenceTimes first_times;  // before it was preempted, once it has an answer
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_SEQUENCE_H_
