// Sequence: the state of one answer (sample or beam) of a request, from the queue to its end or
// preemption. After a preemption, a new Sequence with the same id continues the answer.
//
// Thread safety: each field says which thread may use it.
// Ownership: shared by the engine and, while a fetch runs, by the fetch. `kv` is released to the
// engine's model when the sequence ends.
// Invariants: position <= tokens(). During prefill, step_ends[next_step] > position.
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
#include "worker/model/step_logits.h"
#include "worker/text/sampler.h"

namespace hearth {

// Calls on_published once, after on_finished and after the outcomes of all the request's publishes.
// Never calls on_published for a failed request. Thread safe.
class PublishedNotice {
 public:
  explicit PublishedNotice(std::function<void(const PublishOutcome&)> callback)
      : callback_(std::move(callback)) {}
  // Sets the number of publishes whose outcomes are merged into one report. REQUIRES: no outcome
  // was reported yet.
  void Expect(int outcomes) ABSL_LOCKS_EXCLUDED(mu_);
  void OnFinished() ABSL_LOCKS_EXCLUDED(mu_);
  void OnOutcome(const PublishOutcome& outcome) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  const std::function<void(const PublishOutcome&)> callback_;
  absl::Mutex mu_;
  int awaited_ ABSL_GUARDED_BY(mu_) = 2;  // on_finished, and one publish by default
  PublishOutcome outcome_ ABSL_GUARDED_BY(mu_);
};

// WrittenTokens: counts the prompt tokens that the cache did not have before the request's
// publishes. Thread safe.
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

// Note of a publish that had no restore point to offer.
inline constexpr char kNothingToKeep[] = "no boundary to keep";

// FetchWait: the engine's wait for the result of a sequence's prefix lookup, with a deadline.
// Thread safe.
class FetchWait {
 public:
  // Called by the lookup. Starts the wait, or extends its deadline. Returns false if the engine
  // gave up the wait.
  bool WaitUntil(absl::Time deadline) ABSL_LOCKS_EXCLUDED(mu_);
  bool IsAwaited() const ABSL_LOCKS_EXCLUDED(mu_);
  // Called by the lookup with its result. Returns false, and drops the result, if the engine gave
  // up the wait.
  bool Deliver(FetchOutcome fetched) ABSL_LOCKS_EXCLUDED(mu_);

  bool HasArrived() const ABSL_LOCKS_EXCLUDED(mu_);
  // Called by the engine. Returns the result after it has arrived, or an empty result after the
  // deadline; each only once. Returns nullopt while the engine must wait, or if there is no lookup.
  std::optional<FetchOutcome> Take(absl::Time now) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Time deadline() const ABSL_LOCKS_EXCLUDED(mu_);  // infinite if no lookup is awaited
  // Gives up the wait. Returns true if the lookup may still be running.
  bool GiveUp() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // kNone: before the lookup, and after its result was taken.
  enum class State { kNone, kWaiting, kArrived, kGivenUp };
  mutable absl::Mutex mu_;
  State state_ ABSL_GUARDED_BY(mu_) = State::kNone;
  absl::Time deadline_ ABSL_GUARDED_BY(mu_) = absl::InfinitePast();
  FetchOutcome fetched_ ABSL_GUARDED_BY(mu_);
};

struct BeamGroup;  // defined in beam_driver.cc

// State shared by all sequences of a request: its samples or beams.
struct RequestState {
  std::atomic<bool> cancelled{false};  // set by any thread
  // The remaining members: the engine's thread only.
  bool failed = false;     // whether on_error was called
  bool offloaded = false;  // whether the request is offloaded for lack of device memory
  uint32_t unfinished = 1;
  uint64_t own_kv_bytes = 0, shared_kv_bytes = 0;  // KV of sequences that have ended
  uint32_t decode_steps = 0, drafted_tokens = 0, accepted_tokens = 0;  // sums over all sequences
  std::vector<SampleEnd> ends;
  std::optional<Digest> first_logits;  // SHA-256 of the first token's logits
  std::shared_ptr<BeamGroup> beams;    // not null while a beam search decodes
};

// The prefix of a prompt that was restored.
struct RestoredPrefix {
  uint32_t boundary = 0;
  Tier from = Tier::kNone;
  KvObjects objects;  // released after prefill
};

// The restore points to save for a sequence, until they are given to the publisher.
struct KeptPrefix {
  std::unique_ptr<StagedSnapshots> staged;
  bool prompt = false;  // whether the prompt's restore points were given to the publisher
  // Held until the prompt's restore points are given to the publisher.
  std::shared_ptr<ComputeLease> lease;
  std::shared_ptr<PublishedNotice> published;
  std::shared_ptr<WrittenTokens> written;
};

// The answer of a sequence.
struct GrowingAnswer {
  // `speculate`: maximum number of tokens to guess per step.
  explicit GrowingAnswer(uint32_t speculate) : speculation(speculate) {}

