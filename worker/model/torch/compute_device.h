// Chooses the device and the dtype of a model from the caller's options.
//
// Private to hearth_model: it includes ATen. Pure functions of the options and the machine's flags,
// never of a timing: equal machines choose equally.
#ifndef HEARTH_WORKER_MODEL_TORCH_COMPUTE_DEVICE_H_
#define HEARTH_WORKER_MODEL_TORCH_COMPUTE_DEVICE_H_

#include <c10/core/Device.h>

#include <string>

#include "absl/status/statusor.h"
#include "worker/model/torch/layers.h"

namespace hearth {

// `device`: cpu, cuda or cuda:N. `dtype`: float32, bfloat16 or auto (bfloat16 on CUDA and on a CPU
// with AMX, else float32). kInvalidArgument: another name; kFailedPrecondition: this machine or
// this libtorch does not have the device.
absl::StatusOr<Compute> ChooseCompute(const std::string& device, const std::string& dtype);

// Besides the model and its shapes, these two strings determine which kernels run; they enter the
// exact fingerprint. Pure functions of the machine and its libraries.

// Returns, for example, "libtorch 2.13.0, MKL 2024.2, oneDNN 3.12.0"; for a CUDA device, "libtorch
// 2.13.0, CUDA 12080".
std::string ComputeVersion(const c10::Device& device);

// Returns, for example, "AVX512, AuthenticAMD, oneDNN bf16: avx512_f avx512_bf16 avx2 fma3": the
// level that libtorch chose for its own kernels (at::get_cpu_capability); the vendor, by which MKL
// chooses; the types for which oneDNN has kernels here, which shows its level; and the instruction
// sets among which both may choose float32 and bfloat16 kernels. Integer instruction sets are left
// out: they would separate machines that compute the same bits.
std::string CpuCapability();

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_TORCH_COMPUTE_DEVICE_H_
