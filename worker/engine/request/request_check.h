// Checks a request against the model's limits before anything is spent on it. Pure, thread safe.
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

// Whether a worker of so many places has enough for it.
absl::Status CheckPlaces(const EngineRequest& request, uint32_t max_running);

// Sets what a request leaves to the worker, whose `options` these are, and to its model, which has
// `layout`; kInvalidArgument names the field. Done again it changes nothing.
absl::Status CompleteRequest(const EngineOptions& options, const ModelRunner& model,
                             const KvLayout& layout, EngineRequest* request);

// kInvalidArgument: more than may be guessed.
absl::Status CheckSpeculate(uint32_t tokens);

// Whether one of the adapters has the name, or that is empty; kInvalidArgument lists them.
absl::Status CheckAdapterName(const std::string& name, absl::Span<const ModelAdapter> adapters);

// An identity is a name, not a document.
inline constexpr size_t kMaxTenantBytes = 256;

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_REQUEST_REQUEST_CHECK_H_
