// Making a call's prompt on a pool: text becomes tokens there, not on gRPC's threads.
//
// Thread safety: pure functions, apart from the pool.
#ifndef HEARTH_SERVICES_PROMPT_WORK_H_
#define HEARTH_SERVICES_PROMPT_WORK_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/fair_pool.h"
#include "worker/engine.h"
#include "worker/prompt.h"

namespace hearth {

using MakePrompt = std::function<absl::StatusOr<Prompt>()>;

// Runs `make`, which reads a message of `bytes`, in its tenant's turn, then `done` with `request`
// and its prompt or with the error; `done` alone, at once, when too much waits. It is called once.
void PreparePrompt(FairPool* pool, uint64_t bytes, MakePrompt make, EngineRequest request,
                   std::function<void(absl::StatusOr<EngineRequest>)> done);

}  // namespace hearth

#endif  // HEARTH_SERVICES_PROMPT_WORK_H_
