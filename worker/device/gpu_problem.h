// GpuProblem: says why a GPU cannot be used, and what to do. Separate from CudaDevice, so that it
// is tested without CUDA.
//
// Thread safety: pure functions.
#ifndef HEARTH_WORKER_DEVICE_GPU_PROBLEM_H_
#define HEARTH_WORKER_DEVICE_GPU_PROBLEM_H_

#include <string>

#include "absl/strings/str_cat.h"

namespace hearth {

struct GpuFacts {
  // CUDA versions, 1000 * major + 10 * minor: the newest that the driver supports (0: there is no
  // driver), and the version of this program
  int driver = 0, program = 0;
  int gpus = 0;       // number of GPUs that this process may use
  const char* error;  // why the GPUs cannot be counted; used if `gpus` is 0
};

// Returns one line, or "" if GPU `number` exists and the driver supports this program.
inline std::string GpuProblem(const GpuFacts& facts, int number) {
  constexpr char kElse[] = ", or use --device cpu";
  const auto version = [](int cuda) { return absl::StrCat(cuda / 1000, ".", cuda % 1000 / 10); };
  if (facts.driver == 0) {
    return absl::StrCat(
        "there is no NVIDIA driver: install it; in a container, use the NVIDIA runtime and request "
        "a GPU",
        kElse);
  }
  // A driver supports programs of earlier and equal major versions.
  if (facts.driver / 1000 < facts.program / 1000) {
    return absl::StrCat("the NVIDIA driver supports CUDA ", version(facts.driver),
                        ", and this program needs CUDA ", version(facts.program),
                        ": update the driver", kElse);
  }
  if (facts.gpus == 0) {
    return absl::StrCat("there is no GPU (", facts.error,
                        "): check nvidia-smi and CUDA_VISIBLE_DEVICES; in a container, request a "
                        "GPU",
                        kElse);
  }
  if (number < facts.gpus) return "";
  return absl::StrCat("there is no GPU ", number, "; this process has ", facts.gpus,
                      ": use cuda:0 to cuda:", facts.gpus - 1);
}

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_GPU_PROBLEM_H_
