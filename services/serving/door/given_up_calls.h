// GivenUpCalls: finds callers that begin calls and give them up faster than a server can take.
//
// A call that is reset at once costs its caller a few bytes and the server all of a call
// (CVE-2023-44487). Calls that ended before the server had answered are counted, by connection and
// by host, because a closed connection is soon followed by another.
// Thread safety: one thread at a time. Units: calls in about the last second.
// Invariants: (1) once the connections that Judge named are closed, those of one host have at most
// `of_host` together, and all at most `of_all`; (2) nobody is named for what others did
// while they have the less of it.
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
  // A connection has 256 calls open at most: all of them, given up eight times in a second.
  double of_host = 2000, of_all = 4000;
  // Of a connection that was made after its host had been over.
  double of_watched = 125;
  // A host stays watched while it gives up more than this. One that resets all it can is let in 5
  // to 10 times a second and resets over 100 calls each time; an honest one may need more than 125.
  double of_host_watched_on = 500;
  // A host that was over is let in again one connection at a time, with a pause that doubles each
  // time it is over again, until it was not for `memory`.
  absl::Duration pause = absl::Milliseconds(100), longest_pause = absl::Milliseconds(200);
  absl::Duration memory = absl::Seconds(30);
  size_t hosts = 4096;  // that are remembered
};

class GivenUpCalls {
 public:
  // One connection's.
  class Tally {
   public:
    explicit Tally(absl::Time since = absl::InfinitePast()) : told_(since), asked_(since) {}
    // So many bytes of the connection since last told.
    void Came(uint64_t bytes, absl::Time now);
    // `total`: calls since the connection began, as of `now`. Those since the last time are taken
    // to have come as its bytes did; evenly, where none were told of.
    void Add(uint64_t total, absl::Time now);
    // Calls beyond the last `total`.
    void AddMore(uint64_t more, absl::Time now);
    // The record of another.
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
  // Which of `callers` are to be closed, and why.
  std::vector<std::pair<size_t, std::string>> Judge(const std::vector<Caller>& callers,
                                                    absl::Time now);
  // A connection of this host ended, for whatever reason, and had so many.
  void NoteEnd(const std::string& host, double recent, absl::Time now);
  // Closed for it, though not by Judge.
  void NoteOverLimit(const std::string& host, absl::Time now);
  // Whether a newcomer of this host is let in now. True is a turn taken.
  bool LetsIn(const std::string& host, absl::Time now);
  bool Watches(const std::string& host, absl::Time now) const;

 private:
  struct Record {
    absl::Time first, last;  // when it was over
    absl::Time next;         // when one more is let in
    absl::Duration pause;
  };
  const Record* RecordOf(const std::string& host, absl::Time now) const;
  // The names and figures of hosts, as their connections are and were.
  absl::flat_hash_map<std::string, double> SumsByHost(const std::vector<Caller>& callers,
                                                      absl::Time now) const;
  void NoteHostsOverLimit(const absl::flat_hash_map<std::string, double>& sums, absl::Time now);

  GivenUpLimits limits_;
  absl::flat_hash_map<std::string, Tally> left_;  // of connections that ended
  absl::flat_hash_map<std::string, Record> records_;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_DOOR_GIVEN_UP_CALLS_H_
