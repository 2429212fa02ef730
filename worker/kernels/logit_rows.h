// Vectorized scans of a row of logits for the sampler: the greatest logit, the logits above a
// bound, and the sums of their weights.
//
// The first two scans are exact. The sums only locate a sampled token, within kWeightError; the
// sampler then computes the few weights that matter itself.
//
// Thread safety: reentrant.
#ifndef HEARTH_WORKER_KERNELS_LOGIT_ROWS_H_
#define HEARTH_WORKER_KERNELS_LOGIT_ROWS_H_

#include <cstdint>

namespace hearth {

struct LogitScan {
  bool all_finite = false;
  int64_t greatest = -1;  // index of the first greatest logit; undefined unless all_finite
};

// REQUIRES: count >= 1.
LogitScan ScanLogits(const float* logits, int64_t count);

// Returns the index of the first logit at or after `begin` that is greater than `bound`, or
// `count`.
int64_t NextGreater(const float* logits, int64_t begin, int64_t count, float bound);

constexpr int64_t kWeightBlock = 1024;
// Error bound of a sum: kWeightError * (sum of all weights) for each logit of the row. It covers
// any order of adding doubles, and an exp within two units of its last place. A weight below 1e-300
// counts as 1e-300.
constexpr double kWeightError = 0x1p-51;

// Writes exp((logit - greatest) / temperature), summed for each block: sums[(count + 1023) / 1024].
// REQUIRES: all logits are finite and at most `greatest`; temperature > 0.
void SumWeights(const float* logits, int64_t count, double greatest, double temperature,
                double* sums);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_LOGIT_ROWS_H_
