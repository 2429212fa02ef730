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

// kInvalidArgument names the field, its value and the limit.
absl::Status CheckRequest(const EngineRequest& request, const ModelConfig& config);

// kInvalidArgument if the request needs more places than `max_running`.
absl::Status CheckPlaces(const EngineRequest& request, uint32_t max_running);

// Sets the fields that the request leaves to the worker (`options`) and its model (with `layout`).
// kInvalidArgument names the field. Idempotent.
absl::Status CompleteRequest(const EngineOptions& options, const ModelRunner& model,
                             const KvLayout& layout, EngineRequest* request);

// kInvalidArgument if `tokens` is above the limit.
absl::Status CheckSpeculate(uint32_t tokens);

// kInvalidArgument, which lists the adapters, unless `name` is empty or an adapter's name.
absl::Status CheckAdapterName(const std::string& name, absl::Span<const ModelAdapter> adapters);

// A tenant is a short name.
inline constexpr size_t kMaxTenantBytes = 256;

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_REQUEST_REQUEST_CHECK_H_
