// BlockLedger: which blocks routers were told of, and for which restore points.
//
// A block is there as long as a restore point that was reported ends in it or goes through it.
// Blocks form trees, as prompts do that begin alike; each knows its parent and its tokens, so that
// all of it can be told again.
// Thread safety: none, its owner guards it.
// Invariants: 1. a block's parent is there. 2. its `uses` are its children and the restore points
// that end in it, and not 0. 3. at most max_blocks blocks.
#ifndef HEARTH_SERVICES_EVENTS_BLOCK_LEDGER_H_
#define HEARTH_SERVICES_EVENTS_BLOCK_LEDGER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "services/events/kv_batch.h"

namespace hearth {

// A restore point with all its blocks, from the first token on.
struct PointBlocks {
  std::string point_id;
  uint32_t block_tokens = 0;
  std::vector<uint64_t> ids;
  std::vector<uint32_t> token_ids;  // block_tokens for each
};

class BlockLedger {
 public:
  explicit BlockLedger(size_t max_blocks) : max_blocks_(max_blocks) {}

  // Both append what changed to `events`. False, and nothing changed: there is no room, or the
  // blocks contradict others of the same number. REQUIRES: it has a block.
  bool Add(const PointBlocks& point, std::vector<KvEvent>* events);
  void Remove(const std::string& point_id, std::vector<KvEvent>* events);
  // Removes all restore points but these.
  void Keep(const absl::flat_hash_set<std::string>& point_ids, std::vector<KvEvent>* events);

  bool Has(const std::string& point_id) const { return points_.contains(point_id); }
  // Events that tell all of it to someone who knows nothing, parents first.
  std::vector<KvEvent> Everything() const;
  size_t blocks() const { return blocks_.size(); }
  size_t points() const { return points_.size(); }

 private:
  struct Block {
    uint64_t parent_id = 0;
    uint32_t uses = 0;
    std::vector<uint32_t> token_ids;
  };
  // How many blocks of `point` are there already; more than it has: they contradict.
  size_t Known(const PointBlocks& point) const;

  const size_t max_blocks_;
  absl::flat_hash_map<uint64_t, Block> blocks_;
  absl::flat_hash_map<std::string, uint64_t> points_;  // the block that each ends in
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_EVENTS_BLOCK_LEDGER_H_
