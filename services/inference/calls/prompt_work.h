// Making a call's prompt on a pool: bytes become a message and text becomes tokens there, not on
// gRPC's threads.
//
// Thread safety: pure functions, apart from the pool.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_PROMPT_WORK_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_PROMPT_WORK_H_

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "services/serving/calls/fair_pool.h"
#include "worker/engine/engine.h"

namespace hearth {

// The engine's request for a call, its prompt included, or why there is none.
using MakeRequest = std::function<absl::StatusOr<EngineRequest>()>;

// Runs `make`, which reads a message of `bytes`, in its tenant's turn, then `done` with what came
// of it; `done` alone, at once, when too much waits. It is called once.
void PrepareRequest(FairPool* pool, const std::string& tenant, uint64_t bytes, MakeRequest make,
                    std::function<void(absl::StatusOr<EngineRequest>)> done);

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_PROMPT_WORK_H_
