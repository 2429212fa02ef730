// The two ends of a gpu tier: the store's, which opens the memory, and a worker's, which maps it.
//
// Pure functions.
#ifndef HEARTH_SERVICES_STORE_GPU_TIER_H_
#define HEARTH_SERVICES_STORE_GPU_TIER_H_

#include <cstdint>
#include <string>

#include "cache_store/base/device_memory.h"
#include "cache_store/store/options.h"

namespace hearth {

// Adds `bytes` of the memory of CUDA device 0 to `options`. 0: no tier. If the device cannot be
// used, logs why: the store starts without the tier, which only holds copies.
void AddGpuTier(uint64_t bytes, StoreOptions* options);

// The function by which a worker that computes on `device` maps the gpu tier of a store on its
// host. Null when it cannot.
ImportDevice GpuImporter(const std::string& device);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_GPU_TIER_H_
