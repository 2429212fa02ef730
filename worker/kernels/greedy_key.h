// Greedy keys: a logit and its token id as one integer, so that the greatest key of a row is the
// token that greedy sampling chooses (ScanLogits): the lowest id of the greatest logit, where -0
// equals +0. If a logit is not finite, the greatest key is the lowest such id.
//
// Thread safety: pure functions.
#ifndef HEARTH_WORKER_KERNELS_GREEDY_KEY_H_
#define HEARTH_WORKER_KERNELS_GREEDY_KEY_H_

#include <cstdint>

#include "worker/kernels/functions.h"

namespace hearth {

// Bits 32 to 63: the rank of the logit. Bits 0 to 31: the complement of the id. 0 is no token.
using GreedyKey = uint64_t;

// Rank of logits that are not finite. A finite logit has a lower rank, and at least rank 1.
inline constexpr uint32_t kNotFiniteRank = 0xffffffffu;

HEARTH_HOST_DEVICE GreedyKey MakeGreedyKey(float logit, int32_t id) {
  uint32_t bits = exact::BitsOf(logit);
  if (bits == 0x80000000u) bits = 0;
  const bool is_finite = (bits & 0x7f800000u) != 0x7f800000u;
  const uint32_t ordered = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  const uint32_t rank = is_finite ? ordered : kNotFiniteRank;
  return static_cast<uint64_t>(rank) << 32 | static_cast<uint32_t>(~id);
}

inline int32_t IdOfKey(GreedyKey key) { return static_cast<int32_t>(~static_cast<uint32_t>(key)); }
inline bool IsFiniteKey(GreedyKey key) { return key >> 32 != kNotFiniteRank; }

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_GREEDY_KEY_H_
