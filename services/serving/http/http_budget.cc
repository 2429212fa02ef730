#include "services/serving/http/http_budget.h"

#include <cassert>

namespace hearth {

std::shared_ptr<HttpBudget::Account> HttpBudget::Open(std::shared_ptr<HttpBudget> budget,
                                                      std::function<void()> on_evict) {
  return std::make_shared<Account>(std::move(budget), std::move(on_evict));
}

uint64_t HttpBudget::held_bytes() const {
  absl::MutexLock lock(&mutex_);
  return held_bytes_;
}

HttpBudget::Account* HttpBudget::LargestBeside(const Account* one) {
  mutex_.AssertHeld();
  Account* largest = nullptr;
  for (Account* account : accounts_) {
    if (account == one) continue;
    if (largest == nullptr || account->bytes_ > largest->bytes_) largest = account;
  }
  return largest;
}

HttpBudget::Account::Account(std::shared_ptr<HttpBudget> budget, std::function<void()> on_evict)
    : budget_(std::move(budget)), on_evict_(std::move(on_evict)) {
  absl::MutexLock lock(&budget_->mutex_);
  budget_->accounts_.insert(this);
}

HttpBudget::Account::~Account() {
  absl::MutexLock lock(&budget_->mutex_);
  assert(budget_->held_bytes_ >= bytes_);
  budget_->held_bytes_ -= bytes_;
  budget_->accounts_.erase(this);
}

bool HttpBudget::Account::Grow(uint64_t bytes) {
  std::function<void()> on_evict;
  {
    absl::MutexLock lock(&budget_->mutex_);
    if (evicted_) return false;
    assert(budget_->held_bytes_ <= budget_->limit_bytes_);
    if (bytes > budget_->limit_bytes_ - budget_->held_bytes_) {
      Account* largest = budget_->LargestBeside(this);
      // Nothing overflows: a caller counts bytes that it has, or is about to allocate.
      if (largest == nullptr || largest->bytes_ <= bytes_ + bytes) return false;
      // It held more than the new bytes, so that they fit into its place.
      budget_->held_bytes_ -= std::exchange(largest->bytes_, 0);
      largest->evicted_ = true;
      on_evict = std::move(largest->on_evict_);
    }
    budget_->held_bytes_ += bytes;
    bytes_ += bytes;
    assert(budget_->held_bytes_ <= budget_->limit_bytes_);
  }
  if (on_evict) on_evict();
  return true;
}

void HttpBudget::Account::Shrink(uint64_t bytes) {
  absl::MutexLock lock(&budget_->mutex_);
  if (evicted_) return;
  assert(bytes_ >= bytes && budget_->held_bytes_ >= bytes);
  bytes_ -= bytes;
  budget_->held_bytes_ -= bytes;
}

}  // namespace hearth
