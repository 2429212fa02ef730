// Implements DeviceMemory and ImportedMemory with CUDA: memory that has a file descriptor, which
// another process maps with read access only. In a build without the CUDA toolkit, these functions
// return an error.
#ifndef HEARTH_CACHE_STORE_MEMORY_CUDA_MEMORY_H_
#define HEARTH_CACHE_STORE_MEMORY_CUDA_MEMORY_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "cache_store/base/device_memory.h"

namespace hearth {

// Allocates `bytes` on CUDA device `index`, in the primary context of the device, so that every
// library of this process can use the addresses. kFailedPrecondition: this build has no CUDA, or
// the machine has no such device. kResourceExhausted: the device has too little free memory.
absl::StatusOr<std::unique_ptr<DeviceMemory>> OpenCudaMemory(int index, uint64_t bytes);

// Maps memory that another process of this host exported on device `index`. Does not keep `fd`.
absl::StatusOr<std::unique_ptr<ImportedMemory>> ImportCudaMemory(int index,
                                                                 const DeviceMemoryHandle& handle,
                                                                 int fd);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_MEMORY_CUDA_MEMORY_H_
