// Loads elements of 16 or 32 bits and widens them to float32 in registers. Private to
// worker/kernels; included once for each target, after Highway.
#if defined(HEARTH_WORKER_KERNELS_WIDEN_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEARTH_WORKER_KERNELS_WIDEN_INL_H_
#undef HEARTH_WORKER_KERNELS_WIDEN_INL_H_
#else
#define HEARTH_WORKER_KERNELS_WIDEN_INL_H_
#endif

#include "worker/kernels/base/element.h"

// 1 if this target has vectors and FMA; with 0 the kernels call the reference.
#undef HEARTH_KERNELS_VECTORS
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
#define HEARTH_KERNELS_VECTORS 1
#else
#define HEARTH_KERNELS_VECTORS 0
#endif

#if HEARTH_KERNELS_VECTORS
HWY_BEFORE_NAMESPACE();
namespace hearth {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D>
HWY_INLINE hn::Vec<D> Widen(D d, const float* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> Widen(D d, const BFloat16* from) {
  const hn::Rebind<uint16_t, D> narrow;
  const hn::Rebind<uint32_t, D> wide;
  const auto bits = hn::LoadU(narrow, reinterpret_cast<const uint16_t*>(from));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(wide, bits)));
}
template <class D>
HWY_INLINE hn::Vec<D> Widen(D d, const Float16* from) {
  const hn::Rebind<hwy::float16_t, D> narrow;
  return hn::PromoteTo(d, hn::LoadU(narrow, reinterpret_cast<const hwy::float16_t*>(from)));
}

}  // namespace HWY_NAMESPACE
}  // namespace hearth
HWY_AFTER_NAMESPACE();
#endif  // HEARTH_KERNELS_VECTORS

#endif  // HEARTH_WORKER_KERNELS_WIDEN_INL_H_
