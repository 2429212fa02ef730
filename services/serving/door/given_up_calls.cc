#include "services/serving/door/given_up_calls.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

using Named = std::vector<std::pair<size_t, std::string>>;

double SecondsSince(absl::Time then, absl::Time now) {
  return std::max(0.0, absl::ToDoubleSeconds(now - then));
}

// Of what was counted then.
double KeptSince(absl::Time then, absl::Time now) { return std::exp(-SecondsSince(then, now)); }

// Of what came evenly since then: the mean.
double KeptOfEven(absl::Time then, absl::Time now) {
  const double seconds = SecondsSince(then, now);
  return seconds > 0 ? (1 - std::exp(-seconds)) / seconds : 1;
}

// Names the worst of those that are left until the others have no more than `most` together: first
// strangers who gave up more than `few`, then those with the most.
void NameUntil(double most, double few, const std::vector<GivenUpCalls::Caller>& callers,
               std::vector<size_t> left, const std::string& whose, std::set<size_t>* gone,
               Named* named) {
  double sum = 0;
  for (const size_t i : left) sum += callers[i].recent;
  if (sum <= most) return;
  const auto worse = [&](size_t a, size_t b) {
    const auto rank = [&](size_t i) {
      const bool is_stranger = !callers[i].is_known && callers[i].recent > few;
      return std::make_tuple(is_stranger, callers[i].recent, i);
    };
    return rank(a) > rank(b);
  };
  std::sort(left.begin(), left.end(), worse);
  for (const size_t i : left) {
    if (sum <= most) return;
    sum -= callers[i].recent;
    gone->insert(i);
    named->emplace_back(
        i, absl::StrCat("it gave up ", std::lround(callers[i].recent), " calls within a second; ",
                        whose, " may give up ", std::lround(most), " together"));
  }
}

}  // namespace

void GivenUpCalls::Tally::Came(uint64_t bytes, absl::Time now) {
  const double kept = KeptSince(told_, now);
  recent_ *= kept;
  recent_bytes_ = recent_bytes_ * kept + static_cast<double>(bytes) * KeptOfEven(told_, now);
  bytes_ += static_cast<double>(bytes);
  told_ = now;
}

void GivenUpCalls::Tally::Add(uint64_t total, absl::Time now) {
  const uint64_t more = total > total_ ? total - total_ : 0;
  total_ = std::max(total_, total);
  AddMore(more, now);
}

void GivenUpCalls::Tally::AddMore(uint64_t more, absl::Time now) {
  Came(0, now);
  const double share = bytes_ > 0 ? recent_bytes_ / bytes_ : KeptOfEven(asked_, now);
  recent_ += static_cast<double>(more) * share;
  bytes_ = recent_bytes_ = 0;
  asked_ = now;
}

void GivenUpCalls::Tally::Inherit(double recent, absl::Time now) {
  Came(0, now);
  recent_ += recent;
}

double GivenUpCalls::Tally::recent(absl::Time now) const { return recent_ * KeptSince(told_, now); }

void GivenUpCalls::NoteEnd(const std::string& host, double recent, absl::Time now) {
  if (recent < 1 || (left_.size() >= limits_.hosts && !left_.contains(host))) return;
  left_[host].Inherit(recent, now);
}

absl::flat_hash_map<std::string, double> GivenUpCalls::SumsByHost(
    const std::vector<Caller>& callers, absl::Time now) const {
  absl::flat_hash_map<std::string, double> sums;
  for (const Caller& caller : callers) {
    if (caller.recent > 0) sums[caller.host] += caller.recent;
  }
  for (const auto& [host, tally] : left_) sums[host] += tally.recent(now);
  return sums;
}

// Also a host whose connections were not closed by us, but each ended before it had too much: it is
// over its limit. Those closed for what all had together were not.
void GivenUpCalls::NoteHostsOverLimit(const absl::flat_hash_map<std::string, double>& sums,
                                      absl::Time now) {
  for (const auto& [host, sum] : sums) {
    if (sum > limits_.of_host) NoteOverLimit(host, now);
  }
  for (auto it = left_.begin(); it != left_.end();) {
    const auto at = it++;
    if (at->second.recent(now) < 1) left_.erase(at);
  }
}

const GivenUpCalls::Record* GivenUpCalls::RecordOf(const std::string& host, absl::Time now) const {
  const auto it = records_.find(host);
  if (it == records_.end() || now - it->second.last > limits_.memory) return nullptr;
  return &it->second;
}

std::vector<std::pair<size_t, std::string>> GivenUpCalls::Judge(const std::vector<Caller>& callers,
                                                                absl::Time now) {
  Named named;
  std::set<size_t> gone;
  std::set<std::string> watched_on;
  absl::flat_hash_map<std::string, std::vector<size_t>> by_host;
  std::vector<size_t> left;
  for (size_t i = 0; i < callers.size(); ++i) {
    const Caller& caller = callers[i];
    const Record* record = RecordOf(caller.host, now);
    if (record != nullptr && caller.since > record->first && caller.recent > limits_.of_watched) {
      gone.insert(i);
      watched_on.insert(caller.host);
      named.emplace_back(i, absl::StrCat("it gave up ", std::lround(caller.recent),
                                         " calls within a second, after others of its host had; "
                                         "it may give up ",
                                         std::lround(limits_.of_watched)));
    } else if (caller.recent > 0) {
      by_host[caller.host].push_back(i);
    }
  }
  for (const auto& [host, those] : by_host) {
    NameUntil(limits_.of_host, limits_.of_watched, callers, those, "those of its host", &gone,
              &named);
  }
  for (const auto& [host, those] : by_host) {
    for (const size_t i : those) {
      if (gone.count(i) == 0) left.push_back(i);
    }
  }
  NameUntil(limits_.of_all, limits_.of_watched, callers, left, "all", &gone, &named);
  const auto sums = SumsByHost(callers, now);
  for (const std::string& host : watched_on) {
    if (sums.at(host) > limits_.of_host_watched_on) NoteOverLimit(host, now);
  }
  NoteHostsOverLimit(sums, now);
  return named;
}

void GivenUpCalls::NoteOverLimit(const std::string& host, absl::Time now) {
  const bool is_again = RecordOf(host, now) != nullptr;
  if (!is_again && records_.size() >= limits_.hosts) {
    const auto is_old = [&](const auto& entry) { return RecordOf(entry.first, now) == nullptr; };
    for (auto it = records_.begin(); it != records_.end();) {
      const auto at = it++;
      if (is_old(*at)) records_.erase(at);
    }
    if (records_.size() >= limits_.hosts) return;
  }
  Record& record = records_[host];
  if (!is_again) {
    record = {now, now, now + limits_.pause, limits_.pause};
    return;
  }
  // All that end within one pause count as one.
  if (now - record.last >= record.pause) {
    record.pause = std::min(2 * record.pause, limits_.longest_pause);
    record.next = now + record.pause;
  }
  record.last = now;
}

bool GivenUpCalls::LetsIn(const std::string& host, absl::Time now) {
  if (RecordOf(host, now) == nullptr) return true;
  Record& record = records_[host];
  if (now < record.next) return false;
  record.next = now + record.pause;
  return true;
}

bool GivenUpCalls::Watches(const std::string& host, absl::Time now) const {
  return RecordOf(host, now) != nullptr;
}

}  // namespace hearth
