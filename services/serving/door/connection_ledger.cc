#include "services/serving/door/connection_ledger.h"

#include <algorithm>
#include <cassert>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "services/serving/door/peer_name.h"

namespace hearth {

void ConnectionLedger::SetLimits(const ConnectionLimits& limits) {
  assert(limits.least_call_bytes > 0 && limits.reset_bytes > 0 && limits.sent_share > 0);
  absl::MutexLock lock(&mutex_);
  limits_ = limits;
  given_up_.SetLimits(limits.given_up);
}

ConnectionLimits ConnectionLedger::limits() const {
  absl::MutexLock lock(&mutex_);
  return limits_;
}

std::shared_ptr<Connection> ConnectionLedger::Add(const std::string& peer, int fd, absl::Time now) {
  auto connection = std::make_shared<Connection>(peer, fd, now);
  absl::MutexLock lock(&mutex_);
  open_[peer] = connection;
  return connection;
}

// The calls of a connection that closed before gRPC was asked about it are still under way.
uint64_t ConnectionLedger::GivenUpUnasked(Connection* connection, uint64_t received,
                                          absl::Time now) const {
  mutex_.AssertHeld();
  if (connection->closed_ || received == 0) return 0;
  received = std::max(received, connection->received_);
  connection->given_up_.Came(received - connection->received_, now);
  connection->received_ = received;
  const uint64_t explained =
      connection->consumed_ + connection->taken_.load(std::memory_order_relaxed) +
      (connection->asked_ ? connection->asked_untaken_ : limits_.hello_bytes);
  if (received <= explained) return 0;
  // A caller that died within a message said much more than that.
  return std::min((received - explained) / limits_.reset_bytes, limits_.streams);
}

void ConnectionLedger::Remove(const std::shared_ptr<Connection>& connection, absl::Time now,
                              uint64_t received) {
  absl::MutexLock lock(&mutex_);
  const uint64_t more = GivenUpUnasked(connection.get(), received, now);
  if (more > 0) connection->given_up_.AddMore(more, now);
  given_up_.NoteEnd(HostOfPeer(connection->peer()), connection->given_up_.recent(now), now);
  const auto it = open_.find(connection->peer());
  // A port that was used again is another connection.
  if (it != open_.end() && it->second == connection) open_.erase(it);
}

std::shared_ptr<Connection> ConnectionLedger::Find(const std::string& peer) const {
  absl::MutexLock lock(&mutex_);
  const auto it = open_.find(peer);
  return it == open_.end() ? nullptr : it->second;
}

uint64_t ConnectionLedger::Allowance(const Connection& connection) const {
  mutex_.AssertHeld();
  return limits_.each_bytes +
         limits_.stream_bytes * connection.streams_.load(std::memory_order_relaxed);
}

// Calls that were handed to us are bounded where that is done.
uint64_t ConnectionLedger::HeldWith(uint64_t open, const Connection& connection) const {
  mutex_.AssertHeld();
  const uint64_t ours = connection.calls_.load(std::memory_order_relaxed);
  return Untaken(connection) + limits_.open_call_bytes * (open - std::min(open, ours));
}

uint64_t ConnectionLedger::MayHold(const Connection& connection) const {
  mutex_.AssertHeld();
  assert(connection.asked_read_ <= connection.received_);
  const uint64_t more = (connection.received_ - connection.asked_read_) / limits_.least_call_bytes;
  const uint64_t may_be = std::min(connection.alive_ + more, limits_.open_calls);
  return HeldWith(std::max(connection.alive_, may_be), connection);
}

// A stranger counts with the most it may hold: later it would cost as much to be rid of.
uint64_t ConnectionLedger::Held(const Connection& connection) const {
  mutex_.AssertHeld();
  if (!connection.known_.load()) return MayHold(connection);
  return HeldWith(connection.alive_, connection);
}

void ConnectionLedger::Enter(Connection* connection, const Counted& counted, absl::Time now) {
  mutex_.AssertHeld();
  const uint64_t received = std::max(connection->received_, counted.received);
  connection->given_up_.Came(received - connection->received_, now);
  connection->received_ = received;
  uint64_t consumed = connection->taken_.exchange(0, std::memory_order_relaxed);
  if (consumed > 0) connection->used_ = now;
  if (connection->looked_ != absl::InfinitePast()) {
    consumed += static_cast<uint64_t>(absl::ToDoubleSeconds(now - connection->looked_) *
                                      static_cast<double>(limits_.second_bytes));
  }
  const uint64_t sent = std::max(counted.sent, connection->seen_sent_);
  consumed += (sent - connection->seen_sent_) / limits_.sent_share;
  // A rest that is less than one byte's share is counted the next time.
  connection->seen_sent_ = sent - (sent - connection->seen_sent_) % limits_.sent_share;
  // More than came is no credit for later.
  connection->consumed_ = std::min(connection->consumed_ + consumed, connection->received_);
  connection->looked_ = now;
  if (counted.given_up.has_value()) {
    connection->alive_ = counted.streams;
    connection->asked_read_ =
        std::max(connection->asked_read_, received - std::min(received, counted.unread));
    connection->given_up_.Add(*counted.given_up, now);
    connection->asked_ = true;
    connection->asked_untaken_ = Untaken(*connection);
  }
  if (connection->mark_time_ == absl::InfinitePast() ||
      connection->consumed_ + limits_.slack_bytes >= connection->mark_) {
    connection->mark_ = connection->received_;
    connection->mark_time_ = now;
  }
}

std::string ConnectionLedger::WhatIsWrong(Connection* connection, absl::Time now) {
  mutex_.AssertHeld();
  if (connection->alive_ > limits_.streams) {
    given_up_.NoteOverLimit(HostOfPeer(connection->peer()), now);
    return absl::StrCat(connection->alive_,
                        " calls that are not over; it gives them up as it begins "
                        "them");
  }
  const uint64_t untaken = Untaken(*connection);
  if (untaken > Allowance(*connection)) {
    return absl::StrCat(untaken, " bytes of unfinished messages; a connection may have ",
                        Allowance(*connection));
  }
  if (untaken > limits_.slack_bytes && now - connection->mark_time_ > limits_.message_time) {
    return absl::StrCat("messages are not whole after ",
                        absl::FormatDuration(limits_.message_time));
  }
  return "";
}

// Counting asks the kernel and gRPC, while calls begin.
void ConnectionLedger::EnterAll(absl::Time now, Count count, bool exactly, Entries* entries) {
  for (auto& [connection, counted] : *entries) counted = count(*connection, exactly);
  absl::MutexLock lock(&mutex_);
  for (const auto& [connection, counted] : *entries) Enter(connection.get(), counted, now);
}

// Assumes that each began as many calls as it may since it was asked. Those with the most are asked
// first, until the rest cannot be over the limit.
ConnectionLedger::Entries ConnectionLedger::WhoMayHoldTooMuch() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::pair<uint64_t, std::shared_ptr<Connection>>> guessed;
  uint64_t sum = 0;
  for (const auto& [peer, connection] : open_) {
    if (connection->closed_) continue;
    const uint64_t may_hold = MayHold(*connection);
    sum += may_hold;
    if (connection->received_ > connection->asked_read_) guessed.emplace_back(may_hold, connection);
  }
  Entries suspects;
  std::sort(guessed.rbegin(), guessed.rend());
  for (const auto& [may_hold, connection] : guessed) {
    if (sum <= limits_.all_bytes) break;
    sum -= may_hold;
    suspects.push_back({connection, Counted()});
  }
  return suspects;
}

