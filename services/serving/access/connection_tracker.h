// ConnectionTracker: counts the bytes that each connection sent and that no call has taken yet.
//
// gRPC buffers a message until it is whole, however long its sender takes and however long the
// message is, and has no limit or callback for that (docs/dev/decisions.md, D33). But the kernel
// counts the bytes that a TCP connection received, and every call reports the bytes that it was
// given: the difference lies in gRPC's buffers. The ledger names the connections to be closed.
// Thread safety: all methods from any thread. Ownership: the owner keeps it as long as calls run.
// Invariants: (1) once the connections that FindExcessive named are closed, the others hold at most
// `all_bytes` together; (2) a connection whose bytes are taken within `message_time` is not named,
// unless it is over a limit of bytes. Calls whose caller sent no message, or gave them up, are not
// counted: they are a proxy's to bound (docs/security.md).
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
  // Bytes not yet taken: of one connection, plus for each stream on it that goes on reading; of
  // all.
  uint64_t each_bytes = uint64_t{16} << 20;
  uint64_t stream_bytes = uint64_t{3} << 19;  // a piece of a slice and a window
  uint64_t all_bytes = uint64_t{128} << 20;
  // A message must be whole within this time, unless it has `slack_bytes` or less.
  absl::Duration message_time = absl::Seconds(30);
  absl::Duration idle_time = absl::Seconds(10);
  uint64_t slack_bytes = uint64_t{64} << 10;
  // Bytes of frames that are no message: for each call, each second, and as a share of the bytes
  // sent.
  uint64_t call_bytes = 512;
  uint64_t second_bytes = 256;
  uint64_t sent_share = 256;
};

// One connection, and what its calls report about it.
class Connection {
 public:
  // `fd` is not used here, only handed back to the owner.
  Connection(std::string peer, int fd, absl::Time since)
      : peer_(std::move(peer)), fd_(fd), since_(since) {}
  const std::string& peer() const { return peer_; }
  int fd() const { return fd_; }

  // A call was given a message of so many bytes.
  void AddConsumed(uint64_t bytes) { newly_consumed_.fetch_add(bytes, std::memory_order_relaxed); }
  // A call on it was authenticated, or none needs to be.
  void MarkAuthenticated() { is_authenticated_.store(true, std::memory_order_relaxed); }
  // `is_upload`: the call goes on reading messages.
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
  std::atomic<uint64_t> newly_consumed_{0};  // since the last FindExcessive
  std::atomic<bool> is_authenticated_{false};
  std::atomic<uint32_t> calls_{0}, streams_{0};

  // The ledger's, under its mutex.
  uint64_t received_ = 0, consumed_ = 0;  // consumed: taken, or no message
  uint64_t seen_sent_ = 0;
  uint64_t mark_ = 0;  // received by mark_time_; to be consumed within message_time
  absl::Time mark_time_ = absl::InfinitePast();
  absl::Time looked_ = absl::InfinitePast();
  absl::Time used_ = absl::InfinitePast();  // when a call was last seen to take bytes
  bool closed_ = false;
};

class ConnectionTracker {
 public:
  void SetLimits(const ConnectionLimits& limits) ABSL_LOCKS_EXCLUDED(mutex_);
  ConnectionLimits limits() const ABSL_LOCKS_EXCLUDED(mutex_);

  // `peer`: gRPC's name, "ipv4:127.0.0.1:4711"; for a unix socket, whose bytes the kernel does not
  // count, a name of our own.
  std::shared_ptr<Connection> Add(const std::string& peer, int fd, absl::Time now);
  void Remove(const std::shared_ptr<Connection>& connection);
  // Null where `peer` is no TCP connection, or was removed.
  std::shared_ptr<Connection> Find(const std::string& peer) const;

  // The kernel's figures of a connection.
  struct KernelBytes {
    uint64_t received = 0, sent = 0;
  };
  struct Excess {
    std::shared_ptr<Connection> connection;
    std::string why;
  };
  using Count = absl::FunctionRef<KernelBytes(const Connection& connection)>;
  // The connections to be closed, the worst first; each is named once.
  std::vector<Excess> FindExcessive(absl::Time now, Count count);
  // At the limit of connections: the one to be closed for `newcomer`. The oldest that was not
  // authenticated, else one without a call for `idle_time`; null when there is neither.
  std::shared_ptr<Connection> FindReplaceable(const Connection& newcomer, absl::Time now);

  uint64_t unconsumed_bytes() const;  // at the last FindExcessive
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
