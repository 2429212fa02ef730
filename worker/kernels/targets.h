// KernelTargets: the instruction sets that the kernels are compiled for.
//
// All give the same bits. `plain` is the reference (reference.h) and works on every CPU; it is some
// hundred times slower, for where a CPU has no FMA that is done in software.
//
// Thread safety: UsableTargets and ChosenTarget from any thread. ForceTarget is for tests and the
// self-test: no list of kernels may be made meanwhile.
#ifndef HEARTH_WORKER_KERNELS_TARGETS_H_
#define HEARTH_WORKER_KERNELS_TARGETS_H_

#include <string>
#include <vector>

namespace hearth {

enum class KernelTarget { kPlain, kAvx2, kAvx512 };

const char* KernelTargetName(KernelTarget target);
// Those that this CPU can run, the slowest first.
std::vector<KernelTarget> UsableTargets();
// The target in use: the last of UsableTargets, unless another was forced.
KernelTarget ChosenTarget();
// REQUIRES: one of UsableTargets.
void ForceTarget(KernelTarget target);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_TARGETS_H_
