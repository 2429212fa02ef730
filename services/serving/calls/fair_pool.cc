#include "services/serving/calls/fair_pool.h"

#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/serving/calls/fair_share.h"

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
  assert(tenants_.empty() && waiting_ == 0 && bytes_ == 0);  // every accepted job has run
}

absl::Status FairPool::CheckRoom(const std::string& tenant, uint64_t bytes) const {
  mutex_.AssertHeld();
  const auto refuse = [this](const auto&... what) {
    return absl::ResourceExhaustedError(absl::StrCat(kind_, ": ", what..., "; try again later"));
  };
  const auto it = tenants_.find(tenant);
  const size_t own = it == tenants_.end() ? 0 : it->second.waiting.size();
  const uint64_t own_bytes = it == tenants_.end() ? 0 : it->second.bytes;
  if (waiting_ >= options_.max_waiting)
    return refuse(waiting_, " requests wait already, which is the limit");
  if (!IsFairShare(own, 1, waiting_, options_.max_waiting)) {
    return refuse("tenant \"", tenant, "\" has ", own,
                  " waiting requests, which is its share of the queue");
  }
  // A job that exceeds the limit alone is accepted if no other job holds bytes.
  if (bytes_ > 0 && bytes_ + bytes > options_.max_bytes) {
    return refuse("waiting requests hold ", bytes_, " bytes; the limit of bytes is ",
                  options_.max_bytes);
  }
  if (own_bytes > 0 && !IsFairShare(own_bytes, bytes, bytes_, options_.max_bytes)) {
    return refuse("tenant \"", tenant, "\" has ", own_bytes,
                  " bytes of waiting requests, which is its share");
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
  assert(own.bytes <= bytes_ && waiting_ < options_.max_waiting);
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

// Returns the tenant whose job runs next. Candidates are tenants whose share allows one more
// running job. The tenant with the fewest running jobs is chosen; if several have the fewest, the
// tenant that has not run a job for longest.
FairPool::Tenants::iterator FairPool::Next() {
  mutex_.AssertHeld();
  auto next = tenants_.end();
  for (auto it = tenants_.begin(); it != tenants_.end(); ++it) {
    Tenant& tenant = it->second;
    if (tenant.waiting.empty()) continue;
    if (!IsFairShare(tenant.running, 1, running_, options_.threads)) continue;
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
      ++running_;
      assert(running_ <= options_.threads && tenant.running <= running_);
      tenant.last_turn = ++turns_;
    }
    turn.job();
    turn.job = nullptr;  // free the job's memory before its bytes leave the count
    absl::MutexLock lock(&mutex_);
    const auto it = tenants_.find(name);
    assert(it != tenants_.end() && it->second.running > 0);
    assert(it->second.bytes >= turn.bytes && bytes_ >= turn.bytes);
    it->second.bytes -= turn.bytes;
    bytes_ -= turn.bytes;
    assert(running_ > 0);
    --running_;
    if (--it->second.running == 0 && it->second.waiting.empty()) tenants_.erase(it);
  }
}

}  // namespace hearth
