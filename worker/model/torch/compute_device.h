// Chooses the device and the dtype of a model, from the caller's options.
//
// Private to hearth_model: it includes ATen. Pure functions of the options and the machine's flags,
// never of a timing: equal machines choose alike.
#ifndef HEARTH_WORKER_MODEL_TORCH_COMPUTE_DEVICE_H_
#define HEARTH_WORKER_MODEL_TORCH_COMPUTE_DEVICE_H_

#include <string>

#include "absl/status/statusor.h"
#include "worker/model/torch/layers.h"

namespace hearth {

// `device`: cpu, cuda or cuda:N. `dtype`: auto (bfloat16 on CUDA and on a CPU with AMX, else
// float32), float32, bfloat16. kInvalidArgument for other words, kFailedPrecondition for a device
// that this machine or this libtorch lacks.
absl::StatusOr<Compute> ChooseCompute(const std::string& device, const std::string& dtype);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_TORCH_COMPUTE_DEVICE_H_
