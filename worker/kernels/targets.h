// KernelTarget: the instruction sets for which the kernels are compiled.
//
// All targets give the same bits. kPlain is the reference (reference.h) and runs on every CPU. It
// is about a hundred times slower, because a CPU without FMA computes each FMA in software.
//
// Thread safety: UsableTargets and ChosenTarget may be called from any thread. ForceTarget is for
// tests and for the worker's self-test; call it only while no list of kernels is built.
#ifndef HEARTH_WORKER_KERNELS_TARGETS_H_
#define HEARTH_WORKER_KERNELS_TARGETS_H_

#include <string>
#include <vector>

namespace hearth {

enum class KernelTarget { kPlain, kAvx2, kAvx512 };

const char* KernelTargetName(KernelTarget target);
// Returns the targets that this CPU can run, slowest first.
std::vector<KernelTarget> UsableTargets();
// Returns the target that the kernels use: the last of UsableTargets, unless ForceTarget set
// another one.
KernelTarget ChosenTarget();
// REQUIRES: `target` is one of UsableTargets.
void ForceTarget(KernelTarget target);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_TARGETS_H_
