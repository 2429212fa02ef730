// SharedEngine: the key-value engine that the stores of a fleet share, such as a Redis Cluster.
//
// Anything in it may vanish, or be somebody else's, at any moment: nobody trusts its bytes. Each
// call is one round trip to each shard that its keys lie on, all shards at the same time, and has
// one result a key, in the order of the keys. A shard that does not answer in time costs its own
// keys alone.
//
// Thread safety: all methods from any thread. Ownership: values are copied in and out.
// Errors, of each key: kUnavailable: its shard is not reached; kDeadlineExceeded; kNotFound (Get);
// kResourceExhausted: the engine has no memory for it; kPermissionDenied: its user may not.
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

// A value to set.
struct SharedValue {
  std::string key;
  std::string value;                              // not empty
  absl::Duration ttl = absl::InfiniteDuration();  // whole milliseconds, at least one
  bool only_if_absent = false;
};

struct SharedExpiry {
  std::string key;
  absl::Duration ttl;  // below a century
};

struct SharedEngineStats {
  uint32_t shards = 0;     // primaries known
  uint32_t reachable = 0;  // of those, the ones that a connection stands to
  uint32_t nodes = 0;      // connections that stand or are tried
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
  // `max_bytes`: of one value; a longer one, or one that is no value at all, is kDataLoss.
  Values Get(std::vector<std::string> keys, uint64_t max_bytes, absl::Time deadline) {
    return GetLater(std::move(keys), max_bytes, deadline)();
  }
  // As Get, but returns at once; what it returns waits for the values, and is called at most once,
  // before the engine goes.
  virtual Later GetLater(std::vector<std::string> keys, uint64_t max_bytes,
                         absl::Time deadline) = 0;
  // Whether each was written; false: it was to be absent and is not.
  virtual std::vector<absl::StatusOr<bool>> Set(absl::Span<const SharedValue> values,
                                                absl::Time deadline) = 0;
  // Puts the end of a key's life off, and never nearer. A key that is gone stays gone.
  virtual std::vector<absl::Status> PutOff(absl::Span<const SharedExpiry> expiries,
                                           absl::Time deadline) = 0;
  // After what was set by this engine before, even where nobody waits for that any more.
  virtual std::vector<absl::Status> Erase(absl::Span<const std::string> keys,
                                          absl::Time deadline) = 0;
  // Takes back a value that Get gave, so that its memory serves the next one.
  virtual void Recycle(std::string /*value*/) {}
  virtual SharedEngineStats Stats() const = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_SHARED_ENGINE_H_
