// BeamDriver: runs a beam search. Each beam is a sequence; the beams decode in the same step and
// share their common blocks.
//
// Thread safety: the engine's thread only. Ownership: all arguments must outlive it. A request's
// state owns its BeamGroup, which has only weak references to the sequences.
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

  // Takes the search's first step. REQUIRES: the prompt is computed and its logits are available.
  absl::Status Begin(const SequencePtr& first);
  // Records that the beam has its next logits. After the last beam, the search takes a step. The
  // request ends with its search.
  absl::Status AfterDecode(const SequencePtr& beam);
  // Abandons a search that will restart: removes all its sequences except the first, which it
  // returns without a KV. REQUIRES: the request searches.
  SequencePtr Abandon(RequestState* state);
  // Returns the sequence by which to fail the request: `sequence`, or the search's first sequence,
  // since a beam may have been removed in its step.
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
