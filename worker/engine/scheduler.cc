#include "worker/engine/scheduler.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <tuple>
#include <utility>

namespace hearth {
namespace {

// Of a tenant, and of those of its sequences that come first: fewer rows in a batch cost passes
// through their attention for next to nothing. The last of its sequences may get fewer.
constexpr uint32_t kLeastPart = 16;

// Of those that wait: each that is tried costs a look into the pool.
constexpr size_t kMaxLookedAt = 64;

// Sequences, whose tenants are known.
constexpr uint64_t kRemembered = 1024;

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

bool Scheduler::Enqueue(SequenceId id, uint32_t places, const std::string& tenant,
                        std::optional<SequenceId>* gives_way) {
  assert(running() <= max_running_ && places >= 1 && places <= max_running_);
  const size_t room = size_t{max_queued_} + (max_running_ - running());
  if (queue_.size() >= room) {
    const Waiting* const newest = gives_way == nullptr ? nullptr : WhoGivesWay(tenant, places);
    if (newest == nullptr) return false;
    *gives_way = newest->id;
    Remove(newest->id);
  }
  queue_.push_back({id, places, tenant});
  if (places > 1) beside_[id] = places - 1;
  tenants_[tenant].last_seen = ++accepted_;
  if (accepted_ % kRemembered != 0) return true;
  std::set<std::string> wait;
  for (const Waiting& waiting : queue_) wait.insert(waiting.tenant);
  for (auto it = tenants_.begin(); it != tenants_.end();) {
    const bool is_gone = it->second.running == 0 && wait.count(it->first) == 0 &&
                         accepted_ - it->second.last_seen >= kRemembered;
    it = is_gone ? tenants_.erase(it) : std::next(it);
  }
  return true;
}

// The newest that waits of the tenant that has the most places, waiting ones among them; null: none
// has more than `tenant` would have.
const Scheduler::Waiting* Scheduler::WhoGivesWay(const std::string& tenant, uint32_t places) const {
  std::map<std::string, uint32_t> held;
  for (const auto& [name, known] : tenants_) held[name] = known.running;
  for (const Waiting& waiting : queue_) held[waiting.tenant] += waiting.places;
  const Waiting* newest = nullptr;
  uint32_t most = held[tenant] + places + 1;
  for (const Waiting& waiting : queue_) {
    if (held[waiting.tenant] < most) continue;
    most = held[waiting.tenant];
    newest = &waiting;
  }
  return newest;
}

uint32_t Scheduler::FreeFor(const std::string& tenant) const {
  const uint32_t free = max_running_ - running();
  const bool leaves_one = Runs(tenant) && has_several_tenants() && max_running_ > 1 && free > 0;
  return leaves_one ? free - 1 : free;
}

bool Scheduler::Runs(const std::string& tenant) const {
  const auto known = tenants_.find(tenant);
  return known != tenants_.end() && known->second.running > 0;
}

// Those that wait, as their turns would come if each found room; so many as are looked at.
std::vector<Scheduler::Waiting*> Scheduler::InTurn() {
  std::map<std::string, std::deque<Waiting*>> waiting;
  for (Waiting& one : queue_) waiting[one.tenant].push_back(&one);
  std::map<std::string, Tenant> turns;
  for (const auto& [name, its] : waiting) turns[name] = tenants_[name];
  std::vector<Waiting*> order;
  uint64_t turn = turns_;
  while (!turns.empty() && order.size() < kMaxLookedAt) {
    const auto sooner = [&](const auto& a, const auto& b) {
      return std::make_tuple(a.second.running, a.second.last_turn, waiting[a.first].front()->id) <
             std::make_tuple(b.second.running, b.second.last_turn, waiting[b.first].front()->id);
    };
    const auto next = std::min_element(turns.begin(), turns.end(), sooner);
    std::deque<Waiting*>& its = waiting[next->first];
    order.push_back(its.front());
    its.pop_front();
    next->second.running += order.back()->places;
    next->second.last_turn = ++turn;
    if (its.empty()) turns.erase(next);
  }
  return order;
}

std::vector<SequenceId> Scheduler::Candidates() {
  std::vector<SequenceId> ids;
  if (running() == max_running_) return ids;
  for (const Waiting* const waiting : InTurn()) {
    if (waiting->places <= FreeFor(waiting->tenant)) ids.push_back(waiting->id);
    if (waiting->overtaken >= kMaxOvertaken) break;
  }
  return ids;
}

std::optional<Scheduler::Waiting> Scheduler::Unqueue(SequenceId id) {
  const auto place = std::find_if(queue_.begin(), queue_.end(),
                                  [&](const Waiting& waiting) { return waiting.id == id; });
  if (place == queue_.end()) return std::nullopt;
  std::optional<Waiting> taken = std::move(*place);
  queue_.erase(place);
  return taken;
}

void Scheduler::Admit(SequenceId id) {
  assert(running() < max_running_);
  // Others may have come in front of it since it was a candidate.
  for (Waiting* const waiting : InTurn()) {
    if (waiting->id == id) break;
    if (waiting->overtaken < kMaxOvertaken) ++waiting->overtaken;
  }
  const std::optional<Waiting> taken = Unqueue(id);
  assert(taken.has_value());
  Tenant& tenant = tenants_[taken->tenant];
  tenant.running += taken->places;
  tenant.last_turn = ++turns_;
  running_[id] = taken->tenant;
  idle_.insert(id);
  if (const auto beside = beside_.find(id); beside != beside_.end()) kept_ += beside->second;
}

void Scheduler::Fork(SequenceId id, SequenceId fork) {
  uint32_t& beside = beside_.at(id);
  assert(beside >= 1 && kept_ >= 1);
  --beside;
  --kept_;
  running_[fork] = running_.at(id);
  decoding_.push_back(fork);
}

void Scheduler::StartPrefill(SequenceId id, uint32_t tokens, const std::string& tenant,
                             bool promised) {
  const size_t erased = idle_.erase(id);
  assert(erased == 1);
  (void)erased;
  prefilling_.push_back(id);
  prefills_[id] = {tokens, tenant, promised};
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
  const bool queued = Unqueue(id).has_value();
  uint32_t places = 1;
  if (const auto beside = beside_.find(id); beside != beside_.end()) {
    places += beside->second;
    if (!queued) kept_ -= beside->second;
    beside_.erase(beside);
  }
  if (const auto known = running_.find(id); known != running_.end()) {
    uint32_t& of_tenant = tenants_[known->second].running;
    assert(of_tenant >= places);
    of_tenant -= places;
    running_.erase(known);
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

// How many of `rows` each that prefills gets: of tenants a fair share each, in turn, then what
// others left.
std::map<SequenceId, uint32_t> Scheduler::Shares(uint32_t rows) const {
  std::map<std::string, uint32_t> wanted, shares;
  std::vector<std::string> tenants;  // in turn
  for (const SequenceId id : prefilling_) {
    const Prefill& prefill = prefills_.at(id);
    if (wanted.count(prefill.tenant) == 0) tenants.push_back(prefill.tenant);
    wanted[prefill.tenant] += prefill.tokens;
  }
  if (tenants.empty()) return {};
  const uint32_t fair = std::max(rows / static_cast<uint32_t>(tenants.size()), kLeastPart);
  for (const uint32_t most : {fair, rows}) {
    for (const std::string& tenant : tenants) {
      const uint32_t more = std::min({wanted[tenant], most, rows});
      wanted[tenant] -= more;
      shares[tenant] += more;
      rows -= more;
    }
  }
  return ByAge(std::move(shares));
}

std::map<std::string, SequenceId> Scheduler::OldestPromised() const {
  std::map<std::string, SequenceId> promised;
  for (const auto& [id, prefill] : prefills_) {
    if (prefill.promised) promised.emplace(prefill.tenant, id);
  }
  return promised;
}

// Of a tenant's rows half are for what must end: the oldest that is promised, which others wait
// for, and the oldest, which would wait for all that come. Then the shortest come first. Those that
// are alike end one after the other, and not all at the end.
std::map<SequenceId, uint32_t> Scheduler::ByAge(std::map<std::string, uint32_t> left) const {
  std::map<SequenceId, uint32_t> shares;
  const auto give = [&](SequenceId id, uint32_t most) {
    const Prefill& prefill = prefills_.at(id);
    uint32_t& share = shares[id];
    const uint32_t more = std::min({prefill.tokens - share, left[prefill.tenant], most});
    share += more;
    left[prefill.tenant] -= more;
  };
  const std::map<std::string, SequenceId> promised = OldestPromised();
  std::set<std::string> seen;
  std::vector<std::pair<uint32_t, SequenceId>> shortest;
  for (const auto& [id, prefill] : prefills_) {
    shortest.emplace_back(prefill.tokens, id);
    if (!seen.insert(prefill.tenant).second) continue;
    const uint32_t rows = left[prefill.tenant];
    const uint32_t half = std::min(rows, std::max(rows / 2, kLeastPart));
    const auto first = promised.find(prefill.tenant);
    if (first != promised.end()) give(first->second, half / 2);
    give(id, half - (rows - left[prefill.tenant]));
  }
  std::sort(shortest.begin(), shortest.end());
  for (const auto& [tokens, id] : shortest) give(id, tokens);
  return shares;
}

// The rows for prefills, however many sequences decode.
uint32_t Scheduler::RowsBeside(uint32_t decodes, uint32_t rows) {
  return std::max({rows - std::min(rows, decodes), rows / 2, 1U});
}

uint32_t Scheduler::MostRows(uint32_t rows, uint32_t rows_without_decodes, uint32_t max_running) {
  uint32_t most = std::max(rows_without_decodes, max_running);
  for (const uint32_t decodes : {1U, max_running - 1}) {
    if (decodes >= 1 && decodes < max_running)
      most = std::max(most, decodes + RowsBeside(decodes, rows));
  }
  return most;
}

// One each in turn, while there are rows for them: who decodes longest is first.
void Scheduler::AddGuessed(uint32_t rows, const Guessed& guessed, std::vector<PlannedStep>* batch) {
  uint32_t used = 0;
  for (const PlannedStep& planned : *batch) used += planned.tokens;
  for (bool more = true; more;) {
    more = false;
    for (PlannedStep& planned : *batch) {
      if (planned.kind != StepKind::kDecode || used >= rows) continue;
      const auto wanted = guessed.find(planned.id);
      if (wanted == guessed.end() || planned.tokens > wanted->second) continue;
      ++planned.tokens;
      ++used;
      more = true;
    }
  }
}

std::vector<PlannedStep> Scheduler::NextBatch(uint32_t rows, uint32_t rows_without_decodes,
                                              const Guessed& guessed) {
  std::vector<PlannedStep> batch;
  for (const SequenceId id : decoding_) batch.push_back({id, StepKind::kDecode});
  const auto decodes = static_cast<uint32_t>(decoding_.size());
  const uint32_t free = decodes == 0 ? rows_without_decodes : RowsBeside(decodes, rows);
  std::map<std::string, bool> served;  // tenants
  for (const auto& [id, tokens] : Shares(free)) {
    Prefill& prefill = prefills_.at(id);
    served[prefill.tenant] |= tokens > 0;
    if (tokens == 0) continue;
    prefill.tokens -= tokens;
    batch.push_back({id, StepKind::kPrefill, tokens});
  }
  if (!guessed.empty()) {
    const uint32_t most = decodes == 1 ? 2 * kRowsWithGuesses : kRowsWithGuesses;
    AddGuessed(std::min(rows, most), guessed, &batch);
  }
  // Who had none is first the next time; where all had some, what is left over is another's.
  const auto waits = [&](SequenceId id) { return !served[prefills_.at(id).tenant]; };
  const auto behind = std::stable_partition(prefilling_.begin(), prefilling_.end(), waits);
  if (behind == prefilling_.begin() && !prefilling_.empty()) {
    const std::string front = prefills_.at(prefilling_.front()).tenant;
    std::stable_partition(prefilling_.begin(), prefilling_.end(),
                          [&](SequenceId id) { return prefills_.at(id).tenant != front; });
  }
  return batch;
}

}  // namespace hearth
