// The memory of objects' bytes: freed memory is reused, up to a limit, instead of going back to the
// system.
//
// Thread safety: any thread. One limit for the process.
#ifndef HEARTH_WORKER_PREFIX_OBJECT_MEMORY_H_
#define HEARTH_WORKER_PREFIX_OBJECT_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "proto/kv_layout.h"

namespace hearth {

// Uninitialised, 64-byte aligned. Aborts only when the machine is out of memory, and nothing is
// kept that could be given back.
std::shared_ptr<std::byte[]> AllocateAligned(size_t bytes);

// Bytes kept for reuse, now and at most. A lower limit frees the bytes above it.
size_t RecycledBytes();
void SetRecycledLimit(size_t bytes);
inline constexpr size_t kLeastRecycledLimit = size_t{256} << 20;  // and until it is set
inline constexpr size_t kMaxRecycledLimit = size_t{1} << 30;

// The limit of a worker: a prefix of 2,048 tokens for each of its places, but at most a quarter of
// what sequences may have and kMaxRecycledLimit, and never less than kLeastRecycledLimit. A budget
// of 0, where nobody counts what sequences have, gives the least.
size_t RecycledLimitOf(const KvLayout& layout, uint32_t places, uint64_t kv_budget_bytes);

// Of tests: where memory comes from instead of std::aligned_alloc; null: from there again.
using AllocateBlock = void* (*)(size_t alignment, size_t bytes);
void ReplaceBlockAllocation(AllocateBlock allocate);

}  // namespace hearth

#endif  // HEARTH_WORKER_PREFIX_OBJECT_MEMORY_H_
