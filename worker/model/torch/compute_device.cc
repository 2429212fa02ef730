#include "worker/model/torch/compute_device.h"

#include <ATen/Context.h>
#include <ATen/Version.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/cpu/Utils.h>
#include <cpuid.h>
#include <torch/headeronly/version.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace hearth {
namespace {

// Returns whether the CPU has AMX with bfloat16: CPUID leaf 7, EDX bits 22 and 24 (Intel SDM,
// volume 2A).
bool CpuHasAmx() {
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  return (edx & kAmxBf16) != 0 && (edx & kAmxTile) != 0;
}

absl::StatusOr<at::Device> ChooseDevice(absl::string_view name) {
  if (name == "cpu") return at::Device(at::kCPU);
  int index = 0;
  const bool numbered = absl::StartsWith(name, "cuda:") &&
                        absl::SimpleAtoi(name.substr(5), &index) && index >= 0 && index < 64;
  if (name != "cuda" && !numbered) {
    return absl::InvalidArgumentError(
        absl::StrCat("device: must be one of cpu, cuda, cuda:N; got \"", name, "\""));
  }
  if (!at::hasCUDA()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "device ", name,
        ": this libtorch has no CUDA, or the machine has no GPU or no driver for it; use "
        "--device cpu"));
  }
  const int gpus = at::detail::getCUDAHooks().getNumGPUs();
  if (index >= gpus) {
    return absl::InvalidArgumentError(absl::StrCat("device ", name, ": this process has ", gpus,
                                                   " GPUs: use cuda:0 to cuda:", gpus - 1));
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
        absl::StrCat("dtype: must be one of auto, float32, bfloat16; got \"", dtype, "\""));
  }
  return compute;
}

namespace {

// Returns the first number with a decimal point in a library's description, such as "3.12.0".
std::string VersionIn(absl::string_view text) {
  for (size_t begin = 0; begin < text.size(); ++begin) {
    if (!absl::ascii_isdigit(text[begin])) continue;
    size_t end = begin;
    while (end < text.size() && (absl::ascii_isdigit(text[end]) || text[end] == '.')) ++end;
    const absl::string_view number = text.substr(begin, end - begin);
    if (number.find('.') != absl::string_view::npos) return std::string(number);
    begin = end;
  }
  return "none";
}

std::string CpuVendor() {
  unsigned level = 0, name[3] = {};
  if (__get_cpuid(0, &level, &name[0], &name[2], &name[1]) == 0) return "unknown vendor";
  char text[sizeof(name)];
  std::memcpy(text, name, sizeof(name));
  return std::string(text, sizeof(text));
}

// Asks oneDNN whether it supports a type, through an operator of libtorch, because libtorch does
// not export oneDNN's functions.
bool OneDnnSupports(const char* question) {
  const auto found = c10::Dispatcher::singleton().findSchema({question, ""});
  return found.has_value() && found->typed<bool()>().call();
}

}  // namespace

std::string ComputeVersion(const c10::Device& device) {
  const std::string torch = absl::StrCat("libtorch ", TORCH_VERSION);
  if (!device.is_cpu()) {
    const auto& cuda = at::detail::getCUDAHooks();
    return absl::StrCat(torch, ", CUDA ", cuda.hasCUDART() ? cuda.versionCUDART() : 0);
  }
  return absl::StrCat(torch, ", MKL ", VersionIn(at::get_mkl_version()), ", oneDNN ",
                      VersionIn(at::get_mkldnn_version()));
}

std::string CpuCapability() {
  std::vector<std::string> sets;
  const auto flags = at::cpu::get_cpu_capabilities();
  for (const char* name : {"avx10_2", "amx_bf16", "amx_fp16", "avx512_fp16", "avx512_bf16",
                           "avx512_f", "avx_ne_convert", "avx2", "fma3", "sve", "sve2", "bf16"}) {
    const auto flag = flags.find(name);
    if (flag != flags.end() && flag->second.isBool() && flag->second.toBool()) {
      sets.push_back(name);
    }
  }
  std::string types;
  if (OneDnnSupports("mkldnn::_is_mkldnn_bf16_supported")) types += " bf16";
  if (OneDnnSupports("mkldnn::_is_mkldnn_fp16_supported")) types += " fp16";
  return absl::StrCat(at::get_cpu_capability(), ", ", CpuVendor(), ", oneDNN",
                      types.empty() ? " float32 only" : types, ": ", absl::StrJoin(sets, " "));
}

}  // namespace hearth