std::vector<ConnectionLedger::Verdict> ConnectionLedger::Judge(absl::Time now, Count count) {
  std::vector<Verdict> verdicts;
  Connections left;
  Entries all;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [peer, connection] : open_) all.push_back({connection, Counted()});
  }
  EnterAll(now, count, /*exactly=*/false, &all);
  AskWhereItMatters(now, count);
  absl::MutexLock lock(&mutex_);
  for (const auto& [connection, counted] : all) {
    if (connection->closed_) continue;
    std::string why = WhatIsWrong(connection.get(), now);
    if (why.empty()) {
      left.push_back(connection);
      continue;
    }
    connection->closed_ = true;
    verdicts.push_back({connection, std::move(why)});
  }
  NameWhoGivesUp(now, &left, &verdicts);
  NameTheWorst(left, &verdicts);
  untaken_bytes_ = 0;
  for (const auto& connection : left) {
    if (!connection->closed_) untaken_bytes_ += Held(*connection);
  }
  return verdicts;
}

void ConnectionLedger::NameWhoGivesUp(absl::Time now, Connections* left,
                                      std::vector<Verdict>* verdicts) {
  mutex_.AssertHeld();
  std::vector<GivenUpCalls::Caller> callers;
  for (const auto& connection : *left) {
    callers.push_back({HostOfPeer(connection->peer()), connection->given_up_.recent(now),
                       connection->known_.load(), connection->since_});
  }
  for (auto& [at, why] : given_up_.Judge(callers, now)) {
    assert(!(*left)[at]->closed_);  // each is named once
    (*left)[at]->closed_ = true;
    verdicts->push_back({(*left)[at], std::move(why)});
  }
  const auto is_closed = [](const auto& connection) { return connection->closed_; };
  left->erase(std::remove_if(left->begin(), left->end(), is_closed), left->end());
}

