// StagedSnapshots: copies of a running sequence's KV at the boundaries to save, held until they are
// published. StagingBudget limits the bytes of all copies.
//
// The KV at a boundary must be copied (or referenced) while the sequence runs, because later tokens
// replace old rows in the sliding window of local layers. StagingBudget counts the copies, and
// referenced chunks of local layers. A StagedSnapshots belongs to one sequence.
//
// Thread safety: StagingBudget: any thread. StagedSnapshots: one thread at a time.
// Ownership: objects are shared. A lease returns its bytes to the budget when it is destroyed,
// normally after the publish. The pool counts the memory of the objects that it holds.
// Invariants:
//  1. The bytes of all leases are at most the limit.
//  2. An object is shared only after all its rows are filled and its digests computed. If the KV is
//     on a device, the copies of all rows were started, and KvObject::Complete waits for them.
//  3. An object has the same bytes whether its rows were computed here or restored.
#ifndef HEARTH_WORKER_ENGINE_STAGING_H_
#define HEARTH_WORKER_ENGINE_STAGING_H_

#include <atomic>
#include <cassert>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "proto/kv_layout.h"
#include "worker/engine/runner/kv_snapshot.h"
#include "worker/model/sequence_kv.h"

namespace hearth {

// Returns the default staging budget: the bytes of two prompts' tails (local layers, window plus
// one chunk), at least 1 GiB.
uint64_t DefaultStagingBytes(const KvLayout& layout);

class StagingBudget {
 public:
  // Bytes granted by the budget. The destructor returns them.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept { *this = std::move(other); }
    Lease& operator=(Lease&& other) noexcept;
    ~Lease();
    // Moves the bytes of `other` to this lease. REQUIRES: both leases belong to the same budget.
    void Merge(Lease other);

   private:
    friend class StagingBudget;
    void GiveBack();
    StagingBudget* budget_ = nullptr;
    uint64_t bytes_ = 0;
  };

  explicit StagingBudget(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}
  ~StagingBudget() { assert(used_bytes() == 0); }  // leases must not outlive the budget

  // Adds `bytes` to the lease. Returns false, and changes nothing, if the budget has fewer free
  // bytes.
  bool Extend(uint64_t bytes, Lease* lease);
  uint64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }

 private:
  const uint64_t limit_bytes_;
  std::atomic<uint64_t> used_bytes_{0};
};

class StagedSnapshots {
 public:
  // Plans the objects of the boundaries `kept` (ascending, each above `restored_boundary`). The
  // sequence was restored at `restored_boundary` from the objects `restored`; if it was not
  // restored, these are 0 and empty. Boundaries are planned from the highest down. A boundary for
  // which the budget has too few free bytes is left out and counted in skipped().
  // `shares_chunks`: `kv` gives whole chunks by reference (SequenceKv::Share). A chunk of global
  // layers is then free of charge, because the sequence holds it until its end anyway. A chunk of
  // local layers costs its bytes, because the sequence stops using it. `is_on_device`: the KV is on
  // a device; each chunk then costs the bytes of a host copy.
  StagedSnapshots(const KvLayout& layout, const std::vector<uint32_t>& kept,
                  uint32_t restored_boundary, const KvObjects& restored, StagingBudget* budget,
                  bool shares_chunks = false, bool is_on_device = false);

  // Copies the rows that a step computed: tokens [begin, end). REQUIRES: called after every step,
  // in order.
  void Record(const SequenceKv& kv, uint32_t begin, uint32_t end);

  // Adds the current length of `kv` as a boundary. The last rows may come from prefill or decoding.
  // Returns false, and adds nothing, if the budget is full, or if `kv` does not have rows that the
  // boundary needs. REQUIRES: shares_chunks; Record was called for all steps so far.
  bool AddNow(const SequenceKv& kv, StagingBudget* budget);

  // Adds the KV blocks to which whole chunks were restored to the restored objects, so that later
  // sequences share the blocks instead of copying the objects' bytes. Returns the objects that now
  // have a block. Does nothing if `kv` is not on a device. REQUIRES: a step was computed since the
  // restore; earlier, sharing would make the step wait for the whole restore.
  KvObjects ShareRestored(const SequenceKv& kv);

  // Releases all objects and removes all boundaries. Returns the number of boundaries removed.
  uint32_t Drop();
  bool holds_any() const { return !restored_.empty() || !growing_.empty(); }

  // The boundaries that are staged, ascending.
  const std::vector<uint32_t>& boundaries() const { return boundaries_; }
  uint32_t skipped() const { return skipped_; }
  // Returns all objects that `boundary` needs, in NeededObjects order. An object that this sequence
  // neither computed nor restored has no bytes. REQUIRES: Record was called for the steps up to
  // `boundary`.
  KvObjects ObjectsOf(uint32_t boundary) const;
  StagingBudget::Lease TakeLease() { return std::move(lease_); }

 private:
  struct Growing {
    std::shared_ptr<KvObject> object;  // null until its first row is copied
    // Restored object with the first rows of `object`, or null.
    std::shared_ptr<const KvObject> seed;
    bool sealed = false;
  };
  bool Plan(uint32_t boundary, uint32_t restored_boundary, StagingBudget* budget);
  void Start(const ObjectId& id, Growing* growing) const;
  bool IsShared(const ObjectId& id) const {
    return shares_chunks_ && id.tokens == layout_.chunk_tokens;
  }

  const KvLayout layout_;
  const bool shares_chunks_, is_on_device_;
  std::vector<uint32_t> boundaries_;
  uint32_t skipped_ = 0;
  std::map<ObjectId, std::shared_ptr<const KvObject>> restored_;
  std::map<ObjectId, Growing> growing_;
  StagingBudget::Lease lease_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_ENGINE_STAGING_H_
