#include "tests/simulation/timeline.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace hearth {
namespace {

constexpr uint64_t kFnvPrime = 1099511628211u;

uint64_t Fold(uint64_t state, absl::string_view text) {
  for (const char c : text) state = (state ^ static_cast<uint8_t>(c)) * kFnvPrime;
  return state;
}

}  // namespace

Dice Timeline::DiceOf(absl::string_view name) const {
  std::seed_seq seeds{seed_ & 0xffffffff, seed_ >> 32, Fold(seed_, name) & 0xffffffff,
                      Fold(seed_, name) >> 32};
  uint32_t words[2];
  seeds.generate(words, words + 2);
  return Dice(uint64_t{words[0]} << 32 | words[1]);
}

void Timeline::After(absl::Duration delay, std::function<void()> event) {
  events_.emplace(std::make_pair(now_ + delay, announced_++), std::move(event));
}

bool Timeline::RunNext() {
  if (events_.empty()) return false;
  auto next = events_.extract(events_.begin());
  const absl::Time at = next.key().first;
  store_clock_.Jump(at - now_);
  now_ = at;
  next.mapped()();
  return true;
}

void Timeline::Note(const std::string& line) {
  digest_ = Fold(Fold(digest_, line), "\n");
  LogOnly(line);
}

void Timeline::LogOnly(const std::string& line) {
  ++lines_;
  history_.push_back(
      absl::StrFormat("%10.3f  %s", absl::ToDoubleSeconds(now_ - absl::UnixEpoch()), line));
  if (history_.size() > lines_kept_) history_.pop_front();
}

void Timeline::Violated(int invariant, const std::string& what) {
  LogOnly(absl::StrCat("INVARIANT ", invariant, ": ", what));
  if (violation_.empty()) violation_ = absl::StrCat("invariant ", invariant, ": ", what);
}

std::string Timeline::History() const {
  std::string text;
  for (const std::string& line : history_) absl::StrAppend(&text, line, "\n");
  return text;
}

}  // namespace hearth