bool ConnectionLedger::LetsIn(const std::string& peer, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  return given_up_.LetsIn(HostOfPeer(peer), now);
}

bool ConnectionLedger::Watches(const std::string& peer, absl::Time now) const {
  absl::MutexLock lock(&mutex_);
  return given_up_.Watches(HostOfPeer(peer), now);
}

// Strangers first, then those with the most. One that holds next to nothing is left out: closing it
// gains nothing, and its first call may be on its way.
ConnectionLedger::Holders ConnectionLedger::WhoIsTooMuch(const Connections& of) const {
  mutex_.AssertHeld();
  uint64_t sum = 0;
  std::vector<std::tuple<bool, uint64_t, std::shared_ptr<Connection>>> worst;
  for (const auto& connection : of) {
    const uint64_t held = Held(*connection);
    sum += held;
    worst.emplace_back(!connection->known_.load() && held > limits_.slack_bytes, held, connection);
  }
  Holders too_much;
  if (sum <= limits_.all_bytes) return too_much;
  std::sort(worst.rbegin(), worst.rend());
  for (const auto& [is_stranger, held, connection] : worst) {
    if (sum <= limits_.all_bytes) break;
    sum -= held;
    too_much.emplace_back(connection, held);
  }
  return too_much;
}

// Calls of ours that ended since gRPC was asked look as if nobody had taken them, and no byte may
// have come that would have it asked again.
ConnectionLedger::Entries ConnectionLedger::WhoWouldGoUnasked(
    const absl::flat_hash_set<const Connection*>& asked) const {
  absl::MutexLock lock(&mutex_);
  Connections open;
  for (const auto& [peer, connection] : open_) {
    if (!connection->closed_) open.push_back(connection);
  }
  Entries unasked;
  for (const auto& [connection, held] : WhoIsTooMuch(open)) {
    if (!asked.contains(connection.get())) unasked.push_back({connection, Counted()});
  }
  return unasked;
}

void ConnectionLedger::AskWhereItMatters(absl::Time now, Count count) {
  absl::flat_hash_set<const Connection*> asked;
  Entries next = WhoMayHoldTooMuch();
  do {
    EnterAll(now, count, /*exactly=*/true, &next);
    for (const auto& [connection, counted] : next) asked.insert(connection.get());
    next = WhoWouldGoUnasked(asked);
  } while (!next.empty());
}

void ConnectionLedger::NameTheWorst(const Connections& left, std::vector<Verdict>* verdicts) {
  mutex_.AssertHeld();
  for (const auto& [connection, held] : WhoIsTooMuch(left)) {
    connection->closed_ = true;
    verdicts->push_back(
        {connection, absl::StrCat("unfinished messages and calls of all connections are over ",
                                  limits_.all_bytes, " bytes, of which it has ", held)});
  }
}

std::shared_ptr<Connection> ConnectionLedger::WhoMakesRoom(const Connection& newcomer,
                                                           absl::Time now) {
  absl::MutexLock lock(&mutex_);
  std::shared_ptr<Connection> stranger, idle;
  const auto last_use = [](const Connection& c) { return std::max(c.used_, c.since_); };
  for (const auto& [peer, connection] : open_) {
    if (connection->closed_ || connection.get() == &newcomer) continue;
    if (!connection->known_.load()) {
      if (stranger == nullptr || connection->since_ < stranger->since_) stranger = connection;
      continue;
    }
    const absl::Time used = last_use(*connection);
    if (connection->calls_.load() > 0 || now - used < limits_.idle_time) continue;
    if (idle == nullptr || used < last_use(*idle)) idle = connection;
  }
  const std::shared_ptr<Connection>& found = stranger != nullptr ? stranger : idle;
  if (found != nullptr) found->closed_ = true;
  return found;
}

uint64_t ConnectionLedger::untaken_bytes() const {
  absl::MutexLock lock(&mutex_);
  return untaken_bytes_;
}

size_t ConnectionLedger::connections() const {
  absl::MutexLock lock(&mutex_);
  return open_.size();
}

}  // namespace hearth
