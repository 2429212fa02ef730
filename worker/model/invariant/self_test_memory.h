// SelfTestMemory: remembers between starts that the self-test of a model passed on this machine.
//
// Keyed by the weights and their form, the kernels' version, C, the steps that were tried, the
// instruction set, the CPU and the program's file: each of them may change the bits. Only passed
// tests are remembered.
//
// Thread safety: as const. A folder that cannot be read or written costs time only.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_SELF_TEST_MEMORY_H_
#define HEARTH_WORKER_MODEL_INVARIANT_SELF_TEST_MEMORY_H_

#include <cstdint>
#include <string>

#include "proto/fingerprint.h"
#include "worker/kernels/packed_weights.h"
#include "worker/model/invariant/step_limits.h"

namespace hearth {

class SelfTestMemory {
 public:
  // `cache_dir` may be empty: then nothing is remembered. `form`: of the weights.
  SelfTestMemory(const std::string& cache_dir, const Digest& weights, WeightForm form,
                 int64_t chunk, const StepLimits& limits);
  bool HasPassed() const;
  void Remember() const;

 private:
  std::string file_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_SELF_TEST_MEMORY_H_
