#include "worker/engine/scheduler.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <tuple>
#include <utility>

namespace hearth {
namespace {

// A tenant is forgotten if none of the last this many sequences is its own.
constexpr uint64_t kRemembered = 1024;

}  // namespace

Scheduler::Scheduler(uint32_t max_running, uint32_t max_queued)
    : max_running_(max_running), max_queued_(max_queued) {
  assert(max_running >= 1);
}

uint32_t Scheduler::running() const {
  uint32_t places = 0;
  for (const auto& [id, entry] : entries_) {
    if (entry.state != State::kQueued) places += entry.places;
  }
  return places;
}

uint32_t Scheduler::queued() const {
  return static_cast<uint32_t>(std::count_if(entries_.begin(), entries_.end(), [](const auto& one) {
    return one.second.state == State::kQueued;
  }));
}

bool Scheduler::OnlyDecodes() const {
  return std::none_of(entries_.begin(), entries_.end(),
                      [](const auto& one) { return one.second.state == State::kPrefilling; });
}

std::map<std::string, uint32_t> Scheduler::Places(bool with_queued) const {
  std::map<std::string, uint32_t> places;
  for (const auto& [id, entry] : entries_) {
    if (with_queued || entry.state != State::kQueued) places[entry.tenant] += entry.places;
  }
  return places;
}

bool Scheduler::Enqueue(SequenceId id, uint32_t places, const std::string& tenant,
                        std::optional<SequenceId>* dropped) {
  assert(running() <= max_running_ && places >= 1 && places <= max_running_);
  const size_t room = size_t{max_queued_} + (max_running_ - running());
  if (queued() >= room) {
    const auto newest = dropped == nullptr ? std::nullopt : Droppable(tenant, places);
    if (!newest.has_value()) return false;
    *dropped = newest;
    Remove(*newest);
  }
  assert(entries_.count(id) == 0);
  entries_[id] = {tenant, places};
  tenants_[tenant].last_seen = ++accepted_;
  if (accepted_ % kRemembered != 0) return true;
  const std::map<std::string, uint32_t> present = Places(/*with_queued=*/true);
  for (auto it = tenants_.begin(); it != tenants_.end();) {
    const bool is_gone =
        present.count(it->first) == 0 && accepted_ - it->second.last_seen >= kRemembered;
    it = is_gone ? tenants_.erase(it) : std::next(it);
  }
  return true;
}

// Of the tenants with more places than `tenant` would have, takes the one with the most, waiting
// sequences included. Returns its newest waiting sequence that was never admitted, or nullopt if
// there is no such tenant.
std::optional<SequenceId> Scheduler::Droppable(const std::string& tenant, uint32_t places) const {
  std::map<std::string, uint32_t> held = Places(/*with_queued=*/true);
  std::optional<SequenceId> newest;
  uint32_t most = held[tenant] + places + 1;
  for (const auto& [id, entry] : entries_) {
    const bool may = entry.state == State::kQueued && !entry.had_place;
    if (!may || held[entry.tenant] < most) continue;
    most = held[entry.tenant];
    newest = id;
  }
  return newest;
}

std::optional<SequenceId> Scheduler::Candidate() const {
  std::map<std::string, uint32_t> places = Places(/*with_queued=*/false);
  const auto turn = [&](const auto& one) {
    return std::make_tuple(places[one.second.tenant], tenants_.at(one.second.tenant).last_turn,
                           one.first);
  };
  auto next = entries_.end();
  for (auto it = entries_.begin(); it != entries_.end(); ++it) {
    if (it->second.state != State::kQueued) continue;
    if (next == entries_.end() || turn(*it) < turn(*next)) next = it;
  }
  if (next == entries_.end()) return std::nullopt;
  const bool leaves_one =
      places[next->second.tenant] > 0 && tenants_.size() > 1 && max_running_ > 1;
  const uint32_t free = max_running_ - running();
  assert(running() <= max_running_);
  return next->second.places + (leaves_one ? 1 : 0) <= free ? std::optional(next->first)
                                                            : std::nullopt;
}

void Scheduler::Admit(SequenceId id) {
  Entry& entry = entries_.at(id);
  assert(entry.state == State::kQueued && running() + entry.places <= max_running_);
  entry.state = State::kIdle;
  entry.had_place = true;
  tenants_[entry.tenant].last_turn = ++turns_;
}

void Scheduler::Fork(SequenceId id, SequenceId fork) {
  Entry& entry = entries_.at(id);
  assert(entry.places >= 2 && entries_.count(fork) == 0);
  --entry.places;
  entries_[fork] = {entry.tenant, 1, State::kDecoding, 0, true};
}

void Scheduler::StartPrefill(SequenceId id, uint32_t tokens) {
  Entry& entry = entries_.at(id);
  assert(entry.state == State::kIdle);
  entry.state = State::kPrefilling;
  entry.left = tokens;
}

void Scheduler::StartDecode(SequenceId id) {
  Entry& entry = entries_.at(id);
  assert(entry.state == State::kIdle || entry.state == State::kPrefilling);
  entry.state = State::kDecoding;
}

void Scheduler::RemoveFork(SequenceId id, SequenceId fork) {
  assert(entries_.at(id).places + 1 <= max_running_);
  const size_t erased = entries_.erase(fork);
  assert(erased == 1);
  ++entries_.at(id).places;
}

std::optional<SequenceId> Scheduler::Victim(
    SequenceId id, absl::FunctionRef<uint64_t(SequenceId)> held_bytes) const {
  std::map<std::string, std::pair<uint64_t, SequenceId>> tenants;  // held bytes and youngest holder
  for (auto it = entries_.upper_bound(id); it != entries_.end(); ++it) {
    const uint64_t held = it->second.state == State::kQueued ? 0 : held_bytes(it->first);
    if (held == 0) continue;
    auto& [bytes, youngest] = tenants[it->second.tenant];
    bytes += held;
    youngest = it->first;
  }
  const auto most = std::max_element(tenants.begin(), tenants.end(), [](auto& a, auto& b) {
    return a.second.first < b.second.first;
  });
  return most == tenants.end() ? std::nullopt : std::optional(most->second.second);
}

void Scheduler::Requeue(SequenceId id, uint32_t places) {
  Entry& entry = entries_.at(id);
  assert(entry.state != State::kQueued && places >= 1 && places <= max_running_);
  entry.state = State::kQueued;
  entry.places = places;
}

void Scheduler::Remove(SequenceId id) { entries_.erase(id); }

// Divides `rows` equally, but gives no index more than it wants. Starts at index `first`, so that
// callers can rotate who gets the remainder.
std::vector<uint32_t> Scheduler::EqualShares(uint32_t rows, const std::vector<uint32_t>& wanted,
                                             uint64_t first) {
  std::vector<uint32_t> shares(wanted.size(), 0);
  for (;;) {
    uint32_t wanting = 0;
    for (size_t i = 0; i < wanted.size(); ++i) wanting += shares[i] < wanted[i] ? 1 : 0;
    if (wanting == 0 || rows == 0) return shares;
    const uint32_t part = std::max(rows / wanting, 1U);
    for (size_t i = 0; i < wanted.size(); ++i) {
      const size_t at = (first + i) % wanted.size();
      const uint32_t more = std::min({wanted[at] - shares[at], part, rows});
      shares[at] += more;
      assert(more <= rows && shares[at] <= wanted[at]);
      rows -= more;
    }
  }
}

// Divides the rows equally between tenants, then the rows of each tenant equally between its
// sequences.
void Scheduler::AddPrefills(uint32_t rows, std::vector<PlannedStep>* batch) {
  std::map<std::string, std::vector<SequenceId>> tenants;
  for (const auto& [id, entry] : entries_) {
    if (entry.state == State::kPrefilling) tenants[entry.tenant].push_back(id);
  }
  std::vector<uint32_t> wanted;
  for (const auto& [tenant, ids] : tenants) {
    uint32_t& tokens = wanted.emplace_back(0);
    for (const SequenceId id : ids) tokens += entries_.at(id).left;
  }
  const std::vector<uint32_t> of_tenants = EqualShares(rows, wanted, batches_);
  size_t number = 0;
  for (const auto& [tenant, ids] : tenants) {
    const uint32_t its = of_tenants[number++];
    wanted.clear();
    for (const SequenceId id : ids) wanted.push_back(entries_.at(id).left);
    uint64_t& turn = tenants_.at(tenant).batches;
    const std::vector<uint32_t> shares = EqualShares(its, wanted, turn);
    turn += its > 0 ? 1 : 0;
    for (size_t i = 0; i < ids.size(); ++i) {
      if (shares[i] == 0) continue;
      assert(shares[i] <= entries_.at(ids[i]).left);
      entries_.at(ids[i]).left -= shares[i];
      batch->push_back({ids[i], StepKind::kPrefill, shares[i]});
    }
  }
  ++batches_;
}

// Returns the rows for prompt tokens: the rows that decoding leaves, but at least half of all rows
// and at least 1.
uint32_t Scheduler::PrefillRows(uint32_t decodes, uint32_t rows) {
  return std::max({rows - std::min(rows, decodes), rows / 2, 1U});
}

uint32_t Scheduler::MostRows(uint32_t rows, uint32_t rows_without_decodes, uint32_t max_running) {
  uint32_t most = std::max(rows_without_decodes, max_running);
  for (const uint32_t decodes : {1U, max_running - 1}) {
    if (decodes >= 1 && decodes < max_running)
      most = std::max(most, decodes + PrefillRows(decodes, rows));
  }
  return most;
}

// Adds one guessed token of each sequence in turn, oldest sequence first, until the batch has
// `rows` rows.
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
  for (const auto& [id, entry] : entries_) {
    if (entry.state == State::kDecoding) batch.push_back({id, StepKind::kDecode});
  }
  assert(batch.size() <= max_running_);
  const auto decodes = static_cast<uint32_t>(batch.size());
  AddPrefills(decodes == 0 ? rows_without_decodes : PrefillRows(decodes, rows), &batch);
  if (!guessed.empty()) {
    const uint32_t most = decodes == 1 ? 2 * kRowsWithGuesses : kRowsWithGuesses;
    AddGuessed(std::min(rows, most), guessed, &batch);
  }
  return batch;
}

}  // namespace hearth
