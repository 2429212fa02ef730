// Selects the Highway targets for which the kernels are compiled. Private to worker/kernels;
// include it before any header of Highway.
//
// Enabled targets: AVX2 and AVX-512, both with FMA, and the baseline EMU128 that Highway requires.
// For EMU128 each kernel calls its scalar reference. SSSE3 and SSE4 are disabled: without FMA they
// would give different bits, or be as slow as the reference. All targets above AVX3 (AVX3_DL,
// AVX3_ZEN4, AVX3_SPR, and targets of future releases) are disabled, because our code compares the
// target with AVX3. In Highway, better targets have lower bits.
#ifndef HEARTH_WORKER_KERNELS_HIGHWAY_TARGETS_H_
#define HEARTH_WORKER_KERNELS_HIGHWAY_TARGETS_H_

#ifdef HWY_HIGHWAY_INCLUDED
#error "include worker/kernels/highway_targets.h before Highway"
#endif
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | (HWY_AVX3 - 1))

#endif  // HEARTH_WORKER_KERNELS_HIGHWAY_TARGETS_H_
