// What a build without the CUDA toolkit has in place of cuda_memory.cc.
#include "cache_store/cuda_memory.h"

namespace hearth {

absl::StatusOr<std::unique_ptr<DeviceMemory>> OpenCudaMemory(int, uint64_t) {
  return absl::FailedPreconditionError(
      "this program was built without CUDA: build it where the CUDA toolkit is");
}

}  // namespace hearth
