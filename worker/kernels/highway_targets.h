// Which of Highway's targets the kernels are compiled for. Private to worker/kernels; before any
// header of Highway.
//
// AVX2 and AVX-512, both with FMA, and EMU128 as Highway wants a baseline, for which each kernel
// calls its scalar reference. SSSE3 and SSE4 have no FMA: other bits, or as slow as the reference.
// Highway gives better targets lower bits, and each release knows more of them (AVX3_DL, AVX3_ZEN4,
// AVX3_SPR, ...): none above AVX3 is used, whatever its name, for our code asks for AVX3 itself.
#ifndef HEARTH_WORKER_KERNELS_HIGHWAY_TARGETS_H_
#define HEARTH_WORKER_KERNELS_HIGHWAY_TARGETS_H_

#ifdef HWY_HIGHWAY_INCLUDED
#error "include worker/kernels/highway_targets.h before Highway"
#endif
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | (HWY_AVX3 - 1))

#endif  // HEARTH_WORKER_KERNELS_HIGHWAY_TARGETS_H_
