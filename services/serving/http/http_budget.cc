#include "services/serving/http/http_budget.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace hearth {
namespace {

constexpr uint64_t kStreamShare = 16;

}  // namespace

uint64_t HttpBudget::held_bytes() const {
  absl::MutexLock lock(&mutex_);
  return held_bytes_;
}

uint64_t HttpBudget::TakePeakBytes() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(peak_bytes_, held_bytes_);
}

HttpBudget::Account* HttpBudget::FindVictim(Account* grows, uint64_t bytes) {
  mutex_.AssertHeld();
  // The sums cannot overflow: only bytes that exist or are about to be allocated are counted.
  const auto sum_of = [&](const Caller& caller) {
    return caller.bytes + (&caller == grows->caller_ ? bytes : 0);
  };
  const Caller* most = grows->caller_;
  for (const auto& [name, caller] : callers_) {
    if (sum_of(*caller) > sum_of(*most)) most = caller.get();
  }
  const auto rank_of = [&](const Account& account) {
    const uint64_t its = account.bytes_ + (&account == grows ? bytes : 0);
    const bool goes_last = account.is_streaming_ && its <= limit_bytes_ / kStreamShare;
    return std::make_pair(its > 0 && !goes_last, its);
  };
  assert(!most->accounts.empty());
  Account* victim = most == grows->caller_ ? grows : *most->accounts.begin();
  for (Account* account : most->accounts) {
    if (rank_of(*account) > rank_of(*victim)) victim = account;
  }
  return victim;
}

void HttpBudget::Evict(Account* account, std::vector<std::function<void()>>* on_evict) {
  mutex_.AssertHeld();
  assert(!account->evicted_ && account->bytes_ > 0);  // otherwise Grow() would loop for ever
  assert(account->caller_->bytes >= account->bytes_ && held_bytes_ >= account->bytes_);
  on_evict->push_back(std::move(account->on_evict_));
  account->caller_->bytes -= account->bytes_;
  held_bytes_ -= std::exchange(account->bytes_, 0);
  account->evicted_ = true;
}

HttpBudget::Account::Account(std::shared_ptr<HttpBudget> budget, std::string caller,
                             std::function<void()> on_evict)
    : budget_(std::move(budget)), name_(std::move(caller)), on_evict_(std::move(on_evict)) {
  absl::MutexLock lock(&budget_->mutex_);
  std::unique_ptr<Caller>& entry = budget_->callers_[name_];
  if (entry == nullptr) entry = std::make_unique<Caller>();
  caller_ = entry.get();
  caller_->accounts.insert(this);
}

HttpBudget::Account::~Account() {
  absl::MutexLock lock(&budget_->mutex_);
  assert(budget_->held_bytes_ >= bytes_ && caller_->bytes >= bytes_);
  budget_->held_bytes_ -= bytes_;
  caller_->bytes -= bytes_;
  caller_->accounts.erase(this);
  if (caller_->accounts.empty()) budget_->callers_.erase(name_);
}

bool HttpBudget::Account::Grow(uint64_t bytes) {
  std::vector<std::function<void()>> on_evict;
  bool fits = false;
  {
    absl::MutexLock lock(&budget_->mutex_);
    if (evicted_) return false;
    assert(budget_->held_bytes_ <= budget_->limit_bytes_);
    // The loop ends, because each pass evicts an account that holds bytes.
    for (;;) {
      fits = bytes <= budget_->limit_bytes_ - budget_->held_bytes_;
      if (fits) break;
      Account* const victim = budget_->FindVictim(this, bytes);
      if (victim == this) break;
      budget_->Evict(victim, &on_evict);
    }
    if (fits) {
      budget_->held_bytes_ += bytes;
      budget_->peak_bytes_ = std::max(budget_->peak_bytes_, budget_->held_bytes_);
      assert(budget_->held_bytes_ <= budget_->limit_bytes_);
      caller_->bytes += bytes;
      bytes_ += bytes;
    }
  }
  for (const auto& call : on_evict) {
    if (call) call();
  }
  return fits;
}

void HttpBudget::Account::Shrink(uint64_t bytes) {
  absl::MutexLock lock(&budget_->mutex_);
  if (evicted_) return;
  assert(bytes_ >= bytes && caller_->bytes >= bytes && budget_->held_bytes_ >= bytes);
  bytes_ -= bytes;
  caller_->bytes -= bytes;
  budget_->held_bytes_ -= bytes;
}

void HttpBudget::Account::SetStreaming(bool is_streaming) {
  absl::MutexLock lock(&budget_->mutex_);
  is_streaming_ = is_streaming;
}

}  // namespace hearth
