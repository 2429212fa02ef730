// SharedEngine: the key-value engine that several stores share, for example a Redis Cluster.
//
// Its values are not trusted: at any time, a value may vanish or be replaced by another client. A
// call takes one round trip to each shard that has any of its keys, to all shards in parallel. It
// returns one result for each key, in the order of the keys. If a shard does not answer in time,
// only its own keys fail.
//
// Thread safety: all methods from any thread. Ownership: values are copied in and out. Errors of a
// key: kUnavailable: its shard cannot be reached; kDeadlineExceeded; kNotFound (Get);
// kResourceExhausted: the engine has no memory for the value; kPermissionDenied: the engine's user
// does not have a right.
#ifndef HEARTH_CACHE_STORE_SHARED_SHARED_ENGINE_H_
#define HEARTH_CACHE_STORE_SHARED_SHARED_ENGINE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace hearth {

struct SharedValue {
  std::string key;
  std::string value;                              // must not be empty
  absl::Duration ttl = absl::InfiniteDuration();  // must be whole milliseconds, at least 1
  bool only_if_absent = false;
};

struct SharedExpiry {
  std::string key;
  absl::Duration ttl;  // must be below 100 years
};

struct SharedEngineStats {
  uint32_t shards = 0;     // number of known primaries
  uint32_t reachable = 0;  // number of primaries with an open connection
  uint32_t nodes = 0;      // number of connections that are open or being opened
  uint64_t round_trips = 0, redirections = 0, reconnects = 0, failed = 0;
  uint64_t sent_bytes = 0;
};

class SharedEngine {
 public:
  using Values = std::vector<absl::StatusOr<std::string>>;
  using Later = std::function<Values()>;

  virtual ~SharedEngine() = default;

  virtual std::vector<absl::StatusOr<bool>> Exists(absl::Span<const std::string> keys,
                                                   absl::Time deadline) = 0;
  // Reads values. `max_bytes`: limit of each value. kDataLoss: the value is longer, or has another
  // Redis type.
  Values Get(std::vector<std::string> keys, uint64_t max_bytes, absl::Time deadline) {
    return GetLater(std::move(keys), max_bytes, deadline)();
  }
  // Starts a Get, and returns a function that waits for the values. Call this function at most
  // once, and only while the engine exists.
  virtual Later GetLater(std::vector<std::string> keys, uint64_t max_bytes,
                         absl::Time deadline) = 0;
  // Writes values. Returns for each value whether it was written; false: `only_if_absent` is set
  // and the key exists.
  virtual std::vector<absl::StatusOr<bool>> Set(absl::Span<const SharedValue> values,
                                                absl::Time deadline) = 0;
  // Extends the expiry of each key; never shortens it. Does nothing for a key that does not exist.
  virtual std::vector<absl::Status> ExtendExpiry(absl::Span<const SharedExpiry> expiries,
                                                 absl::Time deadline) = 0;
  // Erases keys. An erase takes effect after all earlier Set calls of this engine, even of callers
  // that have given up.
  virtual std::vector<absl::Status> Erase(absl::Span<const std::string> keys,
                                          absl::Time deadline) = 0;
  // Takes back a value that Get returned, so that its memory is reused.
  virtual void Recycle(std::string /*value*/) {}
  virtual SharedEngineStats Stats() const = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_SHARED_ENGINE_H_
