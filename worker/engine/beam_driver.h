// BeamDriver: runs a beam search. Each beam is a sequence. All beams of a search decode in the same
// step, and share the KV blocks of their common tokens.
//
// Thread safety: the engine's thread only. Ownership: all arguments must outlive the driver.
// RequestState owns the BeamGroup, which has only weak references to its sequences.
#ifndef HEARTH_WORKER_ENGINE_BEAM_DRIVER_H_
#define HEARTH_WORKER_ENGINE_BEAM_DRIVER_H_

#include "absl/status/status.h"
#include "worker/engine/answer_writer.h"
#include "worker/engine/prefix_keeper.h"
#include "worker/engine/round_planner.h"
#include "worker/engine/runner/model_runner.h"
#include "worker/engine/sequence.h"

namespace hearth {

class BeamDriver {
 public:
  BeamDriver(ModelRunner* model, RoundPlanner* planner, PrefixKeeper* keeper, AnswerWriter* answers)
      : model_(model), planner_(planner), keeper_(keeper), answers_(answers) {}

  // Chooses the first tokens of all beams. REQUIRES: the prompt is computed and its logits are
  // available.
  absl::Status Begin(const SequencePtr& first);
  // Records that the logits of `beam` are computed. After the last beam of the step, extends all
  // beams by one token. If this completes the search, ends the request.
  absl::Status AfterDecode(const SequencePtr& beam);
  // Stops a search that will restart. Removes all its sequences except the first. Returns the first
  // sequence, without its KV. REQUIRES: the request uses beam search.
  SequencePtr Abandon(RequestState* state);
  // Returns the sequence to pass to AnswerWriter::Fail: the first sequence of the beam search,
  // since its other beams may have been removed during the step; `sequence` itself if there is no
  // search.
  SequencePtr Registered(const SequencePtr& sequence) const;

 private:
  absl::Status Advance(BeamGroup* group);
  absl::Status Reorder(BeamGroup* group);
  void Finish(const BeamGroup& group);

  ModelRunner* const model_;
  RoundPlanner* const planner_;
  PrefixKeeper* const keeper_;
  AnswerWriter* const answers_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_BEAM_DRIVER_H_
