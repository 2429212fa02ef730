// Widens quantized weights (quantized/weight_blocks.h) from packed panels (packed_weights.h) to
// float32 in registers. Private to worker/kernels; included once for each target, after Highway.
#if defined(HEARTH_WORKER_KERNELS_BLOCKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEARTH_WORKER_KERNELS_BLOCKS_INL_H_
#undef HEARTH_WORKER_KERNELS_BLOCKS_INL_H_
#else
#define HEARTH_WORKER_KERNELS_BLOCKS_INL_H_
#endif

#include <hwy/cache_control.h>

#include <algorithm>
#include <cstdint>

#include "worker/kernels/base/kernel_memory.h"
#include "worker/kernels/quantized/block_places.h"
#include "worker/kernels/widen-inl.h"

#if HEARTH_KERNELS_VECTORS
HWY_BEFORE_NAMESPACE();
namespace hearth {
namespace HWY_NAMESPACE {
namespace blocks {

constexpr int kLanes = HWY_TARGET == HWY_AVX3 ? 16 : 8;
using D = hn::FixedTag<float, kLanes>;
using V = hn::Vec<D>;
using Whole = hn::RebindToSigned<D>;

HWY_INLINE hn::Vec<Whole> Row(const uint8_t* row) {
  return hn::PromoteTo(Whole(), hn::LoadU(hn::Rebind<uint8_t, D>(), row));
}

// The half of each byte that holds the low bits of the weights; kEither: known only at run time.
enum class Half { kLower, kUpper, kEither };

// The widened weights of one input; operator()(n) returns vector n of these weights.
template <class B, Half kHalf, bool kIsTight>
struct InputWeights {
  HWY_INLINE V operator()(int n) const {
    const D d;
    const int at = n * kLanes;
    hn::Vec<Whole> q;
    if constexpr (B::kBits == 8) {
      const int8_t* row = reinterpret_cast<const int8_t*>(low) + at;
      q = hn::PromoteTo(Whole(), hn::LoadU(hn::Rebind<int8_t, D>(), row));
    } else {
      q = Row(low + at);
      if (kHalf == Half::kUpper) q = hn::ShiftRight<4>(q);
      if (kHalf == Half::kEither) q = hn::Shr(q, hn::Set(Whole(), low_bit));
      if (kHalf != Half::kUpper) q = hn::And(q, hn::Set(Whole(), 15));
    }
    if constexpr (B::kBits == 5 || B::kBits == 6) {
      const auto bits = hn::ShiftRightSame(Row(high + at), high_bit);
      const auto mask = hn::Set(Whole(), (1 << (B::kBits - 4)) - 1);
      q = hn::Or(q, hn::ShiftLeft<4>(hn::And(bits, mask)));
    }
    const V value = hn::ConvertTo(d, q), scale = hn::Load(d, scales + at);
    if (!B::kAdds) return hn::Mul(value, scale);
    const V least = hn::Load(d, leasts + at);
    // Both forms give the same bits, because the product is exact. Add and Mul need no register for
    // `scale` and `least`: they read these from memory.
    return kIsTight ? hn::Add(hn::Mul(value, scale), least) : hn::MulAdd(value, scale, least);
  }

