// InvariantPart: the tokens that a step of an InvariantGemma appends to one sequence. PrepareParts
// checks the parts of a step and makes memory for them.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_PART_H_
#define HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_PART_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/model/invariant/invariant_kv.h"
#include "worker/model/model_config.h"

namespace hearth {

// `logits` receives those of the last `want` tokens: [want][vocab]; may be null where none are
// wanted.
struct InvariantPart {
  InvariantKv* kv = nullptr;
  absl::Span<const int32_t> tokens;
  int want = 0;
  std::vector<float>* logits = nullptr;
};

// The most logits that a step gives: 1 GiB of them.
inline constexpr int64_t kStepLogitsMax = int64_t{1} << 28;

// Checks the parts of a step of the model of this number, then makes room for its rows in all Kv.
// After an error nothing has changed: those of InvariantGemma::Step.
absl::Status PrepareParts(absl::Span<const InvariantPart> parts, const ModelConfig& config,
                          uint64_t model);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_INVARIANT_PART_H_
