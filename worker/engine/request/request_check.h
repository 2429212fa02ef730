// Checks of requests against the limits of the model and the worker. Pure functions; thread safe.
#ifndef HEARTH_WORKER_ENGINE_REQUEST_REQUEST_CHECK_H_
#define HEARTH_WORKER_ENGINE_REQUEST_REQUEST_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/engine/request/engine_options.h"
#include "worker/engine/request/engine_request.h"
#include "worker/engine/runner/model_runner.h"
#include "worker/model/model_config.h"

namespace hearth {

// Checks the request against the model's limits. kInvalidArgument names the field, its value and
// the limit.
absl::Status CheckRequest(const EngineRequest& request, const ModelConfig& config);

// kInvalidArgument: the request needs more than `max_running` running slots.
absl::Status CheckPlaces(const EngineRequest& request, uint32_t max_running);

// Sets the fields that the request leaves unset to the defaults of the worker (`options`) and of
// `model`, whose layout is `layout`. kInvalidArgument names the field. Calling it twice has no
// further effect.
absl::Status CompleteRequest(const EngineOptions& options, const ModelRunner& model,
                             const KvLayout& layout, EngineRequest* request);

// kInvalidArgument: `tokens` exceeds kMostSpeculate.
absl::Status CheckSpeculate(uint32_t tokens);

// kInvalidArgument: `name` is neither empty nor an adapter's name; the error lists the adapters.
absl::Status CheckAdapterName(const std::string& name, absl::Span<const ModelAdapter> adapters);

// Limit of tenant names, which should be short.
inline constexpr size_t kMaxTenantBytes = 256;

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_REQUEST_REQUEST_CHECK_H_