  const uint8_t *low, *high;
  int low_bit, high_bit;
  const float *scales, *leasts;
};

// Reads the 6-bit scale and the 6-bit least value of a group in a Q4_K or Q5_K block.
HWY_INLINE void GroupScale(const uint8_t* rows, int64_t width, int64_t group, hn::Vec<Whole>* scale,
                           hn::Vec<Whole>* least) {
  const auto low = [](hn::Vec<Whole> q, int mask)
                       HWY_ATTR { return hn::And(q, hn::Set(Whole(), mask)); };
  const auto both = Row(rows + (group + 4) * width);
  if (group < 4) {
    *scale = low(Row(rows + group * width), 63);
    *least = low(both, 63);
    return;
  }
  const auto of_scale = hn::ShiftRight<6>(Row(rows + (group - 4) * width));
  const auto of_least = hn::ShiftRight<6>(Row(rows + group * width));
  *scale = hn::Or(low(both, 15), hn::ShiftLeft<4>(of_scale));
  *least = hn::Or(hn::ShiftRight<4>(both), hn::ShiftLeft<4>(of_least));
}

// Writes the multipliers (`scales`) and addends (`leasts`) of one run of inputs, for N vectors of
// outputs.
template <class B, int N>
HWY_INLINE void LoadScales(const B* block, const uint8_t* rows, int64_t width, int64_t at,
                           int64_t run, float* scales, float* leasts) {
  const D d;
  const Float16* halves = reinterpret_cast<const Float16*>(block) + at;
  for (int to = 0; to < N * kLanes; to += kLanes, halves += kLanes, rows += kLanes) {
    V scale = Widen(d, halves);
    V least = B::kHasLeast ? Widen(d, halves + width) : hn::Zero(d);
    if constexpr (B::kBits == 6) {
      const int8_t* of_run = reinterpret_cast<const int8_t*>(rows + (192 + run) * width);
      const auto q = hn::PromoteTo(Whole(), hn::LoadU(hn::Rebind<int8_t, D>(), of_run));
      scale = hn::Mul(scale, hn::ConvertTo(d, q));
    } else if constexpr (B::kIsK) {
      hn::Vec<Whole> of_scale, of_least;
      GroupScale(rows, width, run, &of_scale, &of_least);
      scale = hn::Mul(scale, hn::ConvertTo(d, of_scale));
      least = hn::Neg(hn::Mul(least, hn::ConvertTo(d, of_least)));
    }
    if (B::kZero != 0) least = hn::Mul(scale, hn::Set(d, -static_cast<float>(B::kZero)));
    hn::Store(scale, d, scales + to);
    if (B::kAdds) hn::Store(least, d, leasts + to);
  }
}

template <Half kHalf, class B, class Visitor>
HWY_INLINE void VisitRun(const uint8_t* rows, int64_t width, const RunPlace& place, int64_t count,
                         const float* scales, const float* leasts, Visitor& visitor) {
  const uint8_t* low = rows + place.low * width;
  for (int64_t i = 0; i < count; ++i, low += width) {
    const RunPlace high = HighOf<B>(place, i);
    visitor(InputWeights<B, kHalf, Visitor::kIsTight>{
        low, rows + high.high * width, place.is_upper ? 4 : 0, high.high_bit, scales, leasts});
  }
}

// Prefetches the weights that are kAheadBytes ahead of the current run. It prefetches all rows of a
// block, because the rows are not used in memory order.
template <class B>
HWY_INLINE void PrefetchAhead(const B* block, int64_t width, int64_t run) {
  constexpr int64_t kAheadBytes = 6 << 10, kLine = 64;
  const int64_t share = B::kBytes * width / B::kRuns;
  const B* ahead = block + kAheadBytes + run * share;
  for (int64_t at = 0; at < share; at += kLine) hwy::Prefetch(ahead + at);
}

// Calls the visitor for each input in ascending order, with the InputWeights of N vectors of a
// panel's outputs, beginning at output `at`. Visitor::kIsLong: compile the visitor once for both
// halves of a byte. Visitor::kIsTight: the visitor leaves no register free.
template <int N, class B, class Visitor>
HWY_INLINE void VisitInputs(const B* block, int64_t width, int64_t inputs, int64_t at,
                            bool prefetches, Visitor visitor) {
  alignas(kKernelAlignBytes) float scales[N * kLanes];
  alignas(kKernelAlignBytes) float leasts[B::kAdds ? N * kLanes : 1];
  for (int64_t k = 0; k < inputs; k += B::kValues, block += B::kBytes * width) {
    const uint8_t* rows = reinterpret_cast<const uint8_t*>(block + 2 * B::kHalves * width) + at;
    for (int64_t run = 0; run < B::kRuns && k + run * B::kRunInputs < inputs; ++run) {
      // Except for K types, a block has one scale.
      if (B::kIsK || run == 0) LoadScales<B, N>(block, rows, width, at, run, scales, leasts);
      if (prefetches) PrefetchAhead(block, width, run);
      const RunPlace place = PlaceOf<B>(run);
      const int64_t count = std::min(B::kRunInputs, inputs - k - run * B::kRunInputs);
      if constexpr (Visitor::kIsLong && B::kBits < 8) {
        VisitRun<Half::kEither, B>(rows, width, place, count, scales, leasts, visitor);
      } else if (B::kBits < 8 && place.is_upper) {
        VisitRun<Half::kUpper, B>(rows, width, place, count, scales, leasts, visitor);
      } else {
        VisitRun<Half::kLower, B>(rows, width, place, count, scales, leasts, visitor);
      }
    }
  }
}

}  // namespace blocks
}  // namespace HWY_NAMESPACE
}  // namespace hearth
HWY_AFTER_NAMESPACE();
#endif  // HEARTH_KERNELS_VECTORS

#endif  // HEARTH_WORKER_KERNELS_BLOCKS_INL_H_
