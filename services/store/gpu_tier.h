// The memory of a gpu tier, or one line in the log that says why there is none.
//
// A tier that only holds copies is no reason not to start.
#ifndef HEARTH_SERVICES_STORE_GPU_TIER_H_
#define HEARTH_SERVICES_STORE_GPU_TIER_H_

#include <cstdint>
#include <string>

#include "cache_store/base/device_memory.h"
#include "cache_store/store/tiered_store.h"

namespace hearth {

// Gives the store that `options` will open `bytes` of the device's memory. `device`: cuda, cuda:N,
// or the cpu that a worker computes on, which needs none. 0 bytes: no tier was asked for.
void AddGpuTier(const std::string& device, uint64_t bytes, StoreOptions* options);

// How a worker that computes on `device` maps the gpu tier of a store on its host. Null: it cannot.
ImportDevice GpuImporter(const std::string& device);

}  // namespace hearth

#endif  // HEARTH_SERVICES_STORE_GPU_TIER_H_
