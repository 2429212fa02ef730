// Memory of KV objects. Freed blocks are reused, up to a limit, instead of returned to the system.
//
// Thread safety: any thread. One limit per process.
#ifndef HEARTH_WORKER_PREFIX_OBJECT_MEMORY_H_
#define HEARTH_WORKER_PREFIX_OBJECT_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "proto/kv_layout.h"

namespace hearth {

// Returns uninitialised memory, 64-byte aligned. Aborts if the machine is out of memory even after
// all recycled blocks were freed.
std::shared_ptr<std::byte[]> AllocateAligned(size_t bytes);

// Current bytes, and maximum bytes, kept for reuse. A lower limit frees blocks at once.
size_t RecycledBytes();
void SetRecycledLimit(size_t bytes);
inline constexpr size_t kLeastRecycledLimit = size_t{256} << 20;  // also the initial limit
inline constexpr size_t kMaxRecycledLimit = size_t{1} << 30;

// Returns the limit for a worker: a prefix of 2,048 tokens per place, at most a quarter of
// kv_budget_bytes and kMaxRecycledLimit, at least kLeastRecycledLimit. A budget of 0 (unlimited)
// gives the minimum.
size_t RecycledLimitOf(const KvLayout& layout, uint32_t places, uint64_t kv_budget_bytes);

// For tests: replaces std::aligned_alloc; null restores it.
using AllocateBlock = void* (*)(size_t alignment, size_t bytes);
void ReplaceBlockAllocation(AllocateBlock allocate);

}  // namespace hearth

#endif  // HEARTH_WORKER_PREFIX_OBJECT_MEMORY_H_
