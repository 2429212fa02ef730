#include "worker/engine/scheduler.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace hearth {
namespace {

// Of a sequence in a batch: fewer cost a pass through its attention for next to nothing.
constexpr uint32_t kLeastPart = 16;

// Of those that wait: each that is tried costs a look into the pool.
constexpr size_t kMaxLookedAt = 64;

bool Erase(std::deque<SequenceId>* ids, SequenceId id) {
  auto it = std::find(ids->begin(), ids->end(), id);
  if (it == ids->end()) return false;
  ids->erase(it);
  return true;
}

}  // namespace

Scheduler::Scheduler(uint32_t max_running, uint32_t max_queued)
    : max_running_(max_running), max_queued_(max_queued) {
  assert(max_running >= 1);
}

uint32_t Scheduler::running() const {
  return static_cast<uint32_t>(idle_.size() + prefilling_.size() + decoding_.size() +
                               paused_.size()) +
         kept_;
}

bool Scheduler::Enqueue(SequenceId id, uint32_t places, const std::string& tenant) {
  assert(running() <= max_running_ && places >= 1 && places <= max_running_);
  const size_t room = size_t{max_queued_} + (max_running_ - running());
  if (queue_.size() >= room) return false;
  queue_.push_back({id, places, tenant});
  if (places > 1) beside_[id] = places - 1;
  return true;
}

std::vector<SequenceId> Scheduler::Candidates() const {
  std::vector<const Waiting*> may;
  const uint32_t free = max_running_ - running();
  size_t looked_at = 0;
  for (const Waiting& waiting : queue_) {
    if (free == 0 || ++looked_at > kMaxLookedAt) break;
    if (waiting.places <= free) may.push_back(&waiting);
    if (waiting.overtaken >= kMaxOvertaken) break;
  }
  const auto overtakes = [&](const Waiting* waiting) {
    if (waiting == &queue_.front()) return int64_t{-1};
    const auto known = overtakers_.find(waiting->tenant);
    return known == overtakers_.end() ? int64_t{0} : int64_t{known->second};
  };
  std::stable_sort(may.begin(), may.end(),
                   [&](const Waiting* a, const Waiting* b) { return overtakes(a) < overtakes(b); });
  std::vector<SequenceId> ids;
  for (const Waiting* waiting : may) ids.push_back(waiting->id);
  return ids;
}

bool Scheduler::Unqueue(SequenceId id) {
  const auto place = std::find_if(queue_.begin(), queue_.end(),
                                  [&](const Waiting& waiting) { return waiting.id == id; });
  if (place == queue_.end()) return false;
  if (place == queue_.begin()) overtakers_.clear();
  queue_.erase(place);
  return true;
}

void Scheduler::Admit(SequenceId id) {
  for (Waiting& before : queue_) {
    if (before.id == id) {
      if (&before != &queue_.front()) ++overtakers_[before.tenant];
      break;
    }
    assert(before.overtaken < kMaxOvertaken);
    ++before.overtaken;
  }
  const bool queued = Unqueue(id);
  assert(queued && running() < max_running_);
  (void)queued;
  idle_.insert(id);
  if (const auto beside = beside_.find(id); beside != beside_.end()) kept_ += beside->second;
}

void Scheduler::Fork(SequenceId id, SequenceId fork) {
  uint32_t& beside = beside_.at(id);
  assert(beside >= 1 && kept_ >= 1);
  --beside;
  --kept_;
  decoding_.push_back(fork);
}

void Scheduler::StartPrefill(SequenceId id, uint32_t tokens, const std::string& tenant) {
  const size_t erased = idle_.erase(id);
  assert(erased == 1);
  (void)erased;
  prefilling_.push_back(id);
  prefills_[id] = {tokens, tenant};
}

void Scheduler::StartDecode(SequenceId id) {
  const bool known = idle_.erase(id) == 1 || Erase(&prefilling_, id);
  assert(known);
  (void)known;
  prefills_.erase(id);
  // Not in this round: a sequence that just prefilled had its step.
  decoding_.push_back(id);
}

void Scheduler::Remove(SequenceId id) {
  prefills_.erase(id);
  const bool queued = Unqueue(id);
  if (const auto beside = beside_.find(id); beside != beside_.end()) {
    if (!queued) kept_ -= beside->second;
    beside_.erase(beside);
  }
  if (queued || idle_.erase(id) == 1 || paused_.erase(id) == 1 || Erase(&prefilling_, id)) return;
  Erase(&decoding_, id);
  Erase(&round_, id);
}

void Scheduler::Pause(SequenceId id) {
  if (!Erase(&decoding_, id)) return;
  Erase(&round_, id);
  paused_.insert(id);
}

void Scheduler::Resume(SequenceId id) {
  if (paused_.erase(id) == 1) decoding_.push_back(id);
}

std::optional<PlannedStep> Scheduler::Next() {
  if (round_.empty()) {
    round_ = decoding_;  // the round after this prefill step, or right now when there is none
    if (!prefilling_.empty()) {
      const SequenceId id = prefilling_.front();
      prefilling_.pop_front();
      prefilling_.push_back(id);
      return PlannedStep{id, StepKind::kPrefill};
    }
  }
  if (round_.empty()) return std::nullopt;
  const SequenceId id = round_.front();
  round_.pop_front();
  assert(std::find(decoding_.begin(), decoding_.end(), id) != decoding_.end());
  return PlannedStep{id, StepKind::kDecode};
}

// How many of `rows` each of prefilling_ gets: a fair share, then, in turn, what others left.
std::vector<uint32_t> Scheduler::Shares(uint32_t rows) const {
  std::map<std::string, uint32_t> sequences;  // by tenant
  for (const auto& [id, prefill] : prefills_) ++sequences[prefill.tenant];
  std::vector<uint32_t> shares;
  uint32_t left = rows;
  for (const SequenceId id : prefilling_) {
    const Prefill& prefill = prefills_.at(id);
    const size_t parts = sequences.size() * sequences.at(prefill.tenant);
    const uint32_t fair = std::max(static_cast<uint32_t>(rows / parts), kLeastPart);
    shares.push_back(std::min({prefill.tokens, fair, left}));
    left -= shares.back();
  }
  for (size_t i = 0; i < shares.size(); ++i) {
    const uint32_t more = std::min(prefills_.at(prefilling_[i]).tokens - shares[i], left);
    shares[i] += more;
    left -= more;
  }
  return shares;
}

std::vector<PlannedStep> Scheduler::NextBatch(uint32_t rows, uint32_t rows_without_decodes) {
  std::vector<PlannedStep> batch;
  for (const SequenceId id : decoding_) batch.push_back({id, StepKind::kDecode});
  const auto decodes = static_cast<uint32_t>(decoding_.size());
  const uint32_t free = decodes == 0 ? rows_without_decodes
                                     : std::max({rows - std::min(rows, decodes), rows / 2, 1U});
  const std::vector<uint32_t> shares = Shares(free);
  std::deque<SequenceId> first, later;
  for (size_t i = 0; i < shares.size(); ++i) {
    const SequenceId id = prefilling_[i];
    (shares[i] == 0 ? first : later).push_back(id);
    if (shares[i] == 0) continue;
    prefills_.at(id).tokens -= shares[i];
    batch.push_back({id, StepKind::kPrefill, shares[i]});
  }
  // Where all had some, what is left over is another's the next time.
  if (first.empty() && later.size() > 1) {
    later.push_back(later.front());
    later.pop_front();
  }
  prefilling_ = std::move(first);
  prefilling_.insert(prefilling_.end(), later.begin(), later.end());
  return batch;
}

}  // namespace hearth
