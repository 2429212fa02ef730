#include "worker/kernels/targets.h"

#include "worker/kernels/highway_targets.h"
// Include after highway_targets.h, which disables targets.
#include <hwy/highway.h>

#include <cassert>

namespace hearth {
namespace {

// If Highway had a target that HighwayTarget does not know, Highway would prefer that target.
static_assert((HWY_TARGETS & ~(HWY_STATIC_TARGET | HWY_AVX2 | HWY_AVX3)) == 0,
              "highway_targets.h leaves a target of this Highway that the kernels do not know");

int64_t HighwayTarget(KernelTarget target) {
  return target == KernelTarget::kAvx512 ? HWY_AVX3
         : target == KernelTarget::kAvx2 ? HWY_AVX2
                                         : HWY_STATIC_TARGET;
}

// Returns the targets that the CPU supports, independent of ForceTarget.
int64_t CpuTargets() {
  static const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return targets;
}

KernelTarget forced_target = KernelTarget::kPlain;
bool is_forced = false;

}  // namespace

const char* KernelTargetName(KernelTarget target) {
  return target == KernelTarget::kAvx512 ? "avx512"
         : target == KernelTarget::kAvx2 ? "avx2"
                                         : "plain";
}

std::vector<KernelTarget> UsableTargets() {
  std::vector<KernelTarget> usable = {KernelTarget::kPlain};
  for (const KernelTarget target : {KernelTarget::kAvx2, KernelTarget::kAvx512}) {
    if ((CpuTargets() & HighwayTarget(target)) != 0) usable.push_back(target);
  }
  return usable;
}

KernelTarget ChosenTarget() { return is_forced ? forced_target : UsableTargets().back(); }

void ForceTarget(KernelTarget target) {
  [[maybe_unused]] const int64_t able =
      CpuTargets();  // evaluate before Highway is limited to one target
  assert(target == KernelTarget::kPlain || (able & HighwayTarget(target)) != 0);
  forced_target = target;
  is_forced = true;
  hwy::SetSupportedTargetsForTest(HighwayTarget(target));
  hwy::GetChosenTarget().Update(HighwayTarget(target));
}

}  // namespace hearth
