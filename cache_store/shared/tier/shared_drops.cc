#include "cache_store/shared/tier/shared_drops.h"

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace hearth {

std::optional<DropMark> DropMark::Parse(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  DropMark mark;
  if (words.size() > 2 || !absl::SimpleAtoi(words[0], &mark.number)) return std::nullopt;
  if (words.size() == 2 && !absl::SimpleAtoi(words[1], &mark.forced)) return std::nullopt;
  if (mark.number == 0 || mark.number > kMaxNumber) return std::nullopt;
  if (mark.forced > mark.number) return std::nullopt;
  return mark;
}

std::string DropMark::Text() const {
  return forced == 0 ? absl::StrCat(number) : absl::StrCat(number, " ", forced);
}

SharedDrops::SharedDrops(Drop drop, Keep keep, absl::string_view kept)
    : drop_(std::move(drop)), keep_(std::move(keep)) {
  absl::MutexLock lock(&mu_);
  for (const absl::string_view line : absl::StrSplit(kept, '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    const std::optional<DropMark> mark = DropMark::Parse(words.back());
    if (words.size() == 2 && mark.has_value()) NoteLocked(words[0], *mark);
  }
  is_kept_ = true;
}

absl::Status SharedDrops::Hear(const std::string& mark, const std::string& tenant,
                               const DropMark& told) {
  if (!DoneOf(mark).Lacks(told)) return absl::OkStatus();
  {
    // Known before it is done, so that what is loaded meanwhile does not stay.
    absl::MutexLock lock(&mu_);
    undone_[tenant][mark].Join(told);
  }
  return DoHeard(tenant);
}

absl::Status SharedDrops::DoHeard(const std::string& tenant) {
  Marks heard;
  bool force = false;
  {
    absl::MutexLock lock(&mu_);
    const auto it = undone_.find(tenant);
    if (it == undone_.end()) return absl::OkStatus();
    heard = it->second;
    for (const auto& [mark, told] : heard) {
      const auto done = done_.find(mark);
      force |= told.forced > (done == done_.end() ? 0 : done->second.forced);
    }
  }
  if (absl::Status status = drop_(tenant, force); !status.ok()) return status;
  {
    absl::MutexLock lock(&mu_);
    Marks& undone = undone_[tenant];
    for (const auto& [mark, told] : heard) {
      NoteLocked(mark, told);
      // Unless a later one came meanwhile.
      const auto it = undone.find(mark);
      if (it != undone.end() && !told.Lacks(it->second)) undone.erase(it);
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
      for (const auto& [mark, done] : done_) absl::StrAppend(&text, mark, " ", done.Text(), "\n");
    }
    keep_(text);
  }
}

void SharedDrops::NoteLocked(const std::string& mark, const DropMark& told) {
  DropMark& done = done_[mark];
  is_kept_ &= !done.Lacks(told);
  done.Join(told);
  if (done_.size() <= kMaxMarks) return;
  // Not this one: it would be done again by each who looks.
  const auto rank = [&](const auto& entry) {
    return std::make_pair(entry.first == mark, entry.second.number);
  };
  done_.erase(std::min_element(done_.begin(), done_.end(),
                               [&](const auto& a, const auto& b) { return rank(a) < rank(b); }));
}

void SharedDrops::NoteDone(const std::string& mark, const DropMark& done) {
  {
    absl::MutexLock lock(&mu_);
    NoteLocked(mark, done);
  }
  KeepDone();
}

DropMark SharedDrops::DoneOf(const std::string& mark) {
  absl::MutexLock lock(&mu_);
  const auto it = done_.find(mark);
  return it == done_.end() ? DropMark() : it->second;
}

uint64_t SharedDrops::HeardOf(const std::string& mark, const std::string& tenant) {
  absl::MutexLock lock(&mu_);
  const auto done = done_.find(mark);
  const uint64_t heard = done == done_.end() ? 0 : done->second.number;
  const auto it = undone_.find(tenant);
  if (it == undone_.end()) return heard;
  const auto undone = it->second.find(mark);
  return undone == it->second.end() ? heard : std::max(heard, undone->second.number);
}

}  // namespace hearth
