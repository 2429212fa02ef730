// ClusterNode: one lane of commands to a Redis node, on one pipelined connection, which is reopened
// after a loss.
//
// A connection resolves the host, connects and authenticates; then commands are sent, and replies
// arrive in order. Circuit breaker: a node that failed, or did not reply in time, refuses commands
// immediately while it is probed in the background. Commands wait for a connection that is being
// opened unless the last attempt failed, and for the bytes in flight to decrease. A value is copied
// only when it is sent, because copying many at once would delay the loop. Thread safety: the
// loop's thread. Ownership: the router outlives the node and never destroys it during a call from
// the node. Invariants: (1) each request is answered once; (2) a request that was sent is not sent
// again: the caller decides from the answer.
#ifndef HEARTH_CACHE_STORE_SHARED_REDIS_CLUSTER_NODE_H_
#define HEARTH_CACHE_STORE_SHARED_REDIS_CLUSTER_NODE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "cache_store/base/reread_file.h"
#include "cache_store/shared/redis/event_loop.h"
#include "cache_store/shared/redis/host_resolver.h"
#include "cache_store/shared/redis/key_batch.h"
#include "cache_store/shared/redis/redis_options.h"
#include "cache_store/shared/redis/redis_reply.h"
#include "cache_store/shared/redis/transport.h"

namespace hearth {

class ClusterRouter;

struct RedisCounters {
  std::atomic<uint32_t> shards{0}, reachable{0}, nodes{0};
  std::atomic<uint64_t> round_trips{0}, redirections{0}, reconnects{0}, failed{0};
  std::atomic<uint64_t> sent_bytes{0};
};

// State shared by all connections of one client. Used by the loop's thread, except the counters.
// RedisCluster owns it; it outlives its users.
struct RedisParts {
  explicit RedisParts(const RedisOptions& given)
      : options(given),
        resolver(&loop),
        tls(options),
        password(
            {options.password_file}, [this] { return ReadPassword(options.password_file); },
            options.on_unusable_file) {}

  const RedisOptions options;
  EventLoop loop;
  HostResolver resolver;
  TlsContext tls;
  RereadFile password;  // "": no password
  TextPool texts;
  RedisCounters counters;
};

class ClusterNode : public EventLoop::Watcher {
 public:
  using Done = std::function<void(absl::StatusOr<RedisReply>)>;

  // Starts to connect.
  ClusterNode(RedisParts* parts, const NodeAddress& address, Lane lane, ClusterRouter* router);
  ~ClusterNode() override;
  ClusterNode(const ClusterNode&) = delete;
  ClusterNode& operator=(const ClusterNode&) = delete;

  const NodeAddress& address() const { return address_; }
  Lane lane() const { return lane_; }
  bool IsUp() const { return connection_ != nullptr && connection_->phase == Phase::kOpen; }
  // The node failed and has not replied since.
  bool IsDown() const { return refuses_; }
  const absl::Status& why_down() const { return why_refuses_; }
  bool IsIdle() const;  // no command waits to be sent or answered
  absl::Time last_used() const { return last_used_; }

  // Sends a request; the router gets the answer, possibly during this call.
  void Send(const KeyRequest& request);
  // Sends CLUSTER SLOTS. REQUIRES: IsUp().
  void RequestSlots(Done done);

  void OnReady(uint32_t events) override;

 private:
  enum class Phase { kConnecting, kGreeting, kOpen };
  struct Awaited {
    ReplyLimits limits;
    uint64_t cost = 0;
    Done done;  // null: no waiter
  };
  // Functions hold a reference while they use the connection; releasing the last one closes it.
  struct Connection {
    explicit Connection(RedisParts* of) : parts(of), reader(&of->texts) {}
    ~Connection();

    RedisParts* const parts;
    Phase phase = Phase::kConnecting;
    std::unique_ptr<Transport> transport;
    ReplyReader reader;
    absl::Cord output;  // bytes to send; long commands are not copied
    std::deque<Awaited> awaited;
    uint64_t bytes_in_flight = 0;  // of running commands and their replies
    // Time of the last reply, of the last kProgressBytes moved, or of the first unanswered command.
    absl::Time last_progress = absl::InfinitePast(), opened = absl::InfinitePast();
    size_t moved_bytes = 0;                  // bytes moved since last_progress
    bool flushes = false, receives = false;  // a task to flush or receive is posted
  };
  using ConnectionPtr = std::shared_ptr<Connection>;

  void Attempt();
  void EndAttempt();
  void Connect(absl::StatusOr<HostResolver::Addresses> addresses);
  void Greet();
  void OnGreeting(const absl::StatusOr<RedisReply>& reply, bool is_last);
  // Fails all waiting requests with `why`, and schedules the next attempt.
  void Close(const absl::Status& why);
  void Refuse(const absl::Status& why);
  void Pump();
  void SendNow(const KeyRequest& request);
  // REQUIRES: the connection is greeting or open.
  void SendText(std::string command, const ReplyLimits& limits, uint64_t cost, Done done);
  // Posts `task` after the ready events, unless it is posted already. Skips the task if the
  // connection is gone by then.
  void Later(bool Connection::*is_to_be, void (ClusterNode::*task)());
  void Flush();
  void Receive();
  void ReceiveMore();
  void TakeReplies();
  void Moved(size_t bytes);
  void Look();
  bool IsSilent() const;
  absl::Time Now() { return parts_->loop.Now(); }

  RedisParts* const parts_;
  const NodeAddress address_;
  const Lane lane_;
  ClusterRouter* const router_;
  ConnectionPtr connection_;  // null between two attempts
  std::deque<KeyRequest> waiting_;
  bool refuses_ = false;
  absl::Status why_refuses_;
  absl::Time last_used_;
  uint32_t attempts_ = 0;
  bool has_served_ = false;
  std::optional<EventLoop::Timer> attempt_timer_, look_timer_;
  absl::Time seen_progress_ = absl::InfinitePast();
  int quiet_looks_ = 0;  // consecutive checks that found an unanswered command and no progress
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_CLUSTER_NODE_H_
