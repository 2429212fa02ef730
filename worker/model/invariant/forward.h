// Forward: the interface to the forward pass of an InvariantGemma. InvariantForward computes on the
// CPU's kernels, DeviceForward on a device; both give the same bits.
//
// Thread safety: none; one step at a time.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_FORWARD_H_
#define HEARTH_WORKER_MODEL_INVARIANT_FORWARD_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/model/invariant/block_memory.h"
#include "worker/model/invariant/invariant_step.h"

namespace hearth {

class Forward {
 public:
  using Parts = absl::Span<const InvariantPart>;

  virtual ~Forward() = default;
  // Computes the parts' tokens and writes their logits; the caller then advances the sequences.
  // Errors: the device's. REQUIRES: PrepareParts accepted the parts.
  virtual absl::Status Run(Parts parts) = 0;
  // Checks that this machine computes what the class promises: on the CPU in steps up to `limits`,
  // on a device in steps of the device's choice. Returns the number of steps; kFailedPrecondition
  // names the first difference.
  virtual absl::StatusOr<int> SelfTest(const StepLimits& limits) = 0;
  // The memory of the parts' keys and values.
  virtual std::shared_ptr<BlockMemory> memory() const = 0;
  // The number of rows at which one row costs the least, for a sequence alone in a step.
  virtual int alone_rows() const = 0;
  // "cpu", or the device's kind.
  virtual std::string device_kind() const = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_FORWARD_H_
