// KvBlocks: the memory that sequences' keys and values lie in, in blocks counted by reference,
// within one budget of bytes.
//
// A block holds what a stored object of a whole chunk holds, in the same layout, so that a running
// sequence, the worker's pool and a publish may share one. Its memory is of undefined content: it
// may have been another sequence's. Freed memory is kept for the next block of its size, as first
// touch is slow, and counts to the budget only as long as nothing else wants it.
//
// Thread safety: all methods from any thread, and so may blocks be dropped; they may outlive it.
// Errors: kResourceExhausted where the budget or the machine has no room, before anything is taken.
#ifndef HEARTH_WORKER_KV_BLOCKS_H_
#define HEARTH_WORKER_KV_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace hearth {

// Aligned to 64 bytes, as objects are. Written by the one that took it until it is shared.
using KvBlock = std::shared_ptr<std::byte[]>;

class KvBlocks {
 public:
  explicit KvBlocks(uint64_t budget_bytes);

  // A block of each size, or none at all.
  absl::StatusOr<std::vector<KvBlock>> Take(absl::Span<const size_t> sizes);
  // Memory of somebody else as a block: it is counted, and held, as long as the block lives, and
  // once for all that adopt it meanwhile. A block of this arena is counted already and comes back
  // as it is.
  absl::StatusOr<KvBlock> Adopt(KvBlock memory, size_t size_bytes);

  // Whether an Adopt of it costs nothing now: it is a block of this arena, or one of it lives.
  bool Counts(const KvBlock& memory, size_t size_bytes) const;

  uint64_t budget_bytes() const;
  uint64_t used_bytes() const;  // of blocks that live

 private:
  struct Account;
  struct Release;
  bool Owns(const KvBlock& memory) const;
  const std::shared_ptr<Account> account_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_KV_BLOCKS_H_
