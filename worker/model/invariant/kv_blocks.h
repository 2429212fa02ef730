// KvBlocks: the memory of sequences' keys and values, in blocks counted by reference, within one
// budget of bytes.
//
// A block has the layout of a stored object of a whole chunk, so that a running sequence, the
// worker's pool and a publish may share one. Its memory is of undefined content: it may have been
// another sequence's. Freed memory is kept for the next block of its size, as the first touch is
// slow; it gives way when the budget is needed for others.
//
// Thread safety: all methods from any thread, and so may blocks be dropped; they may outlive it.
// Errors: kResourceExhausted where the budget or the machine has no room, before anything is taken.
// Invariant: the bytes of blocks that live and those set aside are within the budget together.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_KV_BLOCKS_H_
#define HEARTH_WORKER_MODEL_INVARIANT_KV_BLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
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
  // Bytes set aside; the destructor gives the rest of them back. One without an arena has none.
  class Reservation;

  // `name`: of the flag that says the budget, for errors; lives as long as they do.
  explicit KvBlocks(uint64_t budget_bytes, const char* name = "kv-bytes");

  // A block of each size, or none at all: from the rest of `reserved`, then from free bytes.
  absl::StatusOr<std::vector<KvBlock>> Take(absl::Span<const size_t> sizes,
                                            const Reservation* reserved = nullptr);
  // Makes a block of foreign memory: it is counted, and held, while the block lives, and once for
  // all that adopt it meanwhile; `alone`: for this caller by itself, who pays for its being left. A
  // block of this arena is counted already and returned unchanged.
  absl::StatusOr<KvBlock> Adopt(KvBlock memory, size_t size_bytes,
                                const Reservation* reserved = nullptr, bool alone = false);
  // Sets `bytes` more aside, or changes nothing.
  absl::Status Reserve(uint64_t bytes, Reservation* reserved);

  // Whether an Adopt of it costs nothing now: it is a block of this arena, or an adopted one lives.
  bool Counts(const KvBlock& memory, size_t size_bytes) const;
  // The block as which it is counted: an Adopt that costs nothing. Null where it is not counted.
  KvBlock Counted(const KvBlock& memory, size_t size_bytes) const;
  // Whether it is a block of this arena: one that Take gave, or one that counts foreign memory.
  bool Owns(const KvBlock& memory) const;
  // Whether Take gave it: who holds it alone may write to it. Of one that counts foreign memory
  // others hold that memory.
  bool Gave(const KvBlock& memory) const;

  const char* name() const;
  uint64_t budget_bytes() const;
  uint64_t used_bytes() const;      // of blocks that live
  uint64_t reserved_bytes() const;  // set aside and not taken
  uint64_t taken_blocks() const;    // by Take, so far

  // How many bytes the budget lacked for the call that it refused last, since this was asked last;
  // 0: it refused none. AddLacking: of what was to come behind the refused part, if there is one.
  uint64_t TakeLacking() const;
  void AddLacking(uint64_t bytes) const;
  // Calls `on_freed` once, when more than `free_bytes` are free: from the thread that frees them,
  // under no lock of this class's; at once where they are. In the place of the one before.
  void Watch(uint64_t free_bytes, std::function<void()> on_freed) const;

 private:
  struct Account;
  struct Release;
  struct Aside;
  const std::shared_ptr<Account> account_;
};

class KvBlocks::Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept = default;
  Reservation& operator=(Reservation&& other) noexcept;
  ~Reservation() { End(); }
  // The same bytes once more, for somebody else who takes from them and adds to them: the last one
  // gives them back. Of none it is another one.
  Reservation Shared() const;

 private:
  friend class KvBlocks;
  void End();
  std::shared_ptr<Aside> aside_;  // null: nothing
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_KV_BLOCKS_H_
