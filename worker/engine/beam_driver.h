// BeamDriver: runs a request's search on sequences of the engine, one for each beam, which decode
// in the same step and share the blocks that they have in common.
//
// Thread safety: the engine's thread alone. Ownership: all its arguments must outlive it; a
// request's state owns its beams, which refer to the sequences and do not keep them.
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

  // The prompt is computed, and its logits are there: takes the search's first step.
  absl::Status Begin(const SequencePtr& first);
  // The beam has its next logits; with the last of the beams the search takes a step. The request
  // ends with its search.
  absl::Status AfterDecode(const SequencePtr& beam);
  // Ends a search that will begin anew, and all its sequences but the first, which it returns
  // without a KV. REQUIRES: the request searches.
  SequencePtr Abandon(RequestState* state);
  // The sequence to fail the request by: `sequence`, or for a beam, which may have been removed in
  // its step, the first sequence of its search.
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
