#include "worker/engine/engine.h"

#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/engine/engine_impl.h"
#include "worker/engine/engine_loader.h"

namespace hearth {

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options) {
  if (absl::Status status = options.Validate(); !status.ok()) return status;
  try {
    absl::StatusOr<LoadedModel> loaded = LoadModel(options);
    if (!loaded.ok()) return loaded.status();
    auto engine = std::make_unique<EngineImpl>(options, std::move(loaded->model),
                                               std::move(loaded->why_not_invariant));
    if (absl::Status status = engine->Start(); !status.ok()) return status;
    return engine;
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(options.model_dir, ": ", error.what()));
  }
}

}  // namespace hearth
