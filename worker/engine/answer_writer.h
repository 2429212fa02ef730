// AnswerWriter: sends the tokens of a request's answers to its caller, reports its end, and frees
// its memory.
//
// Thread safety: the engine's thread only. Ownership: all arguments must outlive it.
#ifndef HEARTH_WORKER_ENGINE_ANSWER_WRITER_H_
#define HEARTH_WORKER_ENGINE_ANSWER_WRITER_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
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

// Runs `work`. Converts exceptions of callbacks and of the model's libraries, and failed
// allocations, to an error status.
absl::Status Caught(absl::FunctionRef<absl::Status()> work);

class AnswerWriter {
 public:
  AnswerWriter(const KvLayout& layout, ModelRunner* model, RoundPlanner* planner,
               PrefixKeeper* keeper, EngineCounters* counters,
               std::function<void(Sequence*)> leave_step)
      : layout_(layout),
        model_(model),
        planner_(planner),
        keeper_(keeper),
        counters_(counters),
        leave_step_(std::move(leave_step)) {}

  // If `holds`, EmitStep does not send the last token of its step, unless the token ends the
  // answer: SendTokens sends the token later, or the next callback of any request before itself. So
  // callbacks keep their order.
  void HoldTokens(bool holds) { holds_ = holds; }
  // Sends the tokens that wait. If a caller ends its answer, calls `leave_step` (see the
  // constructor), because the sequence may be part of a running step, then ends the sequence.
  void SendTokens();

  // Samples the next token from `logits` and sends it to the caller. Returns the finish reason if
  // the token was the answer's last.
  absl::StatusOr<std::optional<FinishReason>> Emit(const StepLogits& logits,
                                                   const SequencePtr& sequence) {
    return EmitFrom(logits.Row(0, 1), std::nullopt, sequence);
  }
  // Sends all tokens of an answer that ended for `reason`. Returns the finish reason to report:
  // kStop if the caller stopped the answer, else `reason`.
  FinishReason EmitAll(Sequence* sequence, const std::vector<int32_t>& tokens, FinishReason reason);
  // Sends the tokens of a decode step of `rows` rows. Row 0 was computed from the answer's last
  // token, each further row from a guessed token. Samples one token per row until a sampled token
  // differs from the guess. Removes the KV of the unused rows, and hashes the logits of the used
  // rows.
  absl::StatusOr<std::optional<FinishReason>> EmitStep(const SequencePtr& sequence, uint32_t rows);
  // Hashes the logits of a token. Logits of tokens after the request's first are hashed only if the
  // request sets hash_logits.
  void HashLogits(const StepLogits& logits, Sequence* sequence) {
    HashRow(logits.values(), sequence);
  }
  // Ends a sample with a complete answer. After its last sample, the request ends.
  void Finish(const SequencePtr& sequence, FinishReason reason);
  // Ends a beam without an answer.
  void Dismiss(Sequence* beam);
  // Ends a request with an error. The caller gets the error once, however many samples the request
  // has.
  void Fail(const SequencePtr& sequence, const absl::Status& status);

 private:
  // A token whose callback is still to be called.
  struct UnsentToken {
    SequencePtr sequence;
    SampledToken token;
  };
  // `guess`: the token guessed for the next row; nullopt if there is no next row.
  absl::StatusOr<std::optional<FinishReason>> EmitFrom(const LogitRow& row,
                                                       std::optional<int32_t> guess,
                                                       const SequencePtr& sequence);
  absl::StatusOr<SampledToken> Draw(const LogitRow& row, GrammarState* grammar, Sequence* sequence);
  bool IsEnd(const Sequence& sequence, int32_t token) const;
  bool IsStop(const Sequence& sequence, int32_t token) const;
  void HashRow(absl::Span<const float> logits, Sequence* sequence);
  void NoteStep(Sequence* sequence, uint32_t drafted, uint32_t accepted);
  FinishedInfo InfoOf(const Sequence& sequence) const;
  void CountHeld(const Sequence& sequence) const;
  void ReleasePlace(Sequence* sequence);
  void Append(int32_t token, Sequence* sequence);
  static bool Send(const Sequence& sequence, const SampledToken& token);
  void FinishNow(const SequencePtr& sequence, FinishReason reason);
  void FailNow(const SequencePtr& sequence, const absl::Status& status);

  const KvLayout& layout_;
  ModelRunner* const model_;
  RoundPlanner* const planner_;
  PrefixKeeper* const keeper_;
  EngineCounters* const counters_;
  const std::function<void(Sequence*)> leave_step_;
  bool holds_ = false;
  std::deque<UnsentToken> unsent_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_ANSWER_WRITER_H_
