// StepLimits: the largest steps that a model will be given, for the self-test.
//
// Thread safety: a value.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_STEP_LIMITS_H_
#define HEARTH_WORKER_MODEL_INVARIANT_STEP_LIMITS_H_

#include <cstdint>

namespace hearth {

struct StepLimits {
  uint32_t alone = 512;     // rows of a sequence that nothing else is computed beside
  uint32_t together = 512;  // rows of several sequences
  uint32_t decodes = 16;    // sequences of one row each
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_STEP_LIMITS_H_
