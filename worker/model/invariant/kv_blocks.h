// KvBlocks: the memory of sequences' keys and values, in blocks counted by reference, within one
// budget of bytes.
//
// A block has the layout of a stored object of a whole chunk, so that a running sequence, the
// worker's pool and a publish may share one. Its memory is of undefined content: it may have been
// another sequence's. Freed memory is kept for the next block of its size, as the first touch is
// slow; it gives way when the budget is needed for others.
//
// Thread safety: all methods from any thread, and so may blocks be dropped; they may outlive it.
// Of a device's memory Take is called by the device's thread alone; blocks may be dropped anywhere.
// Errors, before anything is taken: kResourceExhausted where the budget has no room, kUnavailable
// where the machine has none, kInternal where the device failed.
// Invariant: the bytes of blocks that live are within the budget together.
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

// Aligned to 64 bytes, as objects are. Written by the one that took it until it is shared.
using KvBlock = std::shared_ptr<std::byte[]>;

class KvBlocks {
 public:
  explicit KvBlocks(uint64_t budget_bytes, std::shared_ptr<BlockMemory> memory = HostMemory());

  // A block of each size, or none at all.
  absl::StatusOr<std::vector<KvBlock>> Take(absl::Span<const size_t> sizes);
  // Makes a block of foreign memory: it is counted, and held, while the block lives, and once for
  // all that adopt it meanwhile. A block of this arena is counted already and returned unchanged.
  absl::StatusOr<KvBlock> Adopt(KvBlock memory, size_t size_bytes);

  // Whether it is a block of this arena: one that Take gave, or one that counts foreign memory.
  bool Owns(const KvBlock& memory) const;
  // Whether Take gave it: a sequence that holds it alone may write to it. The memory of a block
  // that counts foreign memory has other holders.
  bool WasTaken(const KvBlock& memory) const;

  BlockMemory& memory() const;  // of the blocks that Take gives
  uint64_t budget_bytes() const;
  uint64_t used_bytes() const;    // of blocks that live
  uint64_t taken_blocks() const;  // by Take, so far

  // Calls `on_freed` once, when the next block is freed: from the thread that frees it, under no
  // lock of this class's. Replaces the function given before.
  void CallOnNextFree(std::function<void()> on_freed) const;

 private:
  struct Account;
  struct Release;
  const std::shared_ptr<Account> account_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_KV_BLOCKS_H_
