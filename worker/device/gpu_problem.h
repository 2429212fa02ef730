// GpuProblem: says why a GPU cannot be used, and what to do. Separate from CudaDevice, so that it
// is tested without CUDA.
//
// Thread safety: pure functions.
#ifndef HEARTH_WORKER_DEVICE_GPU_PROBLEM_H_
#define HEARTH_WORKER_DEVICE_GPU_PROBLEM_H_

#include <string>

#include "absl/strings/str_cat.h"

namespace hearth {

// Returns one line, or "" if GPU `number` exists and the driver supports this program. `driver` and
// `program`: CUDA versions, 1000 * major + 10 * minor; driver 0: there is no driver. `gpus`: number
// of GPUs that this process may use. `error`: why `gpus` is 0.
inline std::string GpuProblem(int driver, int program, int gpus, const char* error, int number) {
  const auto version = [](int cuda) { return absl::StrCat(cuda / 1000, ".", cuda % 1000 / 10); };
  std::string problem;
  if (driver == 0) {
    problem =
        "there is no NVIDIA driver: install it; in a container, use the NVIDIA runtime and request "
        "a GPU";
  } else if (driver / 1000 < program / 1000) {  // drivers support earlier and equal major versions
    problem =
        absl::StrCat("the NVIDIA driver supports CUDA ", version(driver),
                     ", and this program needs CUDA ", version(program), ": update the driver");
  } else if (gpus == 0) {
    problem = absl::StrCat("there is no GPU (", error, "): check nvidia-smi and ",
                           "CUDA_VISIBLE_DEVICES; in a container, request a GPU");
  } else if (number >= gpus) {
    problem = absl::StrCat("there is no GPU ", number, "; this process has ", gpus,
                           ": use cuda:0 to cuda:", gpus - 1);
  }
  return problem.empty() ? "" : problem + ", or use --device cpu";
}

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_GPU_PROBLEM_H_
