// ClusterRouter: sends each command to the node that has its key, following moves.
//
// Keeps the map of hash slots, follows redirections, and requests a new map at the start, after a
// redirection, when a connection is restored, and while a primary is unreachable: one request at a
// time, with a pause between two. A node's state is the state of its short-command lane: every node
// has that lane; the other lanes are created on first use. Thread safety: the loop's thread.
// Ownership: batches are shared with their callers. Invariants: (1) each command of a batch is
// finished, at its deadline at the latest; (2) a command is sent again only after a reply that says
// it was not executed.
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

  // Call first, in the loop.
  void Begin();
  // `wait`: time until the batch's deadline.
  void Submit(std::shared_ptr<KeyBatch> batch, absl::Duration wait);

  // Called by nodes: a request was answered; the node came up or went down.
  void OnAnswer(ClusterNode* node, const KeyRequest& request, absl::StatusOr<RedisReply> reply);
  void OnNodeUp(ClusterNode* node);
  void OnNodeDown(ClusterNode* node);

 private:
  void Expire(const std::shared_ptr<KeyBatch>& batch);
  void Route(const std::shared_ptr<KeyBatch>& batch);
  // Sends to the node that has the request's slot.
  void Send(const KeyRequest& request);
  void SendTo(const NodeAddress& address, const KeyRequest& request);
  void SendLater(const KeyRequest& request);
  void Redirect(ClusterNode* node, KeyRequest request, const std::string& error);
  void Finish(const KeyRequest& request, absl::StatusOr<RedisReply> reply);

  // Returns null if there are too many nodes.
  ClusterNode* NodeAt(const NodeAddress& address, Lane lane = Lane::kShort);
  // Returns a random node that is up, or null.
  ClusterNode* AnyUp();
  void ConnectSeeds();
  // Removes nodes that the map does not name and no request used recently. Must not run during a
  // node's call.
  void Sweep();
  // Returns whether a node is up or its first attempt is still running.
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
  size_t primaries_ = 0;                             // number in the last received map
  std::vector<std::shared_ptr<KeyBatch>> unrouted_;  // batches that wait for a map
  absl::Status why_no_map_ = absl::UnavailableError("redis: no node is known");
  bool wants_map_ = false, asks_for_map_ = false;
  uint64_t question_ = 0;  // number of the last request for a map; other answers are late
  absl::Time next_question_ = absl::InfinitePast();
  std::optional<EventLoop::Timer> map_timer_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_CLUSTER_ROUTER_H_
