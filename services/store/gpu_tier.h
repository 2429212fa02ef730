// Opens the memory of a gpu tier, or logs one line that says why there is none.
//
// The store starts without it, since the tier only holds copies.
#ifndef HEARTH_SERVICES_STORE_GPU_TIER_H_
#define HEARTH_SERVICES_STORE_GPU_TIER_H_

#include <cstdint>
#include <string>

#include "cache_store/base/device_memory.h"
#include "cache_store/store/options.h"

namespace hearth {

// Adds `bytes` of the device's memory to `options`. `device`: cuda, cuda:N, or cpu, which needs
// none. 0 bytes: no tier.
void AddGpuTier(const std::string& device, uint64_t bytes, StoreOptions* options);

// The function by which a worker that computes on `device` maps the gpu tier of a store on its
// host. Null when it cannot.
ImportDevice GpuImporter(const std::string& device);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_GPU_TIER_H_
