// Chooses the worker's exactness class (which bits of results are guaranteed) from flags and
// machine.
//
// Pure functions, except MemoryBytes, which reads the machine.
#ifndef HEARTH_WORKER_ENGINE_RUNNER_EXACTNESS_CHOICE_H_
#define HEARTH_WORKER_ENGINE_RUNNER_EXACTNESS_CHOICE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace hearth {

// In the order of the names of --exactness.
enum class ExactnessChoice { kAuto, kInvariant, kExact, kPortable };

// Number format of the weights in class invariant. kAuto: the class's default format. In the order
// of the names of --weights.
enum class WeightsChoice { kAuto, kFloat32, kStored, kQ8_0, kQ4_0, kCount };
const char* WeightsChoiceName(WeightsChoice weights);

// Arithmetic of matrix products in class invariant. kInt8: integers for quantized matrices; the
// model must have one. kBFloat16: bfloat16 as tensor cores compute it; all matrices must be
// bfloat16. kAuto: integers if the model has quantized matrices, else float32. The values have the
// order of the names of --arithmetic.
enum class ArithmeticChoice { kFloat32, kInt8, kBFloat16, kAuto, kCount };
const char* ArithmeticChoiceName(ArithmeticChoice arithmetic);

// Returns an error if class invariant does not support `dtype`.
absl::Status CheckInvariantDtype(const std::string& dtype);
// Returns an error with the reason if `--exactness auto` must not choose class invariant.
absl::Status CheckAutoInvariant(const std::string& device, const std::string& dtype);

// Returns the start error for a failed self-test of class invariant. It says whether the test found
// different bits, or could not run.
absl::Status SelfTestFailure(const absl::Status& status);

// Number format of stored keys and values in class invariant. kAuto: kFloat32 if products
// are in float32, else kBFloat16. In the order of the names of --kv-dtype.
enum class KvDtypeChoice { kFloat32, kBFloat16, kAuto };

// Returns an error if `flag` (such as "weights"), which only class invariant supports, contradicts
// the other options. The error names both flags and advises to leave `flag` at auto.
absl::Status CheckFlag(const std::string& flag, const std::string& value, ExactnessChoice exactness,
                       const std::string& dtype);

// Returns the memory available to this process: the machine's memory, or the smallest limit of the
// control groups that contain the process. `root`: prefix of the system files' paths.
uint64_t MemoryBytes(const std::string& root = "");

// Default of --kv-bytes: memory / 2 - weights - pool, but at least (memory - weights - pool) / 4.
uint64_t DefaultKvBytes(uint64_t memory_bytes, uint64_t weights_bytes, uint64_t pool_bytes);

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_RUNNER_EXACTNESS_CHOICE_H_
