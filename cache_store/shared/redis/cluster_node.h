// ClusterNode: one Redis node's commands of one lane, with the connection for them, on which many
// are under way, made again whenever it is lost.
//
// A connection finds the host, connects and proves who it is; then commands are sent and each gets
// its answer, in order. A circuit breaker: a node that failed, or owes an answer for too long,
// refuses commands at once while it is probed in the background. Commands wait for a connection
// that is being made unless the last attempt failed, and for the bytes under way to become fewer. A
// value is copied when its turn to be sent has come: many at once would hold the loop up. Thread
// safety: the loop's thread. Ownership: the router outlives it, and never destroys it in a call
// that it makes.
// Invariants: (1) each request is answered once; (2) requests that have left for the node are not
// sent again: whoever wants that has the answer to decide by.
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

// What all connections of one client share: the loop's thread, counters apart. RedisCluster owns
// it, and it outlives all who use it.
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
  RereadFile password;  // "" where there is none
  TextPool texts;
  RedisCounters counters;
};

class ClusterNode : public EventLoop::Watcher {
 public:
  using Done = std::function<void(absl::StatusOr<RedisReply>)>;

  // Begins to connect.
  ClusterNode(RedisParts* parts, const NodeAddress& address, Lane lane, ClusterRouter* router);
  ~ClusterNode() override;
  ClusterNode(const ClusterNode&) = delete;
  ClusterNode& operator=(const ClusterNode&) = delete;

  const NodeAddress& address() const { return address_; }
  Lane lane() const { return lane_; }
  bool IsUp() const { return connection_ != nullptr && connection_->phase == Phase::kOpen; }
  // It failed, and did not answer since.
  bool IsDown() const { return refuses_; }
  const absl::Status& why_down() const { return why_refuses_; }
  bool IsIdle() const;  // no command waits for it or its answer
  absl::Time last_used() const { return last_used_; }

  // Answers through the router, also from within this call.
  void Send(const KeyRequest& request);
  // CLUSTER SLOTS. REQUIRES: IsUp().
  void AskForSlots(Done done);

  void OnReady(uint32_t events) override;

 private:
  enum class Phase { kConnecting, kGreeting, kOpen };
  struct Awaited {
    ReplyLimits limits;
    uint64_t cost = 0;
    Done done;  // null: nobody waits
  };
  // Calls hold it while they use it: it is closed by being let go.
  struct Connection {
    explicit Connection(RedisParts* of) : parts(of), reader(&of->texts) {}
    ~Connection();

    RedisParts* const parts;
    Phase phase = Phase::kConnecting;
    std::unique_ptr<Transport> transport;
    ReplyReader reader;
    absl::Cord output;  // to be sent; long commands are not copied
    std::deque<Awaited> awaited;
    uint64_t bytes_in_flight = 0;  // of commands under way, and of their answers
    // When it last answered, or moved many bytes, or began to owe an answer.
    absl::Time last_progress = absl::InfinitePast(), opened = absl::InfinitePast();
    size_t moved_bytes = 0;                  // since then
    bool flushes = false, receives = false;  // a task of the loop is to
  };
  using ConnectionPtr = std::shared_ptr<Connection>;

  void Attempt();
  void EndAttempt();
  void Connect(absl::StatusOr<HostResolver::Addresses> addresses);
  void Greet();
  void OnGreeting(const absl::StatusOr<RedisReply>& reply, bool is_last);
  // Says `why` to all who wait, and tries again.
  void Close(const absl::Status& why);
  void Refuse(const absl::Status& why);
  void Pump();
  void SendNow(const KeyRequest& request);
  // REQUIRES: a connection that greets or is open.
  void SendText(std::string command, const ReplyLimits& limits, uint64_t cost, Done done);
  // Behind what is ready now, unless it is to be already, or the connection is gone by then.
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
  int quiet_looks_ = 0;  // one after another that found an answer owed and no progress
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_CLUSTER_NODE_H_