  Sampler sampler;
  std::optional<LogitRules> rules;  // created with the first token, if the request has logit rules
  std::unique_ptr<GrammarState> grammar;  // created with the first token, if there is a grammar
  StepLogits logits;                      // of the sequence's latest step
  std::unique_ptr<Sha256Stream> logits_digest;  // digest of all tokens' logits, if requested
  int32_t last_token = 0;
  std::vector<int32_t> tokens;  // all generated tokens
  uint32_t generated = 0;
  Speculation speculation;  // guesses from prompt and answer
};

struct SequenceTimes {
  absl::Time admitted_at, restored_at, prefilled_at, first_token_at;
};

struct Sequence {
  Sequence(SequenceId sequence_id, EngineRequest engine_request, EngineCallbacks engine_callbacks);
  // A further sample or beam of a request whose prompt is computed. It decodes, and publishes
  // nothing.
  Sequence(SequenceId sequence_id, std::shared_ptr<const Sequence> first_sample,
           uint32_t sample_number);
  // The continuation of a preempted sequence: its prompt is the old prompt and the answer so far.
  explicit Sequence(Sequence* preempted);

  bool reads() const { return request.reads(); }
  bool writes() const { return request.writes(); }
  bool generates() const { return request.max_new_tokens > 0; }
  // Returns the caller's request, which asks for all samples.
  const EngineRequest& asked() const { return (first == nullptr ? *this : *first).request; }
  // Returns the KV options of the request, or kOffloaded if the device has too little memory.
  KvChoice kv_choice() const {
    KvChoice choice = request.kv;
    if (state->offloaded) choice.strategy = KvStrategy::kOffloaded;
    return choice;
  }
  // Returns the number of tokens to prefill: the prompt, and the answer up to the last preemption.
  uint32_t tokens() const { return static_cast<uint32_t>(prefix.token_ids.size()); }
  // Returns `count` tokens to prefill, starting at index `begin`.
  absl::Span<const int32_t> PromptTokens(uint32_t begin, uint32_t count) const {
    return {reinterpret_cast<const int32_t*>(prefix.token_ids.data()) + begin, count};
  }
  // Returns the prompt followed by the answer.
  std::vector<uint32_t> Text() const;
  // Returns how many samples or beams will still be forked from this sequence.
  uint32_t unforked() const {
    return first != nullptr || answer.generated > 0 ? 0 : request.sequences() - 1;
  }
  // Returns the highest boundary to restore. A sequence that generates must compute its last token
  // itself, to get logits.
  uint32_t max_boundary() const { return generates() ? tokens() - 1 : tokens(); }

  // Returns the rules for the next token's logits. Returns null if the request has no rules.
  LogitRules* RulesOfNext(const std::vector<int32_t>& eos);

  // Returns the answer's state in its grammar. Returns null if the request has no grammar.
  GrammarState* GrammarOfNext();

  // Returns whether the next tokens are those of the greatest logits, and nothing else of the
  // logits is used. REQUIRES: the first token was sampled.
  bool IsGreedy() const;

  // Stops waiting for the lookup, and cancels its calls so that its thread becomes free. Returns
  // true if a lookup may have been running.
  bool StopWaiting();
  // Releases everything that the sequence holds except `kv`: staged copies, lease, objects, and the
  // wait for a fetch.
  void DropHeld();

  // Guesses the tokens that follow the prompt and the answer so far.
  void Speculate();
  // Returns the `tokens` tokens of the next decode step: the answer's last token, then guessed
  // tokens.
  absl::Span<const int32_t> NextTokens(uint32_t tokens) const;

  // Constant after Submit.
  const SequenceId id;
  const EngineRequest request;
  const EngineCallbacks callbacks;
  const PrefixRequest prefix;
  const absl::Time submitted_at;

  const std::shared_ptr<RequestState> state;
  const std::shared_ptr<const Sequence> first;  // null if this is the first sample or beam
  const uint32_t sample = 0;
  const bool resumed = false;  // whether it continues a preempted sequence

  FetchWait fetch;

  // All following members: the engine's thread only.
  PooledPrefix pooled;
  RestoredPrefix restored;
  KeptPrefix kept;

  std::unique_ptr<SequenceKv> kv;
  std::vector<std::unique_ptr<SequenceKv>> fork_kvs;  // KV of samples that are not forked yet
  bool holds_whole_budget = false;  // the sequence may need more memory than the whole budget
  uint32_t claimed_end = 0;         // memory is reserved for the tokens before this index
  std::vector<uint32_t> step_ends;
  size_t next_step = 0;
  uint32_t position = 0;
  uint32_t computed_tokens = 0;  // prompt tokens, each counted once
  uint32_t recomputed_end = 0;   // tokens before this index were computed before the preemption
  uint32_t reported_tokens = 0;  // prompt tokens passed to on_prompt

  GrowingAnswer answer;
  SequenceTimes times;
  SequenceTimes first_times;  // times before the preemption, if an answer had begun
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_SEQUENCE_H_
