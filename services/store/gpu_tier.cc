#include "services/store/gpu_tier.h"

#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "cache_store/memory/cuda_memory.h"
#include "services/serving/logging.h"

namespace hearth {
namespace {

std::optional<int> CudaIndex(absl::string_view device) {
  int index = 0;
  if (!absl::ConsumePrefix(&device, "cuda")) return std::nullopt;
  if (absl::ConsumePrefix(&device, ":") && !absl::SimpleAtoi(device, &index)) return std::nullopt;
  return index;
}

void LogOff(const absl::Status& why) {
  Log(LogLevel::kWarning, "the gpu tier is off", {{"reason", std::string(why.message())}});
}

}  // namespace

void AddGpuTier(uint64_t bytes, StoreOptions* options) {
  if (bytes == 0) return;
  absl::StatusOr<std::unique_ptr<DeviceMemory>> memory = OpenCudaMemory(0, bytes);
  if (!memory.ok()) return LogOff(memory.status());
  options->device = *std::move(memory);
  options->on_device_lost = LogOff;
  Log(LogLevel::kInfo, "gpu tier", {{"device", options->device->name()}, {"bytes", bytes}});
}

ImportDevice GpuImporter(const std::string& device) {
  const std::optional<int> index = CudaIndex(device);
  if (!index.has_value()) return nullptr;
  return [index = *index](const DeviceMemoryHandle& handle) {
    return ImportCudaMemory(index, handle);
  };
}

}  // namespace hearth
