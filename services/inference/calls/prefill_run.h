// Runs the requests of the engine that one Prefill request needs.
//
// A boundary that the store lacks below a restored one is computed by a request of its own, which
// ends there; if such a request fails, the outcome's note says which boundaries are missing.
// Thread safety: any thread.
#ifndef HEARTH_SERVICES_INFERENCE_CALLS_PREFILL_RUN_H_
#define HEARTH_SERVICES_INFERENCE_CALLS_PREFILL_RUN_H_

#include <memory>

#include "services/inference/calls/generator.h"

namespace hearth {

// An error: the engine refused `request`, and the sink gets no event. `progress_pause`:
// InfiniteDuration: no progress is reported.
absl::Status RunPrefill(Engine* engine, EngineRequest request, absl::Duration progress_pause,
                        std::shared_ptr<GenerationSink> sink);

}  // namespace hearth

#endif  // HEARTH_SERVICES_INFERENCE_CALLS_PREFILL_RUN_H_
