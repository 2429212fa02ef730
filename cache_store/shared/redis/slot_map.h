// SlotMap: which primary of a cluster has which hash slots, as one of its nodes tells; and the slot
// of a key.
//
// Values and a pure function. Nobody vouches for a node's word: addresses and numbers are checked,
// and whoever follows a wrong map gets no answer, or a redirection.
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

// Of the text between the first { and the } behind it, where that is not empty; else of the key.
uint16_t KeySlot(absl::string_view key);

// Of CLUSTER SLOTS. Redis recommends at most 1,000 nodes. A range has three values and its nodes,
// a node four and its names; in the worst case each slot is a range of its own, and a cluster whose
// ranges are that torn must be put in order first.
inline constexpr ReplyLimits kSlotMapLimits = {uint64_t{8} << 20, uint32_t{1} << 18};

class SlotMap {
 public:
  // All slots are at one node: a Redis without a cluster.
  static SlotMap Single(const NodeAddress& node);
  // Reads an answer to CLUSTER SLOTS of the node at `teller`, which is the host of nodes that tell
  // no host of their own. kDataLoss.
  static absl::StatusOr<SlotMap> FromReply(const RedisReply& reply, const NodeAddress& teller);

  // Each once.
  const std::vector<NodeAddress>& primaries() const { return primaries_; }
  // Null: nobody has it.
  const NodeAddress* Owner(uint16_t slot) const;
  // As a redirection says.
  void Assign(uint16_t slot, const NodeAddress& node);

 private:
  static constexpr uint16_t kNobody = UINT16_MAX;

  SlotMap();
  std::optional<uint16_t> NumberOf(const NodeAddress& node);

  std::vector<NodeAddress> primaries_;
  std::vector<uint16_t> owners_;  // by slot: a place in primaries_, or kNobody
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_SLOT_MAP_H_
