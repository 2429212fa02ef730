// SlotMap: the primaries of a cluster and their hash slots, as reported by a node; and the slot of
// a key.
//
// Values and a pure function. A node's report is untrusted: addresses and numbers are checked, and
// a wrong map leads only to missing answers or redirections.
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

// Returns the slot of the text between the first { and the next }, if that text is not empty;
// otherwise of the whole key.
uint16_t KeySlot(absl::string_view key);

// Limits of a CLUSTER SLOTS reply. Redis recommends at most 1,000 nodes. A range has three values
// and its nodes; a node has four values and its names. At worst each slot is its own range; a
// cluster with such fragmented ranges exceeds the limit and must be rebalanced first.
inline constexpr ReplyLimits kSlotMapLimits = {uint64_t{8} << 20, uint32_t{1} << 18};

class SlotMap {
 public:
  // Returns a map for a Redis without a cluster: one node has all slots.
  static SlotMap Single(const NodeAddress& node);
  // Parses a CLUSTER SLOTS reply from the node at `teller`, whose host is used for nodes without a
  // host. Errors are kDataLoss.
  static absl::StatusOr<SlotMap> FromReply(const RedisReply& reply, const NodeAddress& teller);

  // Each primary once.
  const std::vector<NodeAddress>& primaries() const { return primaries_; }
  // Returns null if no node has the slot.
  const NodeAddress* Owner(uint16_t slot) const;
  // Assigns a slot as a redirection says.
  void Assign(uint16_t slot, const NodeAddress& node);

 private:
  static constexpr uint16_t kNoOwner = UINT16_MAX;

  SlotMap();
  std::optional<uint16_t> NumberOf(const NodeAddress& node);

  std::vector<NodeAddress> primaries_;
  std::vector<uint16_t> owners_;  // by slot: index into primaries_, or kNoOwner
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_SLOT_MAP_H_
