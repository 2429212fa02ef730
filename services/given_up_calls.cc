#include "services/given_up_calls.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

using Named = std::vector<std::pair<size_t, std::string>>;

// Names the worst of those that are left until the others have no more than `most` together:
// strangers who gave up more than `few` first, then whoever has the most.
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

std::string HostOfPeer(const std::string& peer) { return peer.substr(0, peer.rfind(':')); }

void GivenUpCalls::Tally::Add(uint64_t total, absl::Time now) {
  const uint64_t more = total > total_ ? total - total_ : 0;
  total_ = std::max(total_, total);
  const double seconds =
      told_ == absl::InfinitePast() ? 0 : std::max(0.0, absl::ToDoubleSeconds(now - told_));
  told_ = now;
  const double kept = std::exp(-seconds);
  // What came evenly over a time has decayed by its mean.
  const double came = seconds > 0 ? (1 - kept) / seconds : 1;
  recent_ = recent_ * kept + static_cast<double>(more) * came;
}

void GivenUpCalls::Tally::Inherit(double recent, absl::Time now) {
  Add(0, now);
  recent_ += recent;
}

void GivenUpCalls::Ended(const std::string& host, double recent, absl::Time now) {
  if (recent < 1 || (left_.size() >= limits_.hosts && !left_.contains(host))) return;
  left_[host].Inherit(recent, now);
}

// A host whose connections end by themselves, each before it is over, is over.
void GivenUpCalls::NoteWhoLeft(const absl::flat_hash_map<std::string, double>& there,
                               absl::Time now) {
  for (auto it = left_.begin(); it != left_.end();) {
    const auto at = it++;
    at->second.Add(0, now);
    const auto found = there.find(at->first);
    const double sum = at->second.recent() + (found == there.end() ? 0 : found->second);
    if (sum > limits_.of_host) WasOver(at->first, now);
    if (at->second.recent() < 1) left_.erase(at);
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
  absl::flat_hash_map<std::string, std::vector<size_t>> by_host;
  std::vector<size_t> left;
  for (size_t i = 0; i < callers.size(); ++i) {
    const Caller& caller = callers[i];
    const Record* record = RecordOf(caller.host, now);
    if (record != nullptr && caller.since > record->first && caller.recent > limits_.of_watched) {
      gone.insert(i);
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
  std::set<std::string> hosts;
  for (const size_t i : gone) hosts.insert(callers[i].host);
  for (const std::string& host : hosts) WasOver(host, now);
  absl::flat_hash_map<std::string, double> there;
  for (const Caller& caller : callers) there[caller.host] += caller.recent;
  NoteWhoLeft(there, now);
  return named;
}

void GivenUpCalls::WasOver(const std::string& host, absl::Time now) {
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
  // What ends within one pause is one time.
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
