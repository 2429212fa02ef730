// ClusterNode: sends the commands of one kind (lane) to one Redis node, on one pipelined connection
// that is reopened after a loss.
//
// A connection resolves the host, connects, authenticates and then sends commands; replies arrive
// in the same order. Circuit breaker: if a node fails or does not reply in time, it refuses
// commands immediately, while it is probed in the background. Commands wait while a connection is
// being opened (unless the last attempt failed), and while too many bytes are in flight. A value is
// copied only when it is sent, because copying many values at once would delay the loop. Thread
// safety: the loop's thread. Ownership: the router outlives the node, and never destroys it during
// a call from the node. Invariants: (1) each request is answered once; (2) the node never repeats a
// request that was sent: the caller decides from the answer.
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

// State that all connections of one client share. RedisCluster owns it, and it outlives its users.
// Used only by the loop's thread, except the counters.
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

  // Creates the node and starts connecting.
  ClusterNode(RedisParts* parts, const NodeAddress& address, Lane lane, ClusterRouter* router);
  ~ClusterNode() override;
  ClusterNode(const ClusterNode&) = delete;
  ClusterNode& operator=(const ClusterNode&) = delete;

  const NodeAddress& address() const { return address_; }
  Lane lane() const { return lane_; }
  bool IsUp() const { return connection_ != nullptr && connection_->phase == Phase::kOpen; }
  // Returns whether the node failed and has not replied since.
  bool IsDown() const { return refuses_; }
  const absl::Status& why_down() const { return why_refuses_; }
  bool IsIdle() const;  // whether no command waits to be sent or answered
  absl::Time last_used() const { return last_used_; }

  // Sends a request. The router gets the server's reply, possibly during this call.
  void Send(const KeyRequest& request);
  // Requests the map of hash slots (CLUSTER SLOTS). REQUIRES: IsUp().
  void RequestSlots(Done done);

  void OnReady(uint32_t events) override;

 private:
  enum class Phase { kConnecting, kGreeting, kOpen };
  struct Awaited {
    ReplyLimits limits;
    uint64_t cost = 0;
    Done done;  // null: nobody waits for the command's reply
  };
  // A connection. Functions keep a reference while they use it; the last reference closes it.
  struct Connection {
    explicit Connection(RedisParts* of) : parts(of), reader(&of->texts) {}
    ~Connection();

    RedisParts* const parts;
    Phase phase = Phase::kConnecting;
    std::unique_ptr<Transport> transport;
    ReplyReader reader;
    absl::Cord output;  // bytes to send; long commands are not copied into it
    std::deque<Awaited> awaited;
    uint64_t bytes_in_flight = 0;  // bytes of unanswered commands and of their replies
    // last_progress: time of the last reply, of the last kProgressBytes moved, or of the first
    // unanswered command.
    absl::Time last_progress = absl::InfinitePast(), opened = absl::InfinitePast();
    size_t moved_bytes = 0;                  // bytes sent or received since last_progress
    bool flushes = false, receives = false;  // whether a task to flush, or to receive, is posted
  };
  using ConnectionPtr = std::shared_ptr<Connection>;

  void Attempt();
  void EndAttempt();
  void Connect(absl::StatusOr<HostResolver::Addresses> addresses);
  void Greet();
  void OnGreeting(const absl::StatusOr<RedisReply>& reply, bool is_last);
  // Closes the connection: all waiting requests fail with `why`, and the next attempt is scheduled.
  void Close(const absl::Status& why);
  void Refuse(const absl::Status& why);
  void Pump();
  void SendNow(const KeyRequest& request);
  // Appends a command to the output. REQUIRES: the connection is open, or sends its first commands.
  void SendText(std::string command, const ReplyLimits& limits, uint64_t cost, Done done);
  // Posts `task` to run after the ready events, unless it is posted already. The task does nothing
  // if the connection is gone by then.
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
  ConnectionPtr connection_;  // null: not connected
  std::deque<KeyRequest> waiting_;
  bool refuses_ = false;
  absl::Status why_refuses_;
  absl::Time last_used_;
  uint32_t attempts_ = 0;
  bool has_served_ = false;
  std::optional<EventLoop::Timer> attempt_timer_, look_timer_;
  absl::Time seen_progress_ = absl::InfinitePast();
  // number of consecutive checks that found an unanswered command and no progress
  int quiet_looks_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_CLUSTER_NODE_H_
