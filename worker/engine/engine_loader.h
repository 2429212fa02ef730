// Loads an engine's model: the class that its options ask for, or that this machine can have.
//
// Thread safety: a pure function, apart from the files. Errors name file, tensor, field or flag.
#ifndef HEARTH_WORKER_ENGINE_ENGINE_LOADER_H_
#define HEARTH_WORKER_ENGINE_ENGINE_LOADER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/engine/request/engine_options.h"
#include "worker/engine/runner/model_runner.h"

namespace hearth {

struct LoadedModel {
  std::unique_ptr<ModelRunner> model;
  std::string why_not_invariant;  // empty where it is
};

// REQUIRES: the options are valid.
absl::StatusOr<LoadedModel> LoadModel(const EngineOptions& options);

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_ENGINE_LOADER_H_
