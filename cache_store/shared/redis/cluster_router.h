// ClusterRouter: takes each command to the node that has its key, wherever that is by now.
//
// Keeps the map of hash slots, follows redirections, and asks for a new map when one is due: at the
// start, after a redirection, when a connection stands again, and while a primary is not reached;
// one question at a time, with a pause between two. What is said of a node is said of its lane of
// short commands: it is the one that each node has, the others are made when they are first used.
// Thread safety: the loop's thread.
// Ownership: batches are shared with their callers.
// Invariants: (1) each command of a batch is finished, at its deadline at the latest; (2) a command
// is sent again only after an answer that says it was not carried out.
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

  // The first thing in the loop.
  void Begin();
  // `wait`: until the batch's deadline.
  void Submit(std::shared_ptr<KeyBatch> batch, absl::Duration wait);

  // A node's: an answer to a request, and that it came up or went down.
  void OnAnswer(ClusterNode* node, const KeyRequest& request, absl::StatusOr<RedisReply> reply);
  void OnNodeUp(ClusterNode* node);
  void OnNodeDown(ClusterNode* node);

 private:
  void Expire(const std::shared_ptr<KeyBatch>& batch);
  void Route(const std::shared_ptr<KeyBatch>& batch);
  // To the node that has its slot.
  void Send(const KeyRequest& request);
  void SendTo(const NodeAddress& address, const KeyRequest& request);
  void SendLater(const KeyRequest& request);
  void Redirect(ClusterNode* node, KeyRequest request, const std::string& error);
  void Finish(const KeyRequest& request, absl::StatusOr<RedisReply> reply);

  // Null: there are too many already.
  ClusterNode* NodeAt(const NodeAddress& address, Lane lane = Lane::kShort);
  // One that is up, by lot; null: none is.
  ClusterNode* AnyUp();
  void MeetSeeds();
  // Lets go what neither the map nor anybody else used lately. Not from within a node's call.
  void Sweep();
  // Whether a node may yet be reached: it is up, or its first attempt has not ended.
  bool SomeMayAnswer() const;

  void WantMap();
  void AskForMap();
  ClusterNode* WhomToAsk();
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
  size_t primaries_ = 0;                             // of the last map, as it came
  std::vector<std::shared_ptr<KeyBatch>> unrouted_;  // until there is a map
  absl::Status why_no_map_ = absl::UnavailableError("redis: no node is known");
  bool wants_map_ = false, asks_for_map_ = false;
  uint64_t question_ = 0;  // the last one; answers to others are late
  absl::Time next_question_ = absl::InfinitePast();
  std::optional<EventLoop::Timer> map_timer_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_CLUSTER_ROUTER_H_
