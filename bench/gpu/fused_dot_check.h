// Checks on the host that FusedDot computes what its header says.
#ifndef HEARTH_BENCH_GPU_FUSED_DOT_CHECK_H_
#define HEARTH_BENCH_GPU_FUSED_DOT_CHECK_H_

#include <cstdint>
#include <string>
#include <vector>

namespace hearth {

// Returns whether x and y have the same bits or are both NaN.
bool SameResult(float x, float y);

// Prints the result of a check in one line. Returns true if `compared` is above 0 and `differing`
// is 0.
bool ReportCheck(const char* check, uint64_t compared, uint64_t differing);

// Returns a digest (FNV-1a) over the bits of all values. All NaNs count as equal.
std::string Digest(const std::vector<float>& values);
// Returns the digest of the outputs that an NVIDIA H200 computed for a class of values
// (tensor_core_cases.h), with kMeasuredTiles tiles, or for chains; their names have the number of
// inputs ("K 640"). Returns "" if the GPU computed none.
std::string MeasuredDigest(const std::string& name);
constexpr int kMeasuredTiles = 64, kMeasuredDigests = 22;

// Runs all checks and prints a line for each. Returns the number of failed checks.
int CheckFusedDot();

}  // namespace hearth

#endif  // HEARTH_BENCH_GPU_FUSED_DOT_CHECK_H_
