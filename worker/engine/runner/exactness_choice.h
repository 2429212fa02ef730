// Chooses the class of exactness that a worker serves, by its flags and the machine.
//
// Pure functions, except MemoryBytes, which reads the machine.
#ifndef HEARTH_WORKER_ENGINE_RUNNER_EXACTNESS_CHOICE_H_
#define HEARTH_WORKER_ENGINE_RUNNER_EXACTNESS_CHOICE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace hearth {

// In the order of the flag's names.
enum class ExactnessChoice { kAuto, kInvariant, kExact, kPortable };

// Form of the weights in the class invariant. kAuto: the class's default. In the order of the
// flag's names.
enum class WeightsChoice { kAuto, kFloat32, kStored, kQ8_0, kQ4_0, kCount };
const char* WeightsChoiceName(WeightsChoice weights);

// Type of the products in the class invariant. kInt8: integers for quantized matrices; the model
// must have one. kAuto: integers if the model has quantized matrices, else float32. In the order of
// the flag's names.
enum class ArithmeticChoice { kFloat32, kInt8, kAuto };

// Returns an error if the class invariant does not support this dtype.
absl::Status CheckInvariantDtype(const std::string& dtype);
// Returns an error, with the reason, if --exactness auto does not choose the class invariant.
absl::Status CheckAutoInvariant(const std::string& device, const std::string& dtype);

// Returns the start error for a failed self-test: the class does not hold on this machine, or the
// test could not run.
absl::Status SelfTestFailure(const absl::Status& status);

// Type of stored keys and values in the class invariant. kAuto: kBFloat16 if products are integers,
// else kFloat32. In the order of the flag's names.
enum class KvDtypeChoice { kFloat32, kBFloat16, kAuto };

// Returns an error if an option of the class invariant, such as --weights, contradicts the others.
// The error names both options, and says to leave the flag at auto.
absl::Status CheckFlag(const std::string& flag, const std::string& value, ExactnessChoice exactness,
                       const std::string& device, const std::string& dtype);

// Returns the memory available to this process: the machine's, or the smallest limit of the control
// groups that contain the process. `root` is prefixed to the paths of system files.
uint64_t MemoryBytes(const std::string& root = "");

// Default of --kv-bytes: half of the memory minus weights and pool, but at least a quarter of what
// these leave.
uint64_t DefaultKvBytes(uint64_t memory_bytes, uint64_t weights_bytes, uint64_t pool_bytes);

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_RUNNER_EXACTNESS_CHOICE_H_
