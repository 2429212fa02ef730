// ConnectionTracker: counts the received bytes of each connection that no call has consumed yet.
//
// gRPC buffers a message until it is complete, however long the sender takes and however long the
// message is, and has no limit or callback for it (docs/dev/decisions.md, D33). But the kernel
// counts the bytes that a TCP connection received, and every call reports the bytes that gRPC gave
// it. The difference lies in gRPC's buffers. The tracker finds the connections to be closed.
// Thread safety: all methods from any thread. Ownership: must outlive all calls.
// Invariants: (1) once the connections that FindExcessive returned are closed, the remaining
// connections together hold at most `all_bytes`; (2) a connection whose bytes are consumed within
// `message_time` is not returned, unless it is over a limit of bytes. Calls without a message, and
// calls that their callers cancelled, are not counted: a proxy must limit them (docs/security.md).
#ifndef HEARTH_SERVICES_SERVING_ACCESS_CONNECTION_TRACKER_H_
#define HEARTH_SERVICES_SERVING_ACCESS_CONNECTION_TRACKER_H_

#include <atomic>
#include <cassert>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace hearth {

struct ConnectionLimits {
  uint32_t connections = 512;
  // Maximum number of unconsumed bytes of one connection, not counting `stream_bytes`.
  uint64_t each_bytes = uint64_t{16} << 20;
  // Additional unconsumed bytes for each upload stream of a connection: one piece of a slice, and a
  // flow-control window.
  uint64_t stream_bytes = uint64_t{3} << 19;
  // Maximum number of unconsumed bytes of all connections together.
  uint64_t all_bytes = uint64_t{128} << 20;
  // A message must be complete within this time, unless it has `slack_bytes` or less.
  absl::Duration message_time = absl::Seconds(30);
  absl::Duration idle_time = absl::Seconds(10);
  uint64_t slack_bytes = uint64_t{64} << 10;
  // Bytes that each call may receive in frames that carry no message.
  uint64_t call_bytes = 512;
  // Bytes in such frames that a connection may receive per second.
  uint64_t second_bytes = 256;
  // A connection may receive one such byte for each `sent_share` bytes that it sends.
  uint64_t sent_share = 256;
};

// One connection, with the bytes that its calls have consumed.
class Connection {
 public:
  // `fd`: for the owner of the connection; the tracker does not use it.
  Connection(std::string peer, int fd, absl::Time since)
      : peer_(std::move(peer)), fd_(fd), since_(since) {}
  const std::string& peer() const { return peer_; }
  int fd() const { return fd_; }

  // Call when a call on this connection has received a message of `bytes` bytes.
  void AddConsumed(uint64_t bytes) { newly_consumed_.fetch_add(bytes, std::memory_order_relaxed); }
  // Call when a call on this connection was authenticated, or if callers are not authenticated.
  void MarkAuthenticated() { is_authenticated_.store(true, std::memory_order_relaxed); }
  // Call when a call begins on this connection. `is_upload`: it reads a stream of messages.
  void CallBegins(bool is_upload) {
    calls_.fetch_add(1, std::memory_order_relaxed);
    streams_.fetch_add(is_upload, std::memory_order_relaxed);
  }
  void CallEnds(bool is_upload) {
    const uint32_t before = calls_.fetch_sub(1, std::memory_order_relaxed);
    assert(before > 0);
    streams_.fetch_sub(is_upload, std::memory_order_relaxed);
  }

 private:
  friend class ConnectionTracker;

  const std::string peer_;
  const int fd_;
  const absl::Time since_;
  std::atomic<uint64_t> newly_consumed_{0};
  std::atomic<bool> is_authenticated_{false};
  std::atomic<uint32_t> calls_{0}, streams_{0};

  // Used by the tracker under its mutex.
  uint64_t received_ = 0,
           consumed_ = 0;  // consumed by calls, or received without a message
  uint64_t seen_sent_ = 0;
  // value of received_ at mark_time_; these bytes must be consumed within message_time
  uint64_t mark_ = 0;
  absl::Time mark_time_ = absl::InfinitePast();
  absl::Time looked_ = absl::InfinitePast();
  // time of the last check at which calls had consumed bytes
  absl::Time used_ = absl::InfinitePast();
  bool closed_ = false;
};

class ConnectionTracker {
 public:
  void SetLimits(const ConnectionLimits& limits) ABSL_LOCKS_EXCLUDED(mutex_);
  ConnectionLimits limits() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Adds a connection. `peer`: gRPC's name of the connection, such as "ipv4:127.0.0.1:4711"; for a
  // unix socket, the name that the acceptor gave it.
  std::shared_ptr<Connection> Add(const std::string& peer, int fd, absl::Time now);
  void Remove(const std::shared_ptr<Connection>& connection);
  // Returns the connection that gRPC names `peer`; null if it is not a TCP connection, or was
  // removed.
  std::shared_ptr<Connection> Find(const std::string& peer) const;

  // Bytes of one connection that the kernel has counted.
  struct KernelBytes {
    uint64_t received = 0, sent = 0;
  };
  struct Excess {
    std::shared_ptr<Connection> connection;
    std::string why;
  };
  using Count = absl::FunctionRef<KernelBytes(const Connection& connection)>;
  // Returns the connections to be closed, the worst first; each connection is returned once.
  std::vector<Excess> FindExcessive(absl::Time now, Count count);
  // Returns the connection to close for `newcomer` when the limit of connections is reached. This
  // is the oldest unauthenticated connection. If all are authenticated, it is the connection
  // without calls that is unused for longest, at least for `idle_time`; else null.
  std::shared_ptr<Connection> FindReplaceable(const Connection& newcomer, absl::Time now);

  uint64_t unconsumed_bytes() const;
  size_t connections() const;

 private:
  static uint64_t UnconsumedOf(const Connection& connection) {
    assert(connection.consumed_ <= connection.received_);
    return connection.received_ - connection.consumed_;
  }
  uint64_t Allowance(const Connection& connection) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Enter(Connection* connection, const KernelBytes& counted, absl::Time now)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string FaultOf(const Connection& connection, absl::Time now) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  ConnectionLimits limits_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::shared_ptr<Connection>> open_ ABSL_GUARDED_BY(mutex_);
  uint64_t unconsumed_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_ACCESS_CONNECTION_TRACKER_H_
