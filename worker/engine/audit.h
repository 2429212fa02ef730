// Audits: compare a cache's bytes with the bytes that this worker computes.
//
// A worker that publishes wrong bytes under right keys would be believed by all others: keys and
// digests only prove that the bytes are those that were published. Comparing is the only proof that
// they are right. Thread safety: pure functions; each cache is used by one thread at a time.
#ifndef HEARTH_WORKER_ENGINE_AUDIT_H_
#define HEARTH_WORKER_ENGINE_AUDIT_H_

#include <cstdint>
#include <vector>

#include "proto/kv_layout.h"
#include "worker/model/sequence_kv.h"

namespace hearth {

// In the portable class keys and values of one layer and object agree within rounding: the root of
// the sum of squared differences, over that of the squares, is at most this. Rounding at each of
// some 60 layers adds up to about a thousandth in float32 and a few hundredths in bfloat16; rows of
// another token differ by about 1.
inline constexpr double kFloat32Tolerance = 0.01;
inline constexpr double kHalfTolerance = 0.125;

// The objects of `boundary` whose rows, as far as a restore reads them, differ: in a bit in the
// exact class, by more than rounding in the portable one. Ascending.
// REQUIRES: both caches are of `layout` and have the length `boundary`.
std::vector<ObjectId> DifferingObjects(const KvLayout& layout, uint32_t boundary,
                                       const SequenceKv& computed, const SequenceKv& restored);

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_AUDIT_H_
