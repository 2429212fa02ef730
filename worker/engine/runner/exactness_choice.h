// Chooses the class of bits that a worker serves, from its flags and the machine.
//
// Pure functions of their arguments and, for MemoryBytes, of the machine.
#ifndef HEARTH_WORKER_ENGINE_RUNNER_EXACTNESS_CHOICE_H_
#define HEARTH_WORKER_ENGINE_RUNNER_EXACTNESS_CHOICE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace hearth {

// In the order of the flag's names.
enum class ExactnessChoice { kAuto, kInvariant, kExact, kPortable };

// The form of the weights in the class invariant; kAuto: each class's default. In the order of the
// flag's names.
enum class WeightsChoice { kAuto, kFloat32, kStored, kQ8_0, kQ4_0, kCount };
const char* WeightsChoiceName(WeightsChoice weights);

// What the products of the class invariant multiply. kInt8: integers where a matrix is in blocks,
// by its file or by --weights, and there must be one; kAuto: likewise, where there is one. In the
// order of the flag's names.
enum class ArithmeticChoice { kFloat32, kInt8, kAuto };

// Whether the class `invariant` has these options; the error names the one that it lacks.
absl::Status CheckInvariantDtype(const std::string& dtype);
// Whether --exactness auto takes the class invariant there; the error says why it does not.
absl::Status CheckAutoInvariant(const std::string& device, const std::string& dtype);

// What a start says of a self-test that failed: the class does not hold here, or nobody knows, as
// the test could not run.
absl::Status SelfTestFailure(const absl::Status& status);

// How keys and values are stored in the class invariant; kAuto: kBFloat16 where products multiply
// integers, else kFloat32. In the order of the flag's names.
enum class KvDtypeChoice { kFloat32, kBFloat16, kAuto };

// Whether an option of the class invariant, such as --weights, can be had beside the others; the
// error names both, and that the flag may be left at auto.
absl::Status CheckInvariantOption(const std::string& flag, const std::string& value,
                                  ExactnessChoice exactness, const std::string& device,
                                  const std::string& dtype);

// The memory that this process may have: the machine's, or the least that its control group and
// those around it allow. `root` stands before the paths of the system's files.
uint64_t MemoryBytes(const std::string& root = "");

// The --kv-bytes of a worker that is not told: half of the memory less the weights and the pool,
// but no less than a quarter of what these leave.
uint64_t DefaultKvBytes(uint64_t memory_bytes, uint64_t weights_bytes, uint64_t pool_bytes);

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_RUNNER_EXACTNESS_CHOICE_H_
