// KernelTargets: the instruction sets that the kernels are compiled for.
//
// All targets give the same bits. `plain` is the reference (reference.h) and runs on every CPU. It
// is some hundred times slower, because a CPU without FMA computes each FMA in software.
//
// Thread safety: UsableTargets and ChosenTarget may be called from any thread. ForceTarget is for
// tests and the self-test: no list of kernels may be built during the call.
#ifndef HEARTH_WORKER_KERNELS_TARGETS_H_
#define HEARTH_WORKER_KERNELS_TARGETS_H_

#include <string>
#include <vector>

namespace hearth {

enum class KernelTarget { kPlain, kAvx2, kAvx512 };

const char* KernelTargetName(KernelTarget target);
// Returns the targets that this CPU can run, the slowest first.
std::vector<KernelTarget> UsableTargets();
// Returns the target in use: the last of UsableTargets, unless another was forced.
KernelTarget ChosenTarget();
// REQUIRES: `target` is one of UsableTargets.
void ForceTarget(KernelTarget target);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_TARGETS_H_
