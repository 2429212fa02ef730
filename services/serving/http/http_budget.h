// HttpBudget: one limit of bytes for all connections of an HTTP server: partially received
// requests, the memory of their handlers, and answers that are not sent yet.
//
// If new bytes do not fit, the account with the most bytes gives way. An attacker who fills the
// budget is therefore the first to lose a connection, and a small request is never refused.
// Thread safety: all methods from any thread.
// Ownership: each account keeps its budget alive.
// Invariants: (1) the accounts together hold at most `limit_bytes`; (2) an evicted account holds
// nothing and can hold nothing; (3) a destroyed account holds nothing.
#ifndef HEARTH_SERVICES_SERVING_HTTP_HTTP_BUDGET_H_
#define HEARTH_SERVICES_SERVING_HTTP_HTTP_BUDGET_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"

namespace hearth {

class HttpBudget {
 public:
  class Account;

  explicit HttpBudget(uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  // `on_evict` is called once if the account is evicted, by the thread whose bytes did not fit. It
  // may run after the account is destroyed. It must not call the budget.
  static std::shared_ptr<Account> Open(std::shared_ptr<HttpBudget> budget,
                                       std::function<void()> on_evict);
  uint64_t held_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  Account* LargestBeside(const Account* one) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t limit_bytes_;
  mutable absl::Mutex mutex_;
  uint64_t held_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::flat_hash_set<Account*> accounts_ ABSL_GUARDED_BY(mutex_);
};

// The bytes of one connection and of its request.
class HttpBudget::Account {
 public:
  Account(std::shared_ptr<HttpBudget> budget, std::function<void()> on_evict);
  ~Account();
  Account(const Account&) = delete;
  Account& operator=(const Account&) = delete;

  // Counts `bytes` more. If the budget has no room, the account with the most bytes is evicted.
  // Returns false if that is this one (its new bytes included), or if this one was evicted before;
  // then nothing is counted.
  bool Grow(uint64_t bytes);
  // REQUIRES: `bytes` were counted. Does nothing after an eviction.
  void Shrink(uint64_t bytes);

 private:
  friend class HttpBudget;

  const std::shared_ptr<HttpBudget> budget_;
  // The budget's, under its mutex.
  std::function<void()> on_evict_;
  uint64_t bytes_ = 0;
  bool evicted_ = false;
};

}  // namespace hearth

#endif  // HEARTH_SERVICES_SERVING_HTTP_HTTP_BUDGET_H_
