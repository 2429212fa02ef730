// Scans of a whole row of logits for the sampler, in vectors: the greatest, those above a bound,
// the sums of their weights.
//
// The first two are exact. The sums do not define a sampled token: they locate it within
// kWeightError, and the sampler computes the few weights that matter itself.
//
// Thread safety: reentrant.
#ifndef HEARTH_WORKER_KERNELS_LOGIT_ROWS_H_
#define HEARTH_WORKER_KERNELS_LOGIT_ROWS_H_

#include <cstdint>

namespace hearth {

struct LogitScan {
  bool all_finite = false;
  int64_t greatest = -1;  // the first of the greatest logits; of no meaning unless all are finite
};

// REQUIRES: count >= 1.
LogitScan ScanLogits(const float* logits, int64_t count);

// The first at or behind `begin` that is greater than `bound`; `count` where there is none.
int64_t NextGreater(const float* logits, int64_t begin, int64_t count, float bound);

constexpr int64_t kWeightBlock = 1024;
// The error as a share of the sum of all weights, for each logit of the row: covers any order of
// adding doubles, and an exp within two units of its last place. A weight of less than 1e-300
// counts as so much.
constexpr double kWeightError = 0x1p-51;

// exp((logit - greatest) / temperature), summed for each block: sums[(count + 1023) / 1024].
// REQUIRES: all logits are finite and at most `greatest`, temperature > 0.
void SumWeights(const float* logits, int64_t count, double greatest, double temperature,
                double* sums);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_LOGIT_ROWS_H_
