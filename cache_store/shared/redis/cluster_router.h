// ClusterRouter: sends each command to the node that has the hash slot of its key.
//
// It keeps the map of hash slots and follows redirections. It requests a new slot map at the start,
// after a redirection, when a connection is restored, and while a primary is unreachable: one
// request at a time, with a pause before the next. A node's state is the state of its connection
// for short commands, which every node has; the other connections are opened when they are first
// needed. Thread safety: the loop's thread. Ownership: batches are shared with their callers.
// Invariants: (1) each command of a batch is finished, at the latest at its deadline; (2) a command
// is repeated only if a reply says that it was not executed.
#ifndef HEARTH_CACHE_STORE_SHARED_REDIS_CLUSTER_ROUTER_H_
#define HEARTH_CACHE_STORE_SHARED_REDIS_CLUSTER_ROUTER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache_store/shared/redis/cluster_node.h"
#include "cache_store/shared/redis/key_batch.h"
#include "cache_store/shared/redis/redis_options.h"
#include "cache_store/shared/redis/slot_map.h"

namespace hearth {

class ClusterRouter {
 public:
  explicit ClusterRouter(RedisParts* parts) : parts_(parts) {}

  // Starts the router. Call it first, in the loop's thread.
  void Begin();
  // Sends the commands of a batch. `wait`: time until the batch's deadline.
  void Submit(std::shared_ptr<KeyBatch> batch, absl::Duration wait);

  // Called by nodes. OnAnswer: a request was answered. OnNodeUp, OnNodeDown: its state changed.
  void OnAnswer(ClusterNode* node, const KeyRequest& request, absl::StatusOr<RedisReply> reply);
  void OnNodeUp(ClusterNode* node);
  void OnNodeDown(ClusterNode* node);

 private:
  void Expire(const std::shared_ptr<KeyBatch>& batch);
  void Route(const std::shared_ptr<KeyBatch>& batch);
  // Sends the request to the node that has its hash slot.
  void Send(const KeyRequest& request);
  void SendTo(const NodeAddress& address, const KeyRequest& request);
  void SendLater(const KeyRequest& request);
  void Redirect(ClusterNode* node, KeyRequest request, const std::string& error);
  void Finish(const KeyRequest& request, absl::StatusOr<RedisReply> reply);

  // Returns the node with this address, and creates it if absent. Null: there are too many nodes.
  ClusterNode* NodeAt(const NodeAddress& address, Lane lane = Lane::kShort);
  // Returns a random node that is up; null if there is none.
  ClusterNode* AnyUp();
  void ConnectSeeds();
  // Removes nodes that are not in the slot map and that no request has used recently. Do not call
  // it during a call from a node.
  void Sweep();
  // Returns whether any node is up, or its first attempt to connect is running.
  bool SomeMayAnswer() const;

  void WantMap();
  void RequestMap();
  ClusterNode* ChooseMapNode();
  void OnMap(const NodeAddress& teller, absl::StatusOr<RedisReply> reply);
  void Use(SlotMap map);
  void RouteUnrouted();
  void FinishUnrouted(const absl::Status& why);
  void CountNodes();
  absl::Time Now() { return parts_->loop.Now(); }

  RedisParts* const parts_;
  std::map<std::pair<NodeAddress, Lane>, std::unique_ptr<ClusterNode>> nodes_;
  std::minstd_rand lots_{std::random_device{}()};
  std::optional<SlotMap> map_;
  size_t primaries_ = 0;  // number of primaries in the last slot map
  // batches that wait until a slot map is received
  std::vector<std::shared_ptr<KeyBatch>> unrouted_;
  absl::Status why_no_map_ = absl::UnavailableError("redis: no node is known");
  bool wants_map_ = false, asks_for_map_ = false;
  // number of the last request for a slot map; answers to earlier requests are ignored
  uint64_t question_ = 0;
  absl::Time next_question_ = absl::InfinitePast();
  std::optional<EventLoop::Timer> map_timer_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_CLUSTER_ROUTER_H_
