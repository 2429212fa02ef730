// Forward: interface to the forward pass of an InvariantGemma. InvariantForward runs on the CPU
// kernels, DeviceForward on a device; both give the same bits.
//
// Thread safety: none; one step at a time.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_FORWARD_H_
#define HEARTH_WORKER_MODEL_INVARIANT_FORWARD_H_

#include <memory>
#include <string>
#include <vector>

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
  // Start begins to compute the tokens of the parts and their logits; Finish waits for the end. The
  // caller then calls Advance on the sequences. Between the calls, the sequences and their logits
  // must not be used. Errors: a failure of the device. REQUIRES: PrepareParts accepted the parts;
  // both calls have the same parts; the tokens are needed by Start only.
  virtual absl::Status Start(Parts parts) = 0;
  virtual absl::Status Finish(Parts) { return absl::OkStatus(); }
  // Returns whether Start may return before the step is computed.
  virtual bool is_asynchronous() const { return false; }
  // Prepares for steps whose sequences use the adapter. kResourceExhausted: the device has too
  // little memory. REQUIRES: no step is running.
  virtual absl::Status AddAdapter(const std::shared_ptr<const LoraAdapter>& /*adapter*/) {
    return absl::OkStatus();
  }
  // Checks that on this machine a row's bits do not depend on the other rows of its step. The CPU
  // is tested with steps up to `limits`, a device with fixed steps. Returns the number of steps.
  // kFailedPrecondition: the message names the first difference.
  virtual absl::StatusOr<int> SelfTest(const StepLimits& limits) = 0;
  // Returns the memory that holds the KV blocks.
  virtual std::shared_ptr<BlockMemory> memory() const = 0;
  // Returns the number of rows in a step of one sequence at which the time per row is lowest.
  virtual int alone_rows() const = 0;
  // Returns "cpu", or the device's kind ("cuda" or "emulated").
  virtual std::string device_kind() const = 0;
  // Returns notes about the device and its self-test for the log, one sentence each.
  virtual std::vector<std::string> notes() const { return {}; }
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_FORWARD_H_
