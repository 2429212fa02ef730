// Allocates the memory of KV objects. Freed blocks are kept for reuse, up to a limit.
//
// Thread safety: any thread. There is one limit per process.
#ifndef HEARTH_WORKER_PREFIX_OBJECT_MEMORY_H_
#define HEARTH_WORKER_PREFIX_OBJECT_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "proto/kv_layout.h"

namespace hearth {

// Returns uninitialised memory, aligned to 64 bytes. If the machine is out of memory, frees all
// blocks kept for reuse and tries again; then aborts.
std::shared_ptr<std::byte[]> AllocateAligned(size_t bytes);

// RecycledBytes returns the bytes kept for reuse; SetRecycledLimit sets their maximum. A lower
// limit frees blocks at once.
size_t RecycledBytes();
void SetRecycledLimit(size_t bytes);
inline constexpr size_t kLeastRecycledLimit = size_t{256} << 20;  // also the initial limit
inline constexpr size_t kMaxRecycledLimit = size_t{1} << 30;

// Returns the limit for a worker: the bytes of a 2,048-token prefix for each running slot
// (`places`), but at most kv_budget_bytes / 4 and kMaxRecycledLimit, and at least
// kLeastRecycledLimit. kv_budget_bytes 0 (unlimited) gives kLeastRecycledLimit.
size_t RecycledLimitOf(const KvLayout& layout, uint32_t places, uint64_t kv_budget_bytes);

// Pins the objects' memory for copies to and from a device: blocks of 64 KiB and more that are
// allocated from now on, until they are freed. `pin` returns false if a block stays pageable. Both
// functions may be called from any thread. Returns false, and changes nothing, if a trial fails.
bool PinObjectMemory(std::function<bool(void* memory, size_t bytes)> pin,
                     std::function<void(void* memory)> unpin);

// For tests: replaces std::aligned_alloc. Null restores std::aligned_alloc.
using AllocateBlock = void* (*)(size_t alignment, size_t bytes);
void ReplaceBlockAllocation(AllocateBlock allocate);

}  // namespace hearth

#endif  // HEARTH_WORKER_PREFIX_OBJECT_MEMORY_H_
