// Checks on the host that FusedDot computes what its header says.
#ifndef HEARTH_BENCH_GPU_FUSED_DOT_CHECK_H_
#define HEARTH_BENCH_GPU_FUSED_DOT_CHECK_H_

#include <cstdint>

namespace hearth {

// Returns whether x and y have the same bits or are both NaN.
bool SameResult(float x, float y);

// Prints the result of a check in one line. Returns true if `compared` is above 0 and `differing`
// is 0.
bool ReportCheck(const char* check, uint64_t compared, uint64_t differing);

// Runs all checks and prints a line for each. Returns the number of failed checks.
int CheckFusedDot();

}  // namespace hearth

#endif  // HEARTH_BENCH_GPU_FUSED_DOT_CHECK_H_
