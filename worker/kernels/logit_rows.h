// Vectorized scans of a row of logits for the sampler: the greatest logit, the next logit above a
// bound, and sums of softmax weights.
//
// ScanLogits and NextGreater are exact. The sums of SumWeights have an error of up to kWeightError;
// the sampler uses them only to locate the sampled token, and then computes the few weights near
// that token itself.
//
// Thread safety: reentrant.
#ifndef HEARTH_WORKER_KERNELS_LOGIT_ROWS_H_
#define HEARTH_WORKER_KERNELS_LOGIT_ROWS_H_

#include <cstdint>

namespace hearth {

struct LogitScan {
  bool all_finite = false;
  int64_t greatest = -1;  // index of the first greatest logit; valid only if all_finite
};

// REQUIRES: count >= 1.
LogitScan ScanLogits(const float* logits, int64_t count);

// Returns the index of the first logit in [begin, count) that is greater than `bound`; returns
// `count` if there is none.
int64_t NextGreater(const float* logits, int64_t begin, int64_t count, float bound);

constexpr int64_t kWeightBlock = 1024;
// Error bound of a sum: kWeightError * (sum of all weights) for each logit of the row. The bound
// covers any order of adding doubles, and an exp whose error is at most two units in the last
// place. A weight below 1e-300 counts as 1e-300.
constexpr double kWeightError = 0x1p-51;

// Writes, for each block of kWeightBlock logits, the sum of exp((logit - greatest) / temperature):
// sums[(count + 1023) / 1024]. REQUIRES: all logits are finite and at most `greatest`; temperature
// > 0.
void SumWeights(const float* logits, int64_t count, double greatest, double temperature,
                double* sums);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_LOGIT_ROWS_H_
