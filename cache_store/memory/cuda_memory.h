// DeviceMemory over the CUDA runtime.
//
// A build without the CUDA toolkit has the same function, which says so.
#ifndef HEARTH_CACHE_STORE_MEMORY_CUDA_MEMORY_H_
#define HEARTH_CACHE_STORE_MEMORY_CUDA_MEMORY_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "cache_store/base/device_memory.h"

namespace hearth {

// Takes `bytes` of CUDA device `index`, in that device's primary context: addresses are good for
// every library of this process. kFailedPrecondition: this build or this machine has no such
// device; kResourceExhausted: it has not that much memory free.
absl::StatusOr<std::unique_ptr<DeviceMemory>> OpenCudaMemory(int index, uint64_t bytes);

// Maps what another process of this host exported from device `index`.
absl::StatusOr<std::unique_ptr<ImportedMemory>> ImportCudaMemory(int index,
                                                                 const DeviceMemoryHandle& handle);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_MEMORY_CUDA_MEMORY_H_
