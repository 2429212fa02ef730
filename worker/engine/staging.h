// StagedSnapshots: copies of the objects of a running sequence's kept boundaries, until they are
// published; StagingBudget limits them.
//
// The KV of a kept boundary must be copied out, or a reference taken to it, while the sequence goes
// on, because its local layers move on. StagingBudget bounds the bytes of all such copies, and of
// the local layers' chunks that are held by reference beyond their window; StagedSnapshots holds
// one sequence's.
//
// Thread safety: StagingBudget from any thread. StagedSnapshots: one thread at a time.
// Ownership: objects are shared; a lease gives its bytes back when it is destroyed, which should be
// when the publish has ended. Memory that the pool holds is counted there.
// Invariants:
//   1. Leased bytes <= the limit.
//   2. An object is shared only when all of its rows are filled and its digests computed.
//   3. An object's bytes are the same whether its rows were computed here or restored.
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

// Of two prompts' tails, and at least 1 GiB.
uint64_t DefaultStagingBytes(const KvLayout& layout);

class StagingBudget {
 public:
  // Granted bytes; the destructor gives them back.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept { *this = std::move(other); }
    Lease& operator=(Lease&& other) noexcept;
    ~Lease();
    // Takes over the other's bytes. REQUIRES: both are of one budget.
    void Merge(Lease other);

   private:
    friend class StagingBudget;
    void GiveBack();
    StagingBudget* budget_ = nullptr;
    uint64_t bytes_ = 0;
  };

  explicit StagingBudget(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}
  ~StagingBudget() { assert(used_bytes() == 0); }  // leases do not outlive it

  // Adds `bytes` to the lease; false, and nothing changes, when they do not fit.
  bool Extend(uint64_t bytes, Lease* lease);
  uint64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }

 private:
  const uint64_t limit_bytes_;
  std::atomic<uint64_t> used_bytes_{0};
};

class StagedSnapshots {
 public:
  // Plans the objects of `kept` boundaries (ascending, each above `restored_boundary`) for a
  // sequence that goes on from `restored_boundary` with `restored` objects (0 and none when cold).
  // Boundaries that do not fit the budget, from the highest down, are left out and counted in
  // skipped(). `shares_chunks`:
  // the KV gives whole chunks by reference (SequenceKv::Share). Those of global layers then cost
  // nothing, as the sequence has them to its end; those of local ones cost their bytes, as the
  // sequence leaves them and takes others. `is_on_device`: as of the KV. The host then has a copy
  // of each chunk, which costs its bytes.
  StagedSnapshots(const KvLayout& layout, const std::vector<uint32_t>& kept,
                  uint32_t restored_boundary, const KvObjects& restored, StagingBudget* budget,
                  bool shares_chunks = false, bool is_on_device = false);

  // Copies the rows of the step that computed [begin, end). REQUIRES: called after every step, in
  // order, before the next one.
  void Record(const SequenceKv& kv, uint32_t begin, uint32_t end);

  // Adds the boundary that `kv` is at now, whether its last rows were prefilled or decoded. False,
  // and it is skipped, where the budget has no room or `kv` lacks rows that it needs.
  // REQUIRES: chunks are shared; all steps so far were recorded.
  bool AddNow(const SequenceKv& kv, StagingBudget* budget);

  // Drops all that it holds; its boundaries are left out. Returns how many there were.
  uint32_t Drop();
  bool holds_any() const { return !restored_.empty() || !growing_.empty(); }

  // The boundaries that are staged. Ascending.
  const std::vector<uint32_t>& boundaries() const { return boundaries_; }
  uint32_t skipped() const { return skipped_; }
  // Everything `boundary` needs, in NeededObjects order. An object that cannot be supplied (neither
  // computed nor restored here) has no bytes.
  // REQUIRES: the steps up to `boundary` were recorded.
  KvObjects ObjectsOf(uint32_t boundary) const;
  StagingBudget::Lease TakeLease() { return std::move(lease_); }

 private:
  struct Growing {
    std::shared_ptr<KvObject> object;      // null until its first row arrives
    std::shared_ptr<const KvObject> seed;  // the restored remainder it begins with, or null
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
