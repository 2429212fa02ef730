// StreamCounts: how many calls of a connection are not over, or were given up, as gRPC counts them.
//
// A caller may begin a call and give it up at once, again and again: each counts against its limit
// of streams no longer, but is an object of gRPC's until its turn has come. gRPC 1.51 has no bound
// for those, and tells of them through channelz only. Thread safety: one thread's. Ownership: none.
#ifndef HEARTH_SERVICES_SERVING_DOOR_STREAM_COUNTS_H_
#define HEARTH_SERVICES_SERVING_DOOR_STREAM_COUNTS_H_

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"

namespace hearth {

class StreamCounts {
 public:
  // Of the connection that gRPC calls `peer`, to any server of this process. Zeros for one that
  // gRPC does not know. Costs some JSON, and for peers not asked for before a look at all of them,
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
