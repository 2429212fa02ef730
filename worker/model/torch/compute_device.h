// Chooses the device and the dtype of a model, from the caller's options.
//
// Private to hearth_model: it includes ATen. Pure functions of the options and the machine's flags,
// never of a timing: equal machines choose alike.
#ifndef HEARTH_WORKER_MODEL_TORCH_COMPUTE_DEVICE_H_
#define HEARTH_WORKER_MODEL_TORCH_COMPUTE_DEVICE_H_

#include <c10/core/Device.h>

#include <string>

#include "absl/status/statusor.h"
#include "worker/model/torch/layers.h"

namespace hearth {

// `device`: cpu, cuda or cuda:N. `dtype`: auto (bfloat16 on CUDA and on a CPU with AMX, else
// float32), float32, bfloat16. kInvalidArgument for other words, kFailedPrecondition for a device
// that this machine or this libtorch lacks.
absl::StatusOr<Compute> ChooseCompute(const std::string& device, const std::string& dtype);

// Everything that decides which kernels run, beside the model and its shapes: for the exact
// fingerprint. Pure functions of the machine and its libraries.

// "libtorch 2.13.0, MKL 2024.2, oneDNN 3.12.0"; of a CUDA device "libtorch 2.13.0, CUDA 12080".
std::string ComputeVersion(const c10::Device& device);

// "AVX512, AuthenticAMD, oneDNN bf16: avx512_f avx512_bf16 avx2 fma3". First the level that
// libtorch chose for its own kernels (at::get_cpu_capability); then the vendor, by which MKL
// chooses; then the types that oneDNN says it has kernels for here, which shows the level that it
// chose; last the instruction sets among which either may choose float32 and bfloat16 kernels.
// Those for integers are left out: they would part machines that compute the same bits.
std::string CpuCapability();

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_TORCH_COMPUTE_DEVICE_H_
