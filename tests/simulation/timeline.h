// Timeline: virtual time, scheduled events and their history, and random numbers. All of them
// depend only on a seed.
//
// Each kind of decision has its own random sequence (DiceOf), derived from the seed and a name, so
// that a decision does not depend on how many other decisions were made before. Thread safety:
// none, except for the clock, which the store's threads read. Times are virtual.
#ifndef HEARTH_TESTS_SIMULATION_TIMELINE_H_
#define HEARTH_TESTS_SIMULATION_TIMELINE_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache_store/base/clock.h"

namespace hearth {

class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed) {}
  // Returns a number in [0, sides).
  uint64_t Roll(uint64_t sides) { return random_() % sides; }
  bool Chance(uint64_t percent) { return Roll(100) < percent; }
  absl::Duration Between(absl::Duration least, absl::Duration most) {
    const int64_t range = absl::ToInt64Microseconds(most - least) + 1;
    return least + absl::Microseconds(static_cast<int64_t>(Roll(static_cast<uint64_t>(range))));
  }
  std::mt19937_64* engine() { return &random_; }

 private:
  std::mt19937_64 random_;
};

class Timeline {
 public:
  // `lines_kept`: how many of the last lines of the history are kept for printing.
  Timeline(uint64_t seed, size_t lines_kept) : seed_(seed), lines_kept_(lines_kept) {}

  uint64_t seed() const { return seed_; }
  Dice DiceOf(absl::string_view name) const;

  absl::Time now() const { return now_; }
  // The clock of the store. Jump changes this clock without passing virtual time.
  Clock* store_clock() { return &store_clock_; }
  void Jump(absl::Duration by) { store_clock_.Jump(by); }

  // Schedules an event. Events with the same time run in the order in which they were scheduled.
  void After(absl::Duration delay, std::function<void()> event);
  // Runs the next event. Returns false if no event is scheduled.
  bool RunNext();
  // Removes all scheduled events.
  void Forget() { events_.clear(); }

  // Adds a line to the history and to its digest. If an invariant is violated, the last lines are
  // printed.
  void Note(const std::string& line);
  // Adds a line to the history but not to its digest, for lines that may differ between two runs of
  // a seed.
  void LogOnly(const std::string& line);
  // Records that an invariant was violated. `invariant`: its number in docs/dev/invariants.md. Only
  // the first violation is recorded, because the World then stops.
  void Violated(int invariant, const std::string& what);
  bool failed() const { return !violation_.empty(); }
  const std::string& violation() const { return violation_; }
  std::string History() const;
  uint64_t digest() const { return digest_; }
  uint64_t lines() const { return lines_; }

 private:
  class StoreClock : public Clock {
   public:
    absl::Time Now() override {
      absl::MutexLock lock(&mu_);
      return now_;
    }
    void Jump(absl::Duration by) {
      absl::MutexLock lock(&mu_);
      now_ += by;
    }

   private:
    absl::Mutex mu_;
    absl::Time now_ ABSL_GUARDED_BY(mu_) = absl::FromUnixSeconds(1700000000);
  };

  const uint64_t seed_;
  const size_t lines_kept_;
  StoreClock store_clock_;
  absl::Time now_ = absl::UnixEpoch();
  uint64_t announced_ = 0, lines_ = 0, digest_ = 14695981039346656037u;
  std::map<std::pair<absl::Time, uint64_t>, std::function<void()>> events_;
  std::deque<std::string> history_;
  std::string violation_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SIMULATION_TIMELINE_H_
