#include "worker/engine.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/engine_impl.h"
#include "worker/gemma_runner.h"

namespace hearth {

absl::Status EngineOptions::Validate() const {
  if (model_dir.empty()) return absl::InvalidArgumentError("model: no folder given");
  if (chunk_tokens < kMinChunkTokens || chunk_tokens > kMaxChunkTokens ||
      (chunk_tokens & (chunk_tokens - 1)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("chunk_tokens: ", chunk_tokens,
                                                   " is not a power of two in [", kMinChunkTokens,
                                                   ", ", kMaxChunkTokens, "]"));
  }
  if (threads < 0) return absl::InvalidArgumentError(absl::StrCat("threads: ", threads, " < 0"));
  if (max_running < 1) return absl::InvalidArgumentError("max_running: at least 1");
  if (fetch_budget < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("fetch_budget: negative");
  }
  if (publish_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("publish_timeout: not positive");
  }
  if (compute_wait < absl::ZeroDuration() || compute_lease < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("compute_wait, compute_lease: negative");
  }
  if (!(audit_rate >= 0 && audit_rate <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("audit_rate: ", audit_rate, " is not a share, from 0 to 1"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const EngineOptions& options) {
  if (absl::Status status = options.Validate(); !status.ok()) return status;
  GemmaOptions gemma_options;
  gemma_options.device = options.device;
  gemma_options.dtype = options.dtype;
  gemma_options.threads = options.threads;
  gemma_options.digest_cache_dir = options.digest_cache_dir;
  try {
    absl::StatusOr<std::unique_ptr<Gemma>> gemma = Gemma::Load(options.model_dir, gemma_options);
    if (!gemma.ok()) return gemma.status();
    auto model = std::make_unique<GemmaRunner>(*std::move(gemma), options.max_running);
    auto engine = std::make_unique<EngineImpl>(options, std::move(model));
    if (absl::Status status = engine->Start(); !status.ok()) return status;
    return engine;
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(options.model_dir, ": ", error.what()));
  }
}

}  // namespace hearth
