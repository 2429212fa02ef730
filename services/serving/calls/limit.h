// Limit: decides which calls of one kind are let in, so that no caller keeps others out.
//
// At most `all` places are taken at a time, and `each_tenant` by a tenant that calls for itself.
// The last place of all is for a tenant that has none. A call that has a place keeps it, whoever
// else wants one; but one that holds memory for its caller keeps a pace: while it waits for its
// caller it must move `floor_bytes` in each `window`, or it is ended.
// Thread safety: all methods from any thread. Ownership: places must not outlive it; the clock
// must. Invariants: (1) of all places, and of a tenant's, no more are counted than that; (2) `end`
// is called once at most, under no lock of this class's.
#ifndef HEARTH_SERVICES_SERVING_CALLS_LIMIT_H_
#define HEARTH_SERVICES_SERVING_CALLS_LIMIT_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "absl/base/call_once.h"
#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache_store/base/clock.h"
#include "cache_store/base/repeating_thread.h"
#include "services/serving/door/identity.h"

namespace hearth {

class Limit {
 public:
  struct Options {
    std::string kind;  // "publish"
    int all = 0, each_tenant = 0;
    absl::Duration window = absl::Seconds(60);
    uint64_t floor_bytes = uint64_t{1} << 20;
  };
  using EndStream = std::function<void(const absl::Status&)>;

  // The place of one call.
  class Place {
   public:
    ~Place() { places_->Release(this); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

    void Moved(uint64_t bytes) { moved_.fetch_add(bytes, std::memory_order_relaxed); }
    // Only while it waits for the caller does its lack of progress count.
    void WaitsForCaller(bool waits) { waits_.store(waits, std::memory_order_relaxed); }
    // The tenant that a worker names later. kResourceExhausted when that tenant has three
    // quarters of all places.
    absl::Status BelongsTo(const std::string& tenant) { return places_->Assign(this, tenant); }

   private:
    friend class Limit;
    Place(Limit* places, bool is_worker, EndStream end, int weight)
        : places_(places), is_worker_(is_worker), end_(std::move(end)), weight_(weight) {}

    Limit* const places_;
    const bool is_worker_;  // the caller names others' tenants
    const EndStream end_;   // null: it cannot be ended
    const int weight_;
    std::atomic<uint64_t> moved_{0};
    std::atomic<bool> waits_{true};

    // Under places_->mutex_.
    std::list<Place*>::iterator at_;
    std::string tenant_;
    bool counted_ = true;
    absl::Time since_;
    uint64_t moved_before_ = 0;  // since_
  };

  // `clock` null: a SteadyClock. A limit of 0 is none.
  explicit Limit(Options options, Clock* clock = nullptr);
  ~Limit();
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

  void SetClock(Clock* clock);  // before any stream
  // In which a stream must move `floor_bytes`. Before any stream.
  void SetWindow(absl::Duration window);

  // A place, which counts as `weight` places. `end` ends the call, and may outlive the place.
  // Workers and administrators, and everybody where no identities are asked for, are limited by
  // `all` only. kResourceExhausted names the limit.
  absl::StatusOr<std::unique_ptr<Place>> Enter(const Identity& caller, EndStream end = nullptr,
                                               int weight = 1) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the streams that do not keep the pace. A thread of its own calls it four times a second,
  // once there is a stream that can be ended.
  void EndSlow() ABSL_LOCKS_EXCLUDED(mutex_);
  int open() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Release(Place* place) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Assign(Place* place, const std::string& tenant) ABSL_LOCKS_EXCLUDED(mutex_);
  void Uncount(Place* place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeginWindow(Place* place, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckPlace(const std::string& tenant, int weight) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  Options options_;
  SteadyClock steady_clock_;
  Clock* clock_;
  mutable absl::Mutex mutex_;
  std::list<Place*> places_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, int> of_tenant_ ABSL_GUARDED_BY(mutex_);  // counted ones; "": not known
  int open_ ABSL_GUARDED_BY(mutex_) = 0;                          // counted ones
  absl::once_flag looking_;
  std::unique_ptr<RepeatingThread> looker_;  // last: it uses the others
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_CALLS_LIMIT_H_
