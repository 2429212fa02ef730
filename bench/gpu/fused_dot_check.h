// Checks on the host that FusedDot computes what its header says.
#ifndef HEARTH_BENCH_GPU_FUSED_DOT_CHECK_H_
#define HEARTH_BENCH_GPU_FUSED_DOT_CHECK_H_

#include <cstdint>

namespace hearth {

// Whether bits are equal, or both are NaN.
bool SameResult(float x, float y);

// Prints a line and returns whether the check compared something and nothing differs.
bool ReportCheck(const char* check, uint64_t compared, uint64_t differing);

// Prints a line for each check. Returns how many failed.
int CheckFusedDot();

}  // namespace hearth

#endif  // HEARTH_BENCH_GPU_FUSED_DOT_CHECK_H_
