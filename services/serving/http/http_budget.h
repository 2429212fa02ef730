// HttpBudget: one limit of bytes for all connections of an HTTP server: partially received
// requests, the memory of their handlers, and answers that are not sent yet.
//
// If new bytes do not fit, the caller with the most bytes loses its largest account: an attacker
// who fills the budget loses its own connections, even if each of them is small, and a small
// request is never refused. A caller's streams that have begun and hold at most a 16th of the limit
// are evicted after its other accounts.
// Thread safety: all methods from any thread.
// Ownership: each account keeps its budget alive.
// Invariants: (1) the accounts together hold at most `limit_bytes`; (2) an evicted account holds
// nothing and can hold nothing; (3) a destroyed account holds nothing; (4) a caller's sum is the
// sum of its accounts, and a caller without accounts has no entry.
#ifndef HEARTH_SERVICES_SERVING_HTTP_HTTP_BUDGET_H_
#define HEARTH_SERVICES_SERVING_HTTP_HTTP_BUDGET_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"

namespace hearth {

class HttpBudget {
 public:
  class Account;

  explicit HttpBudget(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  uint64_t held_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the largest number of bytes that were held at once, since the last call or the start.
  uint64_t TakePeakBytes() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Caller {
    uint64_t bytes = 0;  // bytes of the caller's accounts together
    absl::flat_hash_set<Account*> accounts;
  };

  // Returns the account to evict, so that `grows` can hold `bytes` more; it may be `grows` itself.
  Account* FindVictim(Account* grows, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Evict(Account* account, std::vector<std::function<void()>>* on_evict)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t limit_bytes_;
  mutable absl::Mutex mutex_;
  uint64_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  // largest number of bytes held at once since the last TakePeakBytes
  uint64_t peak_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_map<std::string, std::unique_ptr<Caller>> callers_ ABSL_GUARDED_BY(mutex_);
};

// The bytes of one connection and of its request.
class HttpBudget::Account {
 public:
  // `caller`: name of the account's owner. `on_evict`: called once if the account is evicted, by
  // the thread whose bytes did not fit, possibly after the account was destroyed. It must not call
  // the budget.
  Account(std::shared_ptr<HttpBudget> budget, std::string caller, std::function<void()> on_evict);
  ~Account();
  Account(const Account&) = delete;
  Account& operator=(const Account&) = delete;

  // Counts `bytes` more. If the budget has no room, the caller with the most bytes (these included)
  // loses its largest account. Returns false and counts nothing if that is this account, or if this
  // account was evicted before.
  bool Grow(uint64_t bytes);
  // REQUIRES: `bytes` were counted. Does nothing after an eviction.
  void Shrink(uint64_t bytes);
  // Sets whether a stream has begun; a small stream is evicted after the caller's other accounts.
  void SetStreaming(bool is_streaming);

 private:
  friend class HttpBudget;

  const std::shared_ptr<HttpBudget> budget_;
  const std::string name_;  // name of the caller
  // The members below are used by the budget, under the budget's mutex.
  Caller* caller_ = nullptr;
  std::function<void()> on_evict_;
  uint64_t bytes_ = 0;
  bool is_streaming_ = false;
  bool evicted_ = false;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_HTTP_HTTP_BUDGET_H_
