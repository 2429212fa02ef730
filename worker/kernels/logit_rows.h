// What a sampler asks of a whole row of logits, in vectors: the greatest, those above a bound, what
// their weights come to.
//
// The first two have one answer. Weights are not what defines a sampled token's bits: they say
// within kWeightError where it lies, and who needs more computes the few that matter himself.
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
// Of the sum of all weights, for each logit of the row: what any order of adding doubles, and an
// exp within two units of its last place, may be off by. A weight of less than 1e-300 counts as
// so much.
constexpr double kWeightError = 0x1p-51;

// exp((logit - greatest) / temperature), summed for each block: sums[(count + 1023) / 1024].
// REQUIRES: all logits are finite and at most `greatest`, temperature > 0.
void SumWeights(const float* logits, int64_t count, double greatest, double temperature,
                double* sums);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_LOGIT_ROWS_H_
