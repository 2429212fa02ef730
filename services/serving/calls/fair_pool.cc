#include "services/serving/calls/fair_pool.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {

FairPool::FairPool(std::string kind, const FairPoolOptions& options)
    : kind_(std::move(kind)), options_(options) {
  assert(options_.threads >= 2);
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Work(); });
}

FairPool::~FairPool() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
  absl::MutexLock lock(&mutex_);
  assert(tenants_.empty() && waiting_ == 0 && bytes_ == 0);  // all that was accepted ran
}

absl::Status FairPool::CheckRoom(const std::string& tenant, uint64_t bytes) const {
  mutex_.AssertHeld();
  const auto refuse = [this](const auto&... what) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kind_, ": ", what..., ", which is the limit; try again later"));
  };
  const auto it = tenants_.find(tenant);
  const bool has_some = it != tenants_.end();
  const size_t own_waiting = has_some ? it->second.waiting.size() : 0;
  const uint64_t own_bytes = has_some ? it->second.bytes : 0;
  // The rest is for tenants that have nothing here.
  const size_t most_waiting = has_some ? options_.max_waiting - 1 : options_.max_waiting;
  const uint64_t most_bytes = has_some ? options_.max_bytes / 8 * 7 : options_.max_bytes;
  if (own_waiting >= options_.max_waiting_each) {
    return refuse(options_.max_waiting_each, " of tenant \"", tenant, "\" wait");
  }
  if (waiting_ >= most_waiting) return refuse(most_waiting, " wait");
  // A job that is too large by itself is let in alone.
  if (own_bytes > 0 &&
      bytes > options_.max_bytes_each - std::min(own_bytes, options_.max_bytes_each)) {
    return refuse(options_.max_bytes_each, " bytes of tenant \"", tenant, "\" wait");
  }
  if (bytes_ > 0 && bytes > most_bytes - std::min(bytes_, most_bytes)) {
    return refuse(most_bytes, " bytes wait");
  }
  return absl::OkStatus();
}

absl::Status FairPool::Submit(const std::string& tenant, uint64_t bytes, Job job) {
  assert(job != nullptr);
  absl::MutexLock lock(&mutex_);
  if (absl::Status status = CheckRoom(tenant, bytes); !status.ok()) return status;
  Tenant& own = tenants_[tenant];
  own.waiting.push_back({bytes, std::move(job)});
  own.bytes += bytes;
  bytes_ += bytes;
  ++waiting_;
  return absl::OkStatus();
}

absl::Status FairPool::SubmitRequest(const std::string& tenant, uint64_t bytes, Job job) {
  if (bytes > 0) return Submit(tenant, bytes, std::move(job));
  job();
  return absl::OkStatus();
}

void FairPool::Continue(const std::string& tenant, Job job) {
  absl::MutexLock lock(&mutex_);
  tenants_[tenant].waiting.push_front({0, std::move(job)});
  ++waiting_;
}

size_t FairPool::waiting() const {
  absl::MutexLock lock(&mutex_);
  return waiting_;
}

// The tenant whose turn it is: of those that may run one more, one with the fewest running jobs,
// and of these the one that has waited longest.
FairPool::Tenants::iterator FairPool::Next() {
  mutex_.AssertHeld();
  auto next = tenants_.end();
  for (auto it = tenants_.begin(); it != tenants_.end(); ++it) {
    Tenant& tenant = it->second;
    if (tenant.running >= options_.threads - 1) continue;
    if (tenant.waiting.empty()) continue;
    if (next == tenants_.end() || tenant.running < next->second.running ||
        (tenant.running == next->second.running && tenant.last_turn < next->second.last_turn)) {
      next = it;
    }
  }
  return next;
}

void FairPool::Work() {
  for (;;) {
    Waiting turn;
    std::string name;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &FairPool::HasTurn));
      const auto next = Next();
      if (next == tenants_.end()) return;
      name = next->first;
      Tenant& tenant = next->second;
      turn = std::move(tenant.waiting.front());
      tenant.waiting.pop_front();
      assert(waiting_ > 0);
      --waiting_;
      ++tenant.running;
      assert(tenant.running < options_.threads);  // one is free of each tenant
      tenant.last_turn = ++turns_;
    }
    turn.job();
    turn.job = nullptr;  // what it holds goes before its place does
    absl::MutexLock lock(&mutex_);
    const auto it = tenants_.find(name);
    assert(it != tenants_.end() && it->second.running > 0);
    assert(it->second.bytes >= turn.bytes && bytes_ >= turn.bytes);
    it->second.bytes -= turn.bytes;
    bytes_ -= turn.bytes;
    if (--it->second.running == 0 && it->second.waiting.empty()) tenants_.erase(it);
  }
}

}  // namespace hearth
