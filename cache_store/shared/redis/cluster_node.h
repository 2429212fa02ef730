// ClusterNode: one Redis node's commands of one lane, with the connection for them made again
// whenever it is lost.
//
// A circuit breaker: a node that failed, or owes an answer for too long, refuses commands at once
// while it is probed in the background. Commands wait for a connection that is being made unless
// the last attempt failed, and for the bytes under way to become fewer. A value is copied when its
// turn to be sent has come: many at once would hold the loop up. Thread safety: the loop's
// thread. Ownership: the observer outlives it, and never destroys it in a call that it makes.
// Invariants: (1) each request is answered once; (2) requests that have left for the node are not
// sent again: whoever wants that has the answer to decide by.
#ifndef HEARTH_CACHE_STORE_SHARED_REDIS_CLUSTER_NODE_H_
#define HEARTH_CACHE_STORE_SHARED_REDIS_CLUSTER_NODE_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache_store/shared/redis/key_batch.h"
#include "cache_store/shared/redis/node_connection.h"
#include "cache_store/shared/redis/redis_options.h"
#include "cache_store/shared/redis/redis_parts.h"

namespace hearth {

class ClusterNode : public NodeConnection::Owner {
 public:
  class Observer {
   public:
    virtual ~Observer() = default;
    virtual void OnAnswer(ClusterNode* node, const KeyRequest& request,
                          absl::StatusOr<RedisReply> reply) = 0;
    virtual void OnNodeUp(ClusterNode* node) = 0;
    virtual void OnNodeDown(ClusterNode* node) = 0;
  };

  // Begins to connect.
  ClusterNode(RedisParts* parts, const NodeAddress& address, Lane lane, Observer* observer);
  ~ClusterNode() override;
  ClusterNode(const ClusterNode&) = delete;
  ClusterNode& operator=(const ClusterNode&) = delete;

  const NodeAddress& address() const { return address_; }
  Lane lane() const { return lane_; }
  bool IsUp() const { return connection_ != nullptr && connection_->is_open(); }
  // It failed, and did not answer since.
  bool IsDown() const { return refuses_; }
  const absl::Status& why_down() const { return why_refuses_; }
  bool IsIdle() const;  // no command waits for it or its answer
  absl::Time last_used() const { return last_used_; }

  // Answers through the observer, also from within this call.
  void Send(const KeyRequest& request);
  // CLUSTER SLOTS. REQUIRES: IsUp().
  void AskForSlots(NodeConnection::Done done);

  void OnOpen() override;
  void OnMoved() override { Pump(); }
  void OnClosed(const absl::Status& why) override;

 private:
  void Attempt();
  void EndAttempt();
  void Retire();  // the connection, which is what calls
  void Pump();
  void SendNow(const KeyRequest& request);
  void Look();
  void Refuse(const absl::Status& why);
  bool IsSilent() const;
  absl::Time Now() { return parts_->loop.Now(); }

  RedisParts* const parts_;
  const NodeAddress address_;
  const Lane lane_;
  Observer* const observer_;
  std::unique_ptr<NodeConnection> connection_;
  std::deque<KeyRequest> waiting_;
  bool refuses_ = false;
  absl::Status why_refuses_;
  absl::Time last_used_;
  uint32_t attempts_ = 0;
  bool has_served_ = false;
  std::optional<EventLoop::Timer> attempt_timer_, look_timer_;
  absl::Time seen_progress_ = absl::InfinitePast();
  int quiet_looks_ = 0;  // one after another that found an answer owed and no progress
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_CLUSTER_NODE_H_
