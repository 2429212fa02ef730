// AnswerWriter: sends a request's tokens and end to its caller, and frees what the request held.
//
// Thread safety: the engine's thread only. Ownership: all arguments must outlive it.
#ifndef HEARTH_WORKER_ENGINE_ANSWER_WRITER_H_
#define HEARTH_WORKER_ENGINE_ANSWER_WRITER_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/engine/engine_counters.h"
#include "worker/engine/prefix_keeper.h"
#include "worker/engine/request/engine_request.h"
#include "worker/engine/round_planner.h"
#include "worker/engine/runner/model_runner.h"
#include "worker/engine/sequence.h"

namespace hearth {

class AnswerWriter {
 public:
  AnswerWriter(const KvLayout& layout, ModelRunner* model, RoundPlanner* planner,
               PrefixKeeper* keeper, EngineCounters* counters)
      : layout_(layout), model_(model), planner_(planner), keeper_(keeper), counters_(counters) {}

  // Draws a token from the sequence's logits and sends it. Returns the finish reason if it was the
  // last token.
  absl::StatusOr<std::optional<FinishReason>> Emit(Sequence* sequence);
  // Sends all tokens of an answer that ended for `reason`. Returns the final reason: kStop if the
  // caller ended it.
  FinishReason EmitAll(Sequence* sequence, const std::vector<int32_t>& tokens, FinishReason reason);
  // As Emit, after a step of `rows` rows that began with the answer's last token: sends one token
  // per row, as long as it equals the token that the step guessed. Forgets the KV of the remaining
  // rows, and hashes the logits of used rows.
  absl::StatusOr<std::optional<FinishReason>> EmitStep(Sequence* sequence, uint32_t rows);
  // Hashes the sequence's logits: always for the request's first token, for further tokens only if
  // hash_logits is set.
  void HashLogits(Sequence* sequence) { HashRow(sequence->answer.logits, sequence); }
  // Ends a sequence with its answer. The last sample ends the request.
  void Finish(const SequencePtr& sequence, FinishReason reason);
  // Ends a beam without an answer.
  void Dismiss(Sequence* beam);
  // Ends a request with an error, reported once for all its samples.
  void Fail(const SequencePtr& sequence, const absl::Status& status);

 private:
  absl::StatusOr<std::optional<FinishReason>> EmitFrom(absl::Span<float> logits,
                                                       Sequence* sequence);
  void HashRow(absl::Span<const float> logits, Sequence* sequence);
  void NoteStep(Sequence* sequence, uint32_t drafted, uint32_t accepted);
  FinishedInfo InfoOf(const Sequence& sequence) const;
  void CountHeld(const Sequence& sequence) const;
  void ReleasePlace(Sequence* sequence);
  bool PassOn(Sequence* sequence, const SampledToken& token);

  const KvLayout& layout_;
  ModelRunner* const model_;
  RoundPlanner* const planner_;
  PrefixKeeper* const keeper_;
  EngineCounters* const counters_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_ANSWER_WRITER_H_
