// The cost of computing a token, as far as its model's fingerprint tells: the multiply-adds of the
// matrices that it goes through. The seconds that a restore saves are in proportion to it on one
// kind of machine; what kind that is nobody knows. Pure functions.
#ifndef HEARTH_CACHE_STORE_CATALOG_COMPUTE_COST_H_
#define HEARTH_CACHE_STORE_CATALOG_COMPUTE_COST_H_

#include "proto/fingerprint.h"
#include "proto/kv_layout.h"

namespace hearth {

// Without the embedding, the head and attention itself, which a prefill spends little on. Where the
// fingerprint lacks what it takes: an estimate from the size of its keys and values.
double MultiplyAddsPerToken(const Fingerprint& fingerprint, const KvLayout& layout);

// log2 in halves: the difference of two says how much dearer a token of the one is.
int CostStepsOf(double multiply_adds);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_CATALOG_COMPUTE_COST_H_
