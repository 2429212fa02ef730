#include "cache_store/shared/tier/shared_drops.h"

#include <algorithm>

namespace hearth {

absl::Status SharedDrops::Hear(const std::string& mark, const std::string& tenant,
                               uint64_t number) {
  {
    absl::MutexLock lock(&mu_);
    const auto done = done_.find(mark);
    if (number <= (done == done_.end() ? 0 : done->second)) return absl::OkStatus();
    // Known before it is done, so that what is loaded meanwhile does not stay.
    uint64_t& heard = undone_[tenant][mark];
    heard = std::max(heard, number);
  }
  return DoHeard(tenant);
}

absl::Status SharedDrops::DoHeard(const std::string& tenant) {
  Numbers heard;
  {
    absl::MutexLock lock(&mu_);
    const auto it = undone_.find(tenant);
    if (it == undone_.end()) return absl::OkStatus();
    heard = it->second;
  }
  if (absl::Status status = drop_(tenant); !status.ok()) return status;
  absl::MutexLock lock(&mu_);
  for (const auto& [mark, number] : heard) NoteLocked(mark, number);
  const auto it = undone_.find(tenant);
  if (it == undone_.end()) return absl::OkStatus();
  for (const auto& [mark, number] : heard) {
    const auto still = it->second.find(mark);
    // A later one came meanwhile.
    if (still != it->second.end() && still->second <= number) it->second.erase(still);
  }
  if (it->second.empty()) undone_.erase(it);
  return absl::OkStatus();
}

void SharedDrops::NoteLocked(const std::string& mark, uint64_t number) {
  uint64_t& done = done_[mark];
  done = std::max(done, number);
  if (done_.size() <= kMaxMarks) return;
  done_.erase(std::min_element(done_.begin(), done_.end(),
                               [](const auto& a, const auto& b) { return a.second < b.second; }));
}

void SharedDrops::NoteDone(const std::string& mark, uint64_t number) {
  absl::MutexLock lock(&mu_);
  NoteLocked(mark, number);
}

uint64_t SharedDrops::DoneOf(const std::string& mark) {
  absl::MutexLock lock(&mu_);
  const auto it = done_.find(mark);
  return it == done_.end() ? 0 : it->second;
}

uint64_t SharedDrops::HeardOf(const std::string& mark, const std::string& tenant) {
  absl::MutexLock lock(&mu_);
  const auto done = done_.find(mark);
  uint64_t heard = done == done_.end() ? 0 : done->second;
  const auto it = undone_.find(tenant);
  if (it == undone_.end()) return heard;
  const auto undone = it->second.find(mark);
  return undone == it->second.end() ? heard : std::max(heard, undone->second);
}

bool SharedDrops::IsHidden(const std::string& tenant) {
  {
    absl::MutexLock lock(&mu_);
    if (undone_.count(tenant) == 0) return false;
  }
  return !DoHeard(tenant).ok();
}

}  // namespace hearth
