// SlotMap: the primaries of a Redis Cluster and their hash slots, as a node reported them. KeySlot:
// the hash slot of a key.
//
// A node's report is untrusted: addresses and numbers are checked. A wrong map leads only to
// missing answers or to redirections.
#ifndef HEARTH_CACHE_STORE_SHARED_REDIS_SLOT_MAP_H_
#define HEARTH_CACHE_STORE_SHARED_REDIS_SLOT_MAP_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache_store/shared/redis/redis_options.h"
#include "cache_store/shared/redis/redis_reply.h"

namespace hearth {

inline constexpr uint32_t kHashSlots = 16384;

// Returns the hash slot of a key. If the key has a text between the first { and the next } that is
// not empty, this text decides; otherwise the whole key.
uint16_t KeySlot(absl::string_view key);

// Limits of a reply to CLUSTER SLOTS. Redis recommends at most 1,000 nodes. A range has three
// values and its nodes; a node has four values and its names. If a cluster's slots are very
// fragmented (in the worst case each slot is a range), the reply exceeds the limits; rebalance the
// cluster first.
inline constexpr ReplyLimits kSlotMapLimits = {uint64_t{8} << 20, uint32_t{1} << 18};

class SlotMap {
 public:
  // Returns a map in which one node has all slots, for a Redis server without a cluster.
  static SlotMap Single(const NodeAddress& node);
  // Parses a reply to CLUSTER SLOTS. A node without a host gets the host of `teller`, the node that
  // sent the reply. Errors are kDataLoss.
  static absl::StatusOr<SlotMap> FromReply(const RedisReply& reply, const NodeAddress& teller);

  // Returns the primaries, each once.
  const std::vector<NodeAddress>& primaries() const { return primaries_; }
  // Returns the primary that has the slot; null if no node has it.
  const NodeAddress* Owner(uint16_t slot) const;
  // Assigns a slot to a node, as a redirection says.
  void Assign(uint16_t slot, const NodeAddress& node);

 private:
  static constexpr uint16_t kNoOwner = UINT16_MAX;

  SlotMap();
  std::optional<uint16_t> NumberOf(const NodeAddress& node);

  std::vector<NodeAddress> primaries_;
  std::vector<uint16_t> owners_;  // for each slot: index into primaries_, or kNoOwner
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_SLOT_MAP_H_
