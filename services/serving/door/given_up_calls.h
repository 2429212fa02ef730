// GivenUpCalls: finds callers that begin calls and give them up faster than a server can take.
//
// A call that is reset at once costs its caller a few bytes, and the server as much as any call
// (CVE-2023-44487). Calls that ended before the server had answered are counted, by connection and
// by host, because a closed connection is soon followed by another.
// Thread safety: one thread at a time. Units: calls in about the last second.
// Invariants: (1) once the connections that Judge named are closed, those of one host have at most
// `of_host` together, and all at most `of_all`; (2) no caller is named in place of one that gave up
// more.
#ifndef HEARTH_SERVICES_SERVING_DOOR_GIVEN_UP_CALLS_H_
#define HEARTH_SERVICES_SERVING_DOOR_GIVEN_UP_CALLS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"

namespace hearth {

struct GivenUpLimits {
  // A connection has at most 256 open calls: all of them given up eight times in a second.
  double of_host = 2000, of_all = 4000;
  // Of a connection made after its host was over the limit.
  double of_watched = 125;
  // A host stays watched while it gives up more than this. One that resets all it can is let in 5
  // to 10 times a second and resets over 100 calls each time; an honest one may need more than 125.
  double of_host_watched_on = 500;
  // A host that was over the limit is let in again one connection at a time, with a pause that
  // doubles each time it is over again, until it was not for `memory`.
  absl::Duration pause = absl::Milliseconds(100), longest_pause = absl::Milliseconds(200);
  absl::Duration memory = absl::Seconds(30);
  size_t hosts = 4096;  // remembered
};

class GivenUpCalls {
 public:
  // The calls that one connection gave up.
  class Tally {
   public:
    explicit Tally(absl::Time since = absl::InfinitePast()) : told_(since), asked_(since) {}
    // The connection received so many bytes since the last call.
    void Came(uint64_t bytes, absl::Time now);
    // `total`: calls since the connection began, as of `now`. The new ones are assumed to be spread
    // over time as its bytes were; evenly without bytes.
    void Add(uint64_t total, absl::Time now);
    // Calls beyond the last `total`.
    void AddMore(uint64_t more, absl::Time now);
    // Takes over the count of another connection.
    void Inherit(double recent, absl::Time now);
    double recent(absl::Time now) const;

   private:
    uint64_t total_ = 0;
    double recent_ = 0;                    // at told_
    double bytes_ = 0, recent_bytes_ = 0;  // since asked_; of them, of the last second
    absl::Time told_, asked_;
  };
  struct Caller {
    std::string host;
    double recent = 0;
    bool is_known = false;  // to the server, by a call
    absl::Time since;       // of its connection
  };

  void SetLimits(const GivenUpLimits& limits) { limits_ = limits; }
  // The callers to be closed (indexes), and why.
  std::vector<std::pair<size_t, std::string>> Judge(const std::vector<Caller>& callers,
                                                    absl::Time now);
  // A connection of this host ended, for any reason, with so many recent calls given up.
  void NoteEnd(const std::string& host, double recent, absl::Time now);
  // A connection of this host was closed for giving up calls, though not by Judge.
  void NoteOverLimit(const std::string& host, absl::Time now);
  // Whether a newcomer of this host is let in now. True is a turn taken.
  bool LetsIn(const std::string& host, absl::Time now);
  bool Watches(const std::string& host, absl::Time now) const;

 private:
  struct Record {
    absl::Time first, last;  // when it was over the limit
    absl::Time next;         // when one more is let in
    absl::Duration pause;
  };
  const Record* RecordOf(const std::string& host, absl::Time now) const;
  // The recent given-up calls of each host, of open and of ended connections.
  absl::flat_hash_map<std::string, double> SumsByHost(const std::vector<Caller>& callers,
                                                      absl::Time now) const;
  void NoteHostsOverLimit(const absl::flat_hash_map<std::string, double>& sums, absl::Time now);

  GivenUpLimits limits_;
  absl::flat_hash_map<std::string, Tally> left_;  // of connections that ended
  absl::flat_hash_map<std::string, Record> records_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_DOOR_GIVEN_UP_CALLS_H_
