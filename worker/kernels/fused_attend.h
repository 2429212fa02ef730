// Attention on tensor cores ("bf16/16/2"): products of queries with keys and of softmax weights
// with values are chains of FusedDot (fused_dot.h). AddAttend (attend.h) uses these functions if
// AttendShape::fuses is true; on devices, Bf16AttendProgram (worker/device/bf16_attend_program.h)
// gives the same bits.
//
// The order of operations for one row, one head and one split; bf16(x) is the nearest bfloat16,
// ties to even:
//   score[j] = softcap(c), where c starts at +0 and adds 16 elements of bf16(query) times key j
//     with each FusedDot, in ascending order
//   m = the largest of these scores; p[j] = bf16(exp(score[j] - m))
//   l = sum of p[j]: sixteen partial sums by j % 16, added in a tree. l adds the rounded weights,
//     so that a row's result is a weighted mean of the values.
//   o[d] = +0, then adds p[j] * value[j][d] of 16 keys with each FusedDot. Each group of 16 begins
//     at a multiple of 16 within the split; groups are in ascending order.
// Splits are combined as in attend.h, in float32. Quantized keys and values (sealed blocks) are
// rounded to bfloat16 after dequantization.
//
// A key outside a row's range has weight +0 in the row's chains. If its value is finite, it changes
// no bit: a product that is zero has no exponent and adds nothing (rules 2 and 3 of fused_dot.h).
// A group in which all weights are +0 returns its sum unchanged: the sum's own exponent is the
// largest, so the cut at 25 bits keeps all 23 fraction bits; and no sum is -0 (rule 4). So a row's
// bits do not depend on the other rows of its tile. Therefore stored values are finite
// (exact::FiniteBf16), and keys outside the ranges of all rows are read as zeros.
//
// Thread safety: pure functions. Private to worker/kernels.
#ifndef HEARTH_WORKER_KERNELS_FUSED_ATTEND_H_
#define HEARTH_WORKER_KERNELS_FUSED_ATTEND_H_

#include <cstdint>

#include "worker/kernels/attend.h"
#include "worker/kernels/attend_plan.h"

namespace hearth {

// Keys or values of one KV head in one split: [split][head_dim] of float or BFloat16. Keys outside
// `any` are read as zeros.
template <typename T>
struct FusedKeys {
  const T* data;
  int64_t head_dim;
  SeenKeys any;  // the keys that at least one row attends to
};

// Computes the scores, without softcap, of the keys [begin, end) for a tile of `rows` rows. Writes
// scores[row][key]. REQUIRES: begin and end are multiples of 16.
template <typename T>
void FusedScores(const float* const* queries, int64_t rows, const FusedKeys<T>& keys, int64_t begin,
                 int64_t end, float* const* scores);

// Rounds weights [begin, end) of one row to bfloat16. Returns their sum.
float RoundWeights(int64_t begin, int64_t end, float* weights);

// Adds the values that row i attends to, seen[i], to outputs[i]: [head_dim]. weights[i][key]:
// rounded softmax weights; +0 outside seen[i], as far as the groups of 16 of seen[i] reach.
template <typename T>
void FusedValues(const float* const* weights, const SeenKeys* seen, int64_t rows,
                 const FusedKeys<T>& values, float* const* outputs);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_FUSED_ATTEND_H_
