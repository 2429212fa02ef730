#include "worker/model/torch/compute_device.h"

#include <ATen/Context.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace hearth {
namespace {

// AMX with bfloat16: CPUID leaf 7, EDX bits 22 and 24 (Intel SDM, volume 2A).
bool CpuHasAmx() {
#if defined(__x86_64__)
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx & kAmxBf16) != 0 && (edx & kAmxTile) != 0;
#else
  return false;
#endif
}

absl::StatusOr<at::Device> ChooseDevice(absl::string_view name) {
  if (name == "cpu") return at::Device(at::kCPU);
  int index = 0;
  const bool numbered = absl::StartsWith(name, "cuda:") &&
                        absl::SimpleAtoi(name.substr(5), &index) && index >= 0 && index < 64;
  if (name != "cuda" && !numbered) {
    return absl::InvalidArgumentError(
        absl::StrCat("device \"", name, "\" is not one of cpu, cuda, cuda:N"));
  }
  if (!at::hasCUDA()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "device ", name, ": this libtorch has no CUDA, or the machine has no GPU; use cpu"));
  }
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(index));
}

}  // namespace

absl::StatusOr<Compute> ChooseCompute(const std::string& device, const std::string& dtype) {
  const absl::StatusOr<at::Device> chosen = ChooseDevice(device);
  if (!chosen.ok()) return chosen.status();
  Compute compute;
  compute.device = *chosen;
  if (dtype == "bfloat16") {
    compute.dtype = at::kBFloat16;
  } else if (dtype == "auto") {
    const bool fast = !compute.device.is_cpu() || CpuHasAmx();
    compute.dtype = fast ? at::kBFloat16 : at::kFloat;
  } else if (dtype != "float32") {
    return absl::InvalidArgumentError(
        absl::StrCat("dtype \"", dtype, "\" is not one of auto, float32, bfloat16"));
  }
  return compute;
}

}  // namespace hearth
