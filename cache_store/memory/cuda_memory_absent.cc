// Compiled instead of cuda_memory.cc in a build without the CUDA toolkit.
#include "cache_store/memory/cuda_memory.h"

namespace hearth {

namespace {

absl::Status Absent() {
  return absl::FailedPreconditionError(
      "this program was built without CUDA: build it with the CUDA toolkit");
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceMemory>> OpenCudaMemory(int, uint64_t) { return Absent(); }

absl::StatusOr<std::unique_ptr<ImportedMemory>> ImportCudaMemory(int, const DeviceMemoryHandle&,
                                                                 int) {
  return Absent();
}

}  // namespace hearth
