// Replays restore points of a windowed model: global layers of the whole prefix, local layers of
// the tail, both shared by reference. Private to cache_store. Pure, thread safe.
#ifndef HEARTH_CACHE_STORE_SIMULATE_SIMULATE_POINTS_H_
#define HEARTH_CACHE_STORE_SIMULATE_SIMULATE_POINTS_H_

#include <cstdint>
#include <vector>

#include "cache_store/retention/retention.h"
#include "cache_store/simulate/simulate.h"
#include "cache_store/simulate/trace.h"

namespace hearth {

// Gives up the unit that is least worth keeping, and remembers it.
Retention::Key GiveUpFirst(Retention* retention);

// The room that a set of restore points takes, counted in layers of one block.
class PointSet {
 public:
  PointSet(const Trace& trace, const ModelShape& model);

  // Blocks before the longest restore point of this prompt that leaves a token to compute.
  uint32_t Restorable(const TraceRequest& request) const;
  // How many of a prompt's full blocks, from its start on, have their global layers.
  uint32_t Matched(const TraceRequest& request) const;
  bool Has(uint32_t last_block) const { return points_[last_block] > 0; }
  // REQUIRES: not there; there.
  void Add(const std::vector<uint32_t>& blocks, uint32_t end);
  void Remove(uint32_t last_block);

  int64_t used() const { return used_; }
  uint32_t tail_blocks() const { return tail_blocks_; }
  const ModelShape& model() const { return model_; }

 private:
  void Count(uint32_t last_block, uint32_t end, int32_t by);

  const ModelShape model_;
  const uint32_t tail_blocks_;
  std::vector<uint32_t> global_, local_;  // by block: restore points that need it
  std::vector<uint32_t> points_;          // by last block: blocks before the boundary, or 0
  std::vector<uint32_t> before_;          // by block: the one before it
  int64_t used_ = 0;
};

// The restore points that a request adds, ascending: where it left the known prefix, the boundary
// before its last full block, and the one after it.
std::vector<uint32_t> KeptEnds(const TraceRequest& request, uint32_t restored, uint32_t matched);

// Tokens restored over the whole trace with this much room.
uint64_t RestoredTokens(const Trace& trace, const ModelShape& model, RetentionPolicy policy,
                        double capacity);
// The same with the future known, by Belady's rule: the point with the farthest next use goes,
// where a use is a request that no longer point serves.
uint64_t OptimumRestoredTokens(const Trace& trace, const ModelShape& model, double capacity);
// The optimum of a dense cache, in blocks found with room for `capacity_blocks`: the block with the
// farthest next use goes, of equal ones the deepest; a block that is not used again is not kept at
// all.
uint64_t OptimumHits(const Trace& trace, uint64_t capacity_blocks);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SIMULATE_SIMULATE_POINTS_H_
