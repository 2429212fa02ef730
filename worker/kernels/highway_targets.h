// Selects the Highway targets that the kernels are compiled for. Private to worker/kernels; include
// it before any header of Highway.
//
// Targets: AVX2 and AVX-512, both with FMA, and EMU128 as the baseline that Highway requires, for
// which each kernel calls its scalar reference. SSSE3 and SSE4 have no FMA: they would give other
// bits, or be as slow as the reference. Highway gives better targets lower bits, and new releases
// add targets above AVX3 (AVX3_DL, AVX3_ZEN4, AVX3_SPR, ...). All targets above AVX3 are disabled,
// because our code tests for AVX3 itself.
#ifndef HEARTH_WORKER_KERNELS_HIGHWAY_TARGETS_H_
#define HEARTH_WORKER_KERNELS_HIGHWAY_TARGETS_H_

#ifdef HWY_HIGHWAY_INCLUDED
#error "include worker/kernels/highway_targets.h before Highway"
#endif
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | (HWY_AVX3 - 1))

#endif  // HEARTH_WORKER_KERNELS_HIGHWAY_TARGETS_H_
