// StagedSnapshots: copies of the objects of a running sequence's kept boundaries, held until they
// are published. StagingBudget limits their bytes.
//
// The KV of a kept boundary must be copied (or referenced) while the sequence runs, because the
// windows of its local layers move on. StagingBudget covers the copies, and the local chunks that
// are referenced beyond their window. StagedSnapshots belongs to one sequence.
//
// Thread safety: StagingBudget: any thread. StagedSnapshots: one thread at a time.
// Ownership: objects are shared. A lease returns its bytes when it is destroyed, normally after the
// publish. Memory that the pool holds is counted by the pool.
// Invariants:
//  1. Leased bytes <= the limit.
//  2. An object is shared only after all its rows are filled and its digests computed.
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

// Returns the bytes of two prompts' tails, at least 1 GiB.
uint64_t DefaultStagingBytes(const KvLayout& layout);

class StagingBudget {
 public:
  // Granted bytes. The destructor returns them.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept { *this = std::move(other); }
    Lease& operator=(Lease&& other) noexcept;
    ~Lease();
    // Adds the bytes of `other` to this lease. REQUIRES: both are of the same budget.
    void Merge(Lease other);

   private:
    friend class StagingBudget;
    void GiveBack();
    StagingBudget* budget_ = nullptr;
    uint64_t bytes_ = 0;
  };

  explicit StagingBudget(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}
  ~StagingBudget() { assert(used_bytes() == 0); }  // leases must not outlive the budget

  // Adds `bytes` to the lease. Returns false, and changes nothing, if they do not fit.
  bool Extend(uint64_t bytes, Lease* lease);
  uint64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }

 private:
  const uint64_t limit_bytes_;
  std::atomic<uint64_t> used_bytes_{0};
};

class StagedSnapshots {
 public:
  // Plans the objects of the `kept` boundaries (ascending, each above `restored_boundary`) for a
  // sequence that continues from `restored_boundary` with the `restored` objects (0 and none if
  // cold). Boundaries are planned from the highest down; boundaries that do not fit the budget are
  // left out and counted in skipped().
  // `shares_chunks`: the KV gives whole chunks by reference (SequenceKv::Share). A chunk of global
  // layers then costs nothing, because the sequence holds it to its end. A chunk of local layers
  // costs its bytes, because the sequence replaces it. `is_on_device`: the KV is on a device; then
  // each chunk costs its bytes for a host copy.
  StagedSnapshots(const KvLayout& layout, const std::vector<uint32_t>& kept,
                  uint32_t restored_boundary, const KvObjects& restored, StagingBudget* budget,
                  bool shares_chunks = false, bool is_on_device = false);

  // Copies the rows of the step that computed [begin, end). REQUIRES: called after every step, in
  // order.
  void Record(const SequenceKv& kv, uint32_t begin, uint32_t end);

  // Adds the current end of `kv` as a boundary; its last rows may be prefilled or decoded. Returns
  // false, and adds nothing, if the budget is full or `kv` does not have all rows that the boundary
  // needs.
  // REQUIRES: shares_chunks; all steps so far were recorded.
  bool AddNow(const SequenceKv& kv, StagingBudget* budget);

  // Releases everything and leaves out all boundaries. Returns their number.
  uint32_t Drop();
  bool holds_any() const { return !restored_.empty() || !growing_.empty(); }

  // The staged boundaries, ascending.
  const std::vector<uint32_t>& boundaries() const { return boundaries_; }
  uint32_t skipped() const { return skipped_; }
  // Returns all objects that `boundary` needs, in NeededObjects order. An object that was neither
  // computed nor restored here has no bytes. REQUIRES: the steps up to `boundary` were recorded.
  KvObjects ObjectsOf(uint32_t boundary) const;
  StagingBudget::Lease TakeLease() { return std::move(lease_); }

 private:
  struct Growing {
    std::shared_ptr<KvObject> object;      // null until its first row is copied
    std::shared_ptr<const KvObject> seed;  // restored remainder with its first rows, or null
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
