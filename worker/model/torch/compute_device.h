// Chooses the device and the dtype of a model from the options.
//
// Private to hearth_model, because it includes ATen. The functions depend only on the options and
// on the machine's CPU flags, never on measured times, so equal machines make the same choice.
#ifndef HEARTH_WORKER_MODEL_TORCH_COMPUTE_DEVICE_H_
#define HEARTH_WORKER_MODEL_TORCH_COMPUTE_DEVICE_H_

#include <c10/core/Device.h>

#include <string>

#include "absl/status/statusor.h"
#include "worker/model/torch/layers.h"

namespace hearth {

// `device`: cpu, cuda or cuda:N. `dtype`: float32, bfloat16 or auto (bfloat16 on CUDA and on a CPU
// with AMX, else float32). kInvalidArgument: unknown name; kFailedPrecondition: the machine has no
// such device, or libtorch does not support it.
absl::StatusOr<Compute> ChooseCompute(const std::string& device, const std::string& dtype);

// ComputeVersion and CpuCapability, together with the model and its shapes, determine which kernels
// run; both strings are part of the fingerprint of the exactness class exact. They depend only on
// the machine and its libraries.

// Returns the library versions, for example "libtorch 2.13.0, MKL 2024.2, oneDNN 3.12.0", or for a
// CUDA device "libtorch 2.13.0, CUDA 12080".
std::string ComputeVersion(const c10::Device& device);

// Returns, for example, "AVX512, AuthenticAMD, oneDNN bf16: avx512_f avx512_bf16 avx2 fma3". The
// parts are: the level that libtorch chose for its kernels (at::get_cpu_capability); the CPU
// vendor, by which MKL chooses; the types for which oneDNN has kernels on this CPU; and the
// instruction sets by which libraries choose float32 and bfloat16 kernels. Integer instruction sets
// are omitted, because they do not change bits.
std::string CpuCapability();

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_TORCH_COMPUTE_DEVICE_H_
