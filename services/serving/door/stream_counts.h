// StreamCounts: asks gRPC how many calls of a connection are unfinished, or were given up.
//
// A caller may begin calls and give them up at once: they no longer count against its limit of
// streams, but take gRPC's memory until it ends them. gRPC 1.51 has no limit for those, and reports
// them through channelz only. Thread safety: one thread's. Ownership: none.
#ifndef HEARTH_SERVICES_SERVING_DOOR_STREAM_COUNTS_H_
#define HEARTH_SERVICES_SERVING_DOOR_STREAM_COUNTS_H_

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"

namespace hearth {

class StreamCounts {
 public:
  // The counts of the connection that gRPC calls `peer`, to any server of this process. Zeros for
  // one that gRPC does not know. Costs some JSON, and for a new peer a listing of all connections,
  // once a round.
  struct Counts {
    uint64_t alive = 0;
    uint64_t given_up = 0;  // by the caller, since the connection began
  };
  Counts Of(const std::string& peer);
  void BeginRound() { is_listed_ = false; }
  // The connection is gone.
  void Forget(const std::string& peer) { sockets_.erase(peer); }

 private:
  void ListSockets();
  void ListSocketsOf(int64_t server);

  absl::flat_hash_map<std::string, int64_t> sockets_;  // gRPC's numbers of them
  bool is_listed_ = false;                             // in this round
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_DOOR_STREAM_COUNTS_H_
