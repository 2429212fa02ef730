// AnswerWriter: gives a request's caller its tokens and its end, and frees what the request held.
//
// Thread safety: the engine's thread alone. Ownership: all its arguments must outlive it.
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

  // Draws a token from the sequence's logits and passes it on. Returns the reason if it is the
  // last.
  absl::StatusOr<std::optional<FinishReason>> Emit(Sequence* sequence);
  // Passes on the tokens of an answer that ended for `reason`. Returns the reason that it has then.
  FinishReason EmitAll(Sequence* sequence, const std::vector<int32_t>& tokens, FinishReason reason);
  // Likewise after a step of `rows` that began with the answer's last token: a token for each row,
  // as long as it is the one that the step guessed. The rows behind it are forgotten, the logits
  // hashed.
  absl::StatusOr<std::optional<FinishReason>> EmitStep(Sequence* sequence, uint32_t rows);
  // Hashes the logits of an answer's first token: a request's always, of each sample if all are to
  // be hashed.
  void HashLogits(Sequence* sequence) { HashRow(sequence->answer.logits, sequence); }
  // The sequence is complete; with its last sample a request is.
  void Finish(const SequencePtr& sequence, FinishReason reason);
  // A beam ends without an answer.
  void Dismiss(Sequence* beam);
  // A request ends with an error, told once for all its samples.
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
