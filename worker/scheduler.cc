#include "worker/scheduler.h"

#include <algorithm>
#include <cassert>

namespace hearth {
namespace {

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
  return static_cast<uint32_t>(idle_.size() + prefilling_.size() + decoding_.size());
}

bool Scheduler::Enqueue(SequenceId id) {
  assert(running() <= max_running_);
  const size_t room = size_t{max_queued_} + (max_running_ - running());
  if (queue_.size() >= room) return false;
  queue_.push_back(id);
  return true;
}

std::optional<SequenceId> Scheduler::Candidate() const {
  if (queue_.empty() || running() >= max_running_) return std::nullopt;
  return queue_.front();
}

void Scheduler::Admit(SequenceId id) {
  assert(Candidate() == id);
  queue_.pop_front();
  idle_.insert(id);
}

void Scheduler::StartPrefill(SequenceId id) {
  const size_t erased = idle_.erase(id);
  assert(erased == 1);
  (void)erased;
  prefilling_.push_back(id);
}

void Scheduler::StartDecode(SequenceId id) {
  const bool known = idle_.erase(id) == 1 || Erase(&prefilling_, id);
  assert(known);
  (void)known;
  // Not in this round: a sequence that just prefilled had its step.
  decoding_.push_back(id);
}

void Scheduler::Remove(SequenceId id) {
  if (Erase(&queue_, id) || idle_.erase(id) == 1 || Erase(&prefilling_, id)) return;
  Erase(&decoding_, id);
  Erase(&round_, id);
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

}  // namespace hearth
