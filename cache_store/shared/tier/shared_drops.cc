#include "cache_store/shared/tier/shared_drops.h"

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace hearth {

SharedDrops::SharedDrops(Drop drop, Keep keep, absl::string_view kept)
    : drop_(std::move(drop)), keep_(std::move(keep)) {
  absl::MutexLock lock(&mu_);
  for (const absl::string_view line : absl::StrSplit(kept, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    uint64_t number = 0;
    if (words.size() == 2 && absl::SimpleAtoi(words[1], &number)) {
      NoteLocked(std::string(words[0]), number);
    }
  }
  is_kept_ = true;
}

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
  {
    absl::MutexLock lock(&mu_);
    Numbers& undone = undone_[tenant];
    for (const auto& [mark, number] : heard) {
      NoteLocked(mark, number);
      // Unless a later one came meanwhile.
      const auto it = undone.find(mark);
      if (it != undone.end() && it->second <= number) undone.erase(it);
    }
    if (undone.empty()) undone_.erase(tenant);
  }
  KeepDone();
  return absl::OkStatus();
}

void SharedDrops::KeepDone() {
  if (keep_ == nullptr) return;
  for (bool keeps = false;; keeps = true) {
    std::string text;
    {
      absl::MutexLock lock(&mu_);
      if (is_keeping_ && !keeps) return;
      is_keeping_ = !is_kept_;
      if (is_kept_) return;
      is_kept_ = true;
      for (const auto& [mark, number] : done_) absl::StrAppend(&text, mark, " ", number, "\n");
    }
    keep_(text);
  }
}

void SharedDrops::NoteLocked(const std::string& mark, uint64_t number) {
  uint64_t& done = done_[mark];
  is_kept_ &= number <= done;
  done = std::max(done, number);
  if (done_.size() <= kMaxMarks) return;
  done_.erase(std::min_element(done_.begin(), done_.end(),
                               [](const auto& a, const auto& b) { return a.second < b.second; }));
}

void SharedDrops::NoteDone(const std::string& mark, uint64_t number) {
  {
    absl::MutexLock lock(&mu_);
    NoteLocked(mark, number);
  }
  KeepDone();
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
