// NodeConnection: one connection to a Redis node, on which many commands are under way.
//
// Finds the host, connects, proves who it is, and then sends commands and hands each its answer, in
// order. Thread safety: the loop's thread. Ownership: its owner never destroys it in a call that it
// makes.
// Invariants: (1) `done` of each command is called once, unless the connection is destroyed first;
// (2) after OnClosed the owner is called no more.
#ifndef HEARTH_CACHE_STORE_SHARED_REDIS_NODE_CONNECTION_H_
#define HEARTH_CACHE_STORE_SHARED_REDIS_NODE_CONNECTION_H_

#include <sys/epoll.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include "cache_store/shared/redis/event_loop.h"
#include "cache_store/shared/redis/redis_options.h"
#include "cache_store/shared/redis/redis_parts.h"
#include "cache_store/shared/redis/redis_reply.h"
#include "cache_store/shared/redis/transport.h"

namespace hearth {

class NodeConnection : public EventLoop::Watcher {
 public:
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual void OnOpen() = 0;  // commands may be sent
    // After the answers that came at once, and once few bytes are left to be sent.
    virtual void OnMoved() = 0;
    virtual void OnClosed(const absl::Status& why) = 0;
  };
  using Done = std::function<void(absl::StatusOr<RedisReply>)>;

  // `attempt`: which of a host's addresses, in turn.
  NodeConnection(RedisParts* parts, const NodeAddress& node, uint32_t attempt, Owner* owner);
  ~NodeConnection() override;
  NodeConnection(const NodeConnection&) = delete;
  NodeConnection& operator=(const NodeConnection&) = delete;

  void Open();
  bool is_open() const { return phase_ == Phase::kOpen; }
  // `cost`: its bytes under way, and those of its answer. REQUIRES: is_open(), from others.
  void Send(std::string command, const ReplyLimits& limits, uint64_t cost, Done done);
  // Says `why` to all who wait, then to the owner.
  void Close(const absl::Status& why);

  size_t commands_in_flight() const { return awaited_.size(); }
  uint64_t bytes_in_flight() const { return bytes_in_flight_; }
  // More commands would only wait for those that wait to be sent.
  bool has_enough_to_send() const { return output_.size() >= kUnsentBytes; }
  // When it last answered, or moved many bytes, or began to owe an answer.
  absl::Time last_progress() const { return last_progress_; }
  absl::Time opened() const { return opened_; }

  void OnReady(uint32_t events) override;

 private:
  static constexpr size_t kUnsentBytes = size_t{256} << 10;

  enum class Phase { kNew, kConnecting, kGreeting, kOpen, kClosed };
  struct Awaited {
    ReplyLimits limits;
    uint64_t cost = 0;
    Done done;  // null: nobody waits
  };

  void Connect(absl::StatusOr<HostResolver::Addresses> addresses);
  void Greet();
  void OnGreeting(const absl::StatusOr<RedisReply>& reply, bool is_last);
  void Flush();
  void Receive();
  // Behind what is ready now, unless it is to be already or is closed by then.
  void Later(bool* is_to_be, void (NodeConnection::*task)());
  void ReceiveMore() { OnReady(EPOLLIN); }
  bool TakeReplies();
  void Moved(size_t bytes);

  RedisParts* const parts_;
  const NodeAddress node_;
  const uint32_t attempt_;
  Owner* const owner_;
  Phase phase_ = Phase::kNew;
  std::unique_ptr<Transport> transport_;
  ReplyReader reader_;
  absl::Cord output_;  // to be sent; long commands are not copied
  std::deque<Awaited> awaited_;
  uint64_t bytes_in_flight_ = 0;
  absl::Time last_progress_ = absl::InfinitePast(), opened_ = absl::InfinitePast();
  size_t moved_bytes_ = 0;                                        // since last_progress_
  bool flushes_ = false, receives_ = false;                       // a task of the loop is to
  const std::shared_ptr<char> lives_ = std::make_shared<char>();  // tasks ask whether it does
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_REDIS_NODE_CONNECTION_H_
