// StreamPlaces: limits the open streams of one kind that hold memory for their callers, and ends
// those that hardly move.
//
// A stream that moves less than `floor_bytes` in a `window` in which it waits for its caller is
// ended. Where there is no place for a new one, the slowest stream is ended, first among those of a
// tenant with more than its share; one that moves well never is.
// Thread safety: all methods from any thread. Ownership: places must not outlive it; the clock
// must. Invariants: (1) at most `all` streams are counted, and `each_tenant` of a tenant that calls
// for itself; (2) `end` is called once at most, under no lock of this class's.
#ifndef HEARTH_SERVICES_SERVING_CALLS_STREAM_PLACES_H_
#define HEARTH_SERVICES_SERVING_CALLS_STREAM_PLACES_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache_store/base/clock.h"
#include "services/serving/door/identity.h"

namespace hearth {

class StreamPlaces {
 public:
  struct Options {
    std::string kind;  // "publish"
    int all = 0, each_tenant = 0;
    absl::Duration window = absl::Seconds(60);
    uint64_t floor_bytes = uint64_t{64} << 10;
    // A faster stream keeps its place, and so does each during `grace`.
    uint64_t slow_bytes_per_s = uint64_t{1} << 20;
    absl::Duration grace = absl::Seconds(5);
  };
  using EndStream = std::function<void(const absl::Status&)>;

  // The place of one stream.
  class Place {
   public:
    ~Place() { places_->Release(this); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    void Moved(uint64_t bytes) { moved_.fetch_add(bytes, std::memory_order_relaxed); }
    // Only while it waits for the caller does its lack of progress count.
    void WaitsForCaller(bool waits) { waits_.store(waits, std::memory_order_relaxed); }
    // The tenant that a worker names later. kResourceExhausted when that tenant has three
    // quarters of all places, and none of them is slow.
    absl::Status BelongsTo(const std::string& tenant) { return places_->Assign(this, tenant); }

   private:
    friend class StreamPlaces;
    Place(StreamPlaces* places, bool is_worker, EndStream end)
        : places_(places), is_worker_(is_worker), end_(std::move(end)) {}

    StreamPlaces* const places_;
    const bool is_worker_;  // the caller names others' tenants
    const EndStream end_;
    std::atomic<uint64_t> moved_{0};
    std::atomic<bool> waits_{true};

    // Under places_->mutex_.
    std::string tenant_;
    bool counted_ = true;
    absl::Time since_;
    uint64_t moved_before_ = 0;  // since_
    double bytes_per_s_ = 0;     // of the last whole window
    bool has_rate_ = false;
  };

  // `clock` null: a SteadyClock.
  explicit StreamPlaces(Options options, Clock* clock = nullptr);
  ~StreamPlaces();
  StreamPlaces(const StreamPlaces&) = delete;
  StreamPlaces& operator=(const StreamPlaces&) = delete;

  void SetClock(Clock* clock);  // before any stream
  // How long a stream may move less than `floor_bytes`. Before any stream.
  void SetWindow(absl::Duration window);

  // `end` ends the stream; it may outlive the place. kResourceExhausted names the limit.
  absl::StatusOr<std::unique_ptr<Place>> Enter(const Identity& caller, EndStream end)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the streams below the floor. To be called now and then.
  void EndSlow() ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the slowest stream, if one is slow, since a caller lacks memory that streams hold.
  void MakeRoom() ABSL_LOCKS_EXCLUDED(mutex_);
  int open() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Release(Place* place) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Assign(Place* place, const std::string& tenant) ABSL_LOCKS_EXCLUDED(mutex_);
  void Uncount(Place* place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginWindow(Place* place, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  double RateOf(const Place& place, absl::Time now) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The slowest stream of `tenant`, or of anybody (null); it is not counted any more, and the
  // caller must end it. Null when none is slow.
  EndStream TakeSlowest(const std::string* tenant, const std::string& newcomer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Displaced() const;

  Options options_;
  SteadyClock steady_clock_;
  Clock* clock_;
  mutable absl::Mutex mutex_;
  std::list<Place*> places_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> of_tenant_ ABSL_GUARDED_BY(mutex_);  // counted ones; "": not known
  int open_ ABSL_GUARDED_BY(mutex_) = 0;                          // counted ones
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_CALLS_STREAM_PLACES_H_
