// ClusterNodes: the nodes that a client knows, by their addresses and lanes.
//
// What is said of a node is said of its lane of short commands: it is the one that each node has,
// the others are made when they are first used.
// Thread safety: the loop's thread. Ownership: of the nodes, which stay until Sweep.
#ifndef HEARTH_CACHE_STORE_SHARED_REDIS_CLUSTER_NODES_H_
#define HEARTH_CACHE_STORE_SHARED_REDIS_CLUSTER_NODES_H_

#include <map>
#include <memory>
#include <random>
#include <utility>

#include "absl/functional/function_ref.h"
#include "cache_store/shared/redis/cluster_node.h"
#include "cache_store/shared/redis/node_address.h"
#include "cache_store/shared/redis/slot_map.h"

namespace hearth {

class ClusterNodes {
 public:
  ClusterNodes(RedisParts* parts, ClusterNode::Observer* observer)
      : parts_(parts), observer_(observer) {}

  // Null: there are too many already.
  ClusterNode* Get(const NodeAddress& address, Lane lane = Lane::kShort);
  // One that is up, by lot; null: none is.
  ClusterNode* AnyUp();
  // Those that a map or the options name; the rest goes once it is idle.
  void MeetSeeds();
  void MeetPrimaries(const SlotMap& map);
  // Lets go what neither the map nor anybody else used lately. Not from within a node's call.
  void Sweep(const SlotMap* map);
  void ForEach(absl::FunctionRef<void(ClusterNode*)> visit);
  // Whether one may yet be reached: it is up, or its first attempt has not ended.
  bool SomeMayAnswer() const;
  uint32_t CountUp(const SlotMap& map) const;

 private:
  RedisParts* const parts_;
  ClusterNode::Observer* const observer_;
  using Key = std::pair<NodeAddress, Lane>;

  std::map<Key, std::unique_ptr<ClusterNode>> nodes_;
  size_t primaries_ = 0;  // of the last map
  std::minstd_rand lots_{std::random_device{}()};
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_CLUSTER_NODES_H_
