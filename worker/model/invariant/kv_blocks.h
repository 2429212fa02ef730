// KvBlocks: allocates the KV memory of all sequences as reference-counted blocks, within a budget
// of bytes.
//
// A block has the layout of a stored object of a complete chunk, so a running sequence, the
// worker's prefix pool and a publish can share it. New blocks have undefined content, possibly
// another sequence's data. Freed memory is kept for the next block of the same size, because the
// first write to new memory is slow. It is released when blocks of other sizes need the budget.
//
// Ownership of blocks ("-->" keeps its target alive):
//
//   sequence A: InvariantKv  -->  t0  t1  t2     t2 is partly filled; only A writes to it
//   sequence B: InvariantKv  -->  t0  t1  f2     t0 and t1 are a shared prefix, read-only
//   the worker's pool,       -->  t0  t1
//   a publish
//
//   t: block of Take.   When released: bytes return to the budget, memory to the free list.
//   f: block of Adopt.  f --> memory of another owner, such as a pool object. f counts its bytes
//                       once for all sequences. When released: bytes return to the budget.
//   Each block and KvBlocks --> Account (budget, free list), so blocks may outlive KvBlocks.
//
// Thread safety: methods may be called from any thread. Blocks may be released in any thread, and
// may outlive the KvBlocks. For device memory, only the device's thread may call Take.
// Errors; no block is then allocated: kResourceExhausted: the budget is exceeded; kUnavailable: the
// machine has too little memory; kInternal: the device failed.
// Invariant: the total bytes of all live blocks are within the budget.
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

// A block, aligned to 64 bytes like objects. Until a block is shared, only the sequence that took
// it writes to it.
using KvBlock = std::shared_ptr<std::byte[]>;

class KvBlocks {
 public:
  explicit KvBlocks(uint64_t budget_bytes, std::shared_ptr<BlockMemory> memory = HostMemory());

  // Allocates one block of each size. After an error no block is allocated.
  absl::StatusOr<std::vector<KvBlock>> Take(absl::Span<const size_t> sizes);
  // Releases the free memory that is kept for later blocks.
  void ReleaseFree();
  // Returns a block for memory of another owner. The block keeps this memory alive. If several
  // callers adopt the same memory, it counts only once against the budget. If `memory` is already a
  // block of this KvBlocks, returns `memory` unchanged.
  absl::StatusOr<KvBlock> Adopt(KvBlock memory, size_t size_bytes);

  // Returns whether `memory` is a block of this KvBlocks, from Take or Adopt.
  bool Owns(const KvBlock& memory) const;
  // Returns whether `memory` is a block from Take. If a sequence is its only holder, the sequence
  // may write to it. Adopted memory always has other holders.
  bool WasTaken(const KvBlock& memory) const;

  BlockMemory& memory() const;  // the memory in which Take allocates
  uint64_t budget_bytes() const;
  // REQUIRES: no block was taken or adopted.
  void SetBudget(uint64_t budget_bytes);
  uint64_t used_bytes() const;    // total bytes of live blocks
  uint64_t taken_blocks() const;  // number of blocks that Take has returned

  // Calls `on_freed` once, when the next block is freed, in the thread that frees it and without
  // holding a lock of this class. Replaces the previous callback.
  void CallOnNextFree(std::function<void()> on_freed) const;

 private:
  struct Account;
  struct Release;
  const std::shared_ptr<Account> account_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_KV_BLOCKS_H_
