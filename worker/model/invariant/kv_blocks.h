// KvBlocks: the memory of sequences' keys and values, in reference-counted blocks within one budget
// of bytes.
//
// A block has the layout of a stored object of a whole chunk, so a running sequence, the worker's
// pool and a publish can share it. New blocks have undefined content, perhaps another sequence's.
// Freed memory is kept for the next block of the same size, because the first touch of memory is
// slow; it is released when the budget is needed for other sizes.
//
// Ownership of blocks ("-->" keeps its target alive):
//
//   sequence A: InvariantKv  -->  t0  t1  t2     t2 is partly filled; only A writes to it
//   sequence B: InvariantKv  -->  t0  t1  f2     t0 and t1 are a shared prefix, read-only
//   the worker's pool,       -->  t0  t1
//   a publish
//
//   t: block of Take.   Last holder gone: bytes return to the budget, memory to the free list.
//   f: block of Adopt.  f --> foreign memory, such as an object of the pool. f counts its bytes
//                       once for all sequences. Last holder gone: bytes return to the budget.
//   Each block and KvBlocks --> Account (budget, free list), so blocks may outlive KvBlocks.
//
// Thread safety: all methods from any thread; blocks may be dropped in any thread, and may outlive
// the KvBlocks. For device memory, only the device's thread may call Take.
// Errors, before any block is taken: kResourceExhausted: the budget has no room; kUnavailable: the
// machine has no memory; kInternal: the device failed.
// Invariant: the bytes of all living blocks together are within the budget.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_KV_BLOCKS_H_
#define HEARTH_WORKER_MODEL_INVARIANT_KV_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/model/invariant/block_memory.h"

namespace hearth {

// Aligned to 64 bytes, as objects are. Only the holder that took it writes to it, until it is
// shared.
using KvBlock = std::shared_ptr<std::byte[]>;

class KvBlocks {
 public:
  explicit KvBlocks(uint64_t budget_bytes, std::shared_ptr<BlockMemory> memory = HostMemory());

  // Takes a block of each size, or none at all.
  absl::StatusOr<std::vector<KvBlock>> Take(absl::Span<const size_t> sizes);
  // Returns a block for foreign memory. While the block lives, the memory is held, and counted once
  // for all callers that adopt it. A block of this arena is already counted and is returned
  // unchanged.
  absl::StatusOr<KvBlock> Adopt(KvBlock memory, size_t size_bytes);

  // Returns whether `memory` is a block of this arena, from Take or Adopt.
  bool Owns(const KvBlock& memory) const;
  // Returns whether `memory` came from Take: a sequence that holds it alone may write to it.
  // Adopted memory has other holders.
  bool WasTaken(const KvBlock& memory) const;

  BlockMemory& memory() const;  // the memory that Take allocates from
  uint64_t budget_bytes() const;
  uint64_t used_bytes() const;    // bytes of living blocks
  uint64_t taken_blocks() const;  // blocks taken by Take so far

  // Calls `on_freed` once, when the next block is freed, in the freeing thread and without a lock
  // of this class. Replaces the previous function.
  void CallOnNextFree(std::function<void()> on_freed) const;

 private:
  struct Account;
  struct Release;
  const std::shared_ptr<Account> account_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_KV_BLOCKS_H_
