// Which class of bits a worker serves: what was asked for, and what that means for a machine.
//
// Pure functions of their arguments and, for the memory, of the machine.
#ifndef HEARTH_WORKER_EXACTNESS_CHOICE_H_
#define HEARTH_WORKER_EXACTNESS_CHOICE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace hearth {

// In the order of the flag's names.
enum class ExactnessChoice { kAuto, kInvariant, kExact, kPortable };

// Whether the class `invariant` has what is asked for; the error names the option that it has not.
absl::Status MayBeInvariant(const std::string& device, const std::string& dtype);

// Half of the memory that this process may have: the machine's, or its control group's where that
// is less.
uint64_t DefaultKvBytes();

}  // namespace hearth

#endif  // HEARTH_WORKER_EXACTNESS_CHOICE_H_
