// FakeSharedEngine: a shared engine in memory. Tests can lose, change and delay its values.
//
// A FakeSharedMemory holds the values that several stores share. Each store has a FakeSharedEngine
// that uses this memory. A delay advances the test's clock instead of waiting. Thread safe.
#ifndef HEARTH_TESTS_SUPPORT_FAKE_SHARED_ENGINE_H_
#define HEARTH_TESTS_SUPPORT_FAKE_SHARED_ENGINE_H_

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "cache_store/shared/shared_engine.h"
#include "tests/support/fake_clock.h"

namespace hearth {

struct FakeSharedMemory {
  struct Entry {
    std::string value;
    absl::Time expires = absl::InfiniteFuture();
  };
  absl::Mutex mu;
  std::map<std::string, Entry> entries;

  std::vector<std::string> Names() {
    absl::MutexLock lock(&mu);
    std::vector<std::string> names;
    for (const auto& [name, entry] : entries) names.push_back(name);
    return names;
  }
  // Returns the number of keys that end with `end`.
  size_t Count(absl::string_view end) {
    size_t count = 0;
    for (const std::string& name : Names()) count += absl::EndsWith(name, end);
    return count;
  }
};

class FakeSharedEngine : public SharedEngine {
 public:
  FakeSharedEngine(FakeSharedMemory* memory, FakeClock* clock) : memory_(memory), clock_(clock) {}

  // Sets the duration of each round trip. InfiniteDuration: no reply arrives.
  void SetDelay(absl::Duration delay) { delay_ = delay; }
  void SetUnreachable(bool unreachable) { unreachable_ = unreachable; }
  void SetFull(bool full) { full_ = full; }
  // While `late` is true, the writer gets no reply in time, and written values become visible only
  // when ArriveLate is called or before the next Erase.
  void SetLate(bool late) { late_ = late; }
  void ArriveLate() {
    absl::MutexLock lock(&memory_->mu);
    ArriveLocked();
  }
  // Sets the keys whose shard cannot be reached.
  void SetSilent(std::set<std::string> keys) { silent_ = std::move(keys); }
  // Sets a function that is called before each Get, with the number of earlier Gets.
  void OnGet(std::function<void(int)> hook) { on_get_ = std::move(hook); }
  // Sets a function that is called after each Set, before the caller gets the result.
  void OnWritten(std::function<void()> hook) { on_written_ = std::move(hook); }
  int round_trips() const { return round_trips_; }
  int gets() const { return gets_; }

  std::vector<absl::StatusOr<bool>> Exists(absl::Span<const std::string> keys,
                                           absl::Time deadline) override {
    if (absl::Status status = Answer(deadline); !status.ok()) {
      return std::vector<absl::StatusOr<bool>>(keys.size(), status);
    }
    std::vector<absl::StatusOr<bool>> results;
    absl::MutexLock lock(&memory_->mu);
    for (const std::string& key : keys) results.push_back(Find(key) != nullptr);
    return results;
  }
  // Reads the values when the caller waits for them, not before.
  Later GetLater(std::vector<std::string> keys, uint64_t max_bytes, absl::Time deadline) override {
    return [this, keys = std::move(keys), max_bytes, deadline] {
      return GetNow(keys, max_bytes, deadline);
    };
  }
  std::vector<absl::StatusOr<bool>> Set(absl::Span<const SharedValue> values,
                                        absl::Time deadline) override {
    if (absl::Status status = Answer(deadline); !status.ok()) return {values.size(), status};
    if (full_) return {values.size(), absl::ResourceExhaustedError("no memory")};
    if (late_) {
      absl::MutexLock lock(&memory_->mu);
      for (const SharedValue& value : values) {
        on_their_way_[value.key] = {value.value, clock_->Now() + value.ttl};
      }
      return {values.size(), absl::DeadlineExceededError("too late")};
    }
    std::vector<absl::StatusOr<bool>> results;
    {
      absl::MutexLock lock(&memory_->mu);
      for (const SharedValue& value : values) {
        const std::string& key = value.key;
        if (silent_.count(key) > 0) {
          results.push_back(absl::UnavailableError("not reached"));
          continue;
        }
        const bool writes = !value.only_if_absent || Find(key) == nullptr;
        if (writes) memory_->entries[key] = {value.value, clock_->Now() + value.ttl};
        results.push_back(writes);
      }
    }
    if (on_written_) on_written_();
    return results;
  }
  std::vector<absl::Status> ExtendExpiry(absl::Span<const SharedExpiry> expiries,
                                         absl::Time deadline) override {
    if (absl::Status status = Answer(deadline); !status.ok()) return {expiries.size(), status};
    absl::MutexLock lock(&memory_->mu);
    for (const SharedExpiry& expiry : expiries) {
      FakeSharedMemory::Entry* const entry = Find(expiry.key);
      if (entry != nullptr) entry->expires = std::max(entry->expires, clock_->Now() + expiry.ttl);
    }
    return std::vector<absl::Status>(expiries.size());
  }
  std::vector<absl::Status> Erase(absl::Span<const std::string> keys,
                                  absl::Time deadline) override {
    if (absl::Status status = Answer(deadline); !status.ok()) return {keys.size(), status};
    absl::MutexLock lock(&memory_->mu);
    ArriveLocked();
    for (const std::string& key : keys) memory_->entries.erase(key);
    return std::vector<absl::Status>(keys.size());
  }
  SharedEngineStats Stats() const override { return {}; }

 private:
  Values GetNow(absl::Span<const std::string> keys, uint64_t max_bytes, absl::Time deadline) {
    if (on_get_) on_get_(gets_);
    ++gets_;
    if (absl::Status status = Answer(deadline); !status.ok()) return {keys.size(), status};
    std::vector<absl::StatusOr<std::string>> results;
    absl::MutexLock lock(&memory_->mu);
    for (const std::string& key : keys) {
      const FakeSharedMemory::Entry* const entry = Find(key);
      if (silent_.count(key) > 0) {
        results.push_back(absl::UnavailableError("not reached"));
      } else if (entry == nullptr) {
        results.push_back(absl::NotFoundError(key));
      } else if (entry->value.size() > max_bytes) {
        results.push_back(absl::DataLossError("too long"));
      } else {
        results.push_back(entry->value);
      }
    }
    return results;
  }
  absl::Status Answer(absl::Time deadline) {
    ++round_trips_;
    if (unreachable_) return absl::UnavailableError("not reached");
    const absl::Time now = clock_->Now();
    if (now + delay_ <= deadline) {
      clock_->Advance(delay_);
      return absl::OkStatus();
    }
    clock_->Advance(std::max(absl::ZeroDuration(), deadline - now));
    return absl::DeadlineExceededError("too late");
  }
  void ArriveLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(memory_->mu) {
    for (auto& [key, entry] : on_their_way_) memory_->entries[key] = std::move(entry);
    on_their_way_.clear();
  }
  FakeSharedMemory::Entry* Find(const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(memory_->mu) {
    const auto it = memory_->entries.find(key);
    if (it == memory_->entries.end()) return nullptr;
    if (it->second.expires > clock_->Now()) return &it->second;
    memory_->entries.erase(it);
    return nullptr;
  }

  FakeSharedMemory* const memory_;
  FakeClock* const clock_;
  absl::Duration delay_;
  bool unreachable_ = false, full_ = false, late_ = false;
  std::map<std::string, FakeSharedMemory::Entry> on_their_way_;
  std::set<std::string> silent_;
  std::atomic<int> round_trips_{0}, gets_{0};
  std::function<void(int)> on_get_;
  std::function<void()> on_written_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_FAKE_SHARED_ENGINE_H_
