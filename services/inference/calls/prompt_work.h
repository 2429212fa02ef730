// Makes a call's prompt on a pool: parses its message and tokenizes its text there, not on gRPC's
// threads.
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

// Makes the engine's request for a call, its prompt included; or an error.
using MakeRequest = std::function<absl::StatusOr<EngineRequest>()>;

// Runs `make`, which reads a message of `bytes`, in its tenant's turn, then `done` with the result;
// when too much waits, calls `done` at once with an error. `done` is called once.
void PrepareRequest(FairPool* pool, const std::string& tenant, uint64_t bytes, MakeRequest make,
                    std::function<void(absl::StatusOr<EngineRequest>)> done);

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_PROMPT_WORK_H_
