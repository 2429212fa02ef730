#include "worker/engine/request/engine_options.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/plain_name.h"
#include "worker/device/open_device.h"
#include "worker/engine/request/request_check.h"

namespace hearth {
namespace {

constexpr size_t kMaxAdapterNameBytes = 64;

}  // namespace

absl::Status CacheTerms::Validate() const {
  if (fetch_budget < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("fetch_budget: must not be negative");
  }
  if (publish_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("publish_timeout: must be positive");
  }
  if (compute.wait < absl::ZeroDuration() || compute.lease < absl::ZeroDuration()) {
    return absl::InvalidArgumentError("compute_wait, compute_lease: must not be negative");
  }
  if (!(audit_rate >= 0 && audit_rate <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("audit_rate: must be in [0, 1]; got ", audit_rate));
  }
  return absl::OkStatus();
}

std::vector<std::pair<std::string, std::string>> EngineOptions::ChoicesOfInvariant() const {
  std::vector<std::pair<std::string, std::string>> given;
  if (weights != WeightsChoice::kAuto) given.emplace_back("weights", WeightsChoiceName(weights));
  if (arithmetic != ArithmeticChoice::kAuto) {
    given.emplace_back("arithmetic", ArithmeticChoiceName(arithmetic));
  }
  if (kv_dtype != KvDtypeChoice::kAuto) {
    given.emplace_back("kv-dtype", kv_dtype == KvDtypeChoice::kBFloat16 ? "bfloat16" : "float32");
  }
  return given;
}

std::string EngineOptions::FlagsOfInvariant() const {
  std::vector<std::string> given;
  if (step_tokens > 0) given.push_back("--step-tokens");
  if (speculate > 0 && speculate != kDefaultSpeculate) given.push_back("--speculate");
  return absl::StrJoin(given, " and ");
}

absl::Status EngineOptions::Validate() const {
  if (model_dir.empty())
    return absl::InvalidArgumentError("model: must name a folder or GGUF file");
  if (chunk_tokens < kMinChunkTokens || chunk_tokens > kMaxChunkTokens ||
      (chunk_tokens & (chunk_tokens - 1)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("chunk_tokens: must be a power of two in [",
                                                   kMinChunkTokens, ", ", kMaxChunkTokens,
                                                   "]; got ", chunk_tokens));
  }
  const bool is_emulated = device == kEmulatedDevice;
  if (is_emulated &&
      (exactness == ExactnessChoice::kExact || exactness == ExactnessChoice::kPortable)) {
    return absl::InvalidArgumentError(
        "device: emulated supports exactness invariant only: use --exactness auto");
  }
  if (is_emulated || exactness == ExactnessChoice::kInvariant) {
    if (absl::Status may = CheckInvariantDtype(dtype); !may.ok()) return may;
  }
  for (const auto& [flag, value] : ChoicesOfInvariant()) {
    if (absl::Status may = CheckFlag(flag, value, exactness, dtype); !may.ok()) return may;
  }
  for (const auto& [name, dir] : adapters) {
    if (name.empty() || name.size() > kMaxAdapterNameBytes || !IsPlainName(name)) {
      return absl::InvalidArgumentError(
          absl::StrCat("adapter: a name must be 1 to ", kMaxAdapterNameBytes,
                       " letters, digits, \".\", \"_\" and \"-\"; got \"", name, "\""));
    }
  }
  if (threads < 0)
    return absl::InvalidArgumentError(absl::StrCat("threads: must be at least 0; got ", threads));
  if (max_running > kMaxRunning) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_running: must be in [0, ", kMaxRunning, "]; got ", max_running));
  }
  if (step_tokens != 0 &&
      (step_tokens < kMinSharedStepTokens || step_tokens > kMaxSharedStepTokens)) {
    return absl::InvalidArgumentError(absl::StrCat("step_tokens: must be 0 or in [",
                                                   kMinSharedStepTokens, ", ", kMaxSharedStepTokens,
                                                   "]; got ", step_tokens));
  }
  if (absl::Status may = CheckSpeculate(speculate); !may.ok()) return may;
  return cache.Validate();
}

}  // namespace hearth
