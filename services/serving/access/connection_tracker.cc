#include "services/serving/access/connection_tracker.h"

#include <algorithm>
#include <cassert>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {

void ConnectionTracker::SetLimits(const ConnectionLimits& limits) {
  assert(limits.sent_share > 0);
  absl::MutexLock lock(&mutex_);
  limits_ = limits;
}

ConnectionLimits ConnectionTracker::limits() const {
  absl::MutexLock lock(&mutex_);
  return limits_;
}

std::shared_ptr<Connection> ConnectionTracker::Add(const std::string& peer, int fd,
                                                   absl::Time now) {
  auto connection = std::make_shared<Connection>(peer, fd, now);
  absl::MutexLock lock(&mutex_);
  open_[peer] = connection;
  return connection;
}

void ConnectionTracker::Remove(const std::shared_ptr<Connection>& connection) {
  absl::MutexLock lock(&mutex_);
  const auto it = open_.find(connection->peer());
  // If the peer's port was reused, the entry belongs to a newer connection.
  if (it != open_.end() && it->second == connection) open_.erase(it);
}

std::shared_ptr<Connection> ConnectionTracker::Find(const std::string& peer) const {
  absl::MutexLock lock(&mutex_);
  const auto it = open_.find(peer);
  return it == open_.end() ? nullptr : it->second;
}

uint64_t ConnectionTracker::Allowance(const Connection& connection) const {
  mutex_.AssertHeld();
  return limits_.each_bytes +
         limits_.stream_bytes * connection.streams_.load(std::memory_order_relaxed);
}

void ConnectionTracker::Enter(Connection* connection, const KernelBytes& counted, absl::Time now) {
  mutex_.AssertHeld();
  connection->received_ = std::max(connection->received_, counted.received);
  uint64_t consumed = connection->newly_consumed_.exchange(0, std::memory_order_relaxed);
  if (consumed > 0) connection->used_ = now;
  if (connection->looked_ != absl::InfinitePast()) {
    consumed += static_cast<uint64_t>(absl::ToDoubleSeconds(now - connection->looked_) *
                                      static_cast<double>(limits_.second_bytes));
  }
  const uint64_t sent = std::max(counted.sent, connection->seen_sent_);
  consumed += (sent - connection->seen_sent_) / limits_.sent_share;
  // The remainder of the division by `sent_share` is counted at the next check.
  connection->seen_sent_ = sent - (sent - connection->seen_sent_) % limits_.sent_share;
  // Never more than was received: an overreport must not count for later bytes.
  connection->consumed_ = std::min(connection->consumed_ + consumed, connection->received_);
  connection->looked_ = now;
  if (connection->mark_time_ == absl::InfinitePast() ||
      connection->consumed_ + limits_.slack_bytes >= connection->mark_) {
    connection->mark_ = connection->received_;
    connection->mark_time_ = now;
  }
}

std::string ConnectionTracker::FaultOf(const Connection& connection, absl::Time now) const {
  mutex_.AssertHeld();
  const uint64_t unconsumed = UnconsumedOf(connection);
  if (unconsumed > Allowance(connection)) {
    return absl::StrCat("unfinished messages of ", unconsumed,
                        " bytes exceed the limit of a connection, ", Allowance(connection));
  }
  if (unconsumed > limits_.slack_bytes && now - connection.mark_time_ > limits_.message_time) {
    return absl::StrCat("a message of the connection was not read completely within ",
                        absl::FormatDuration(limits_.message_time));
  }
  return "";
}

std::vector<ConnectionTracker::Excess> ConnectionTracker::FindExcessive(absl::Time now,
                                                                        Count count) {
  std::vector<std::pair<std::shared_ptr<Connection>, KernelBytes>> all;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [peer, connection] : open_) {
      if (!connection->closed_) all.emplace_back(connection, KernelBytes());
    }
  }
  for (auto& [connection, counted] : all)
    counted = count(*connection);  // without the lock: calls may begin meanwhile
  std::vector<Excess> excessive;
  // Close unauthenticated connections first, then the connections with the most unconsumed bytes.
  // But an unauthenticated connection with at most `slack_bytes` is not preferred: closing it gains
  // nothing, and its first call may be about to arrive.
  std::vector<std::tuple<bool, uint64_t, std::shared_ptr<Connection>>> worst;
  absl::MutexLock lock(&mutex_);
  unconsumed_bytes_ = 0;
  const auto close = [&](const std::shared_ptr<Connection>& connection, std::string why) {
    connection->closed_ = true;
    excessive.push_back({connection, std::move(why)});
  };
  for (const auto& [connection, counted] : all) {
    if (connection->closed_) continue;
    Enter(connection.get(), counted, now);
    if (std::string why = FaultOf(*connection, now); !why.empty()) {
      close(connection, std::move(why));
      continue;
    }
    const uint64_t unconsumed = UnconsumedOf(*connection);
    unconsumed_bytes_ += unconsumed;
    worst.emplace_back(!connection->is_authenticated_.load() && unconsumed > limits_.slack_bytes,
                       unconsumed, connection);
  }
  if (unconsumed_bytes_ > limits_.all_bytes) std::sort(worst.rbegin(), worst.rend());
  for (const auto& [is_stranger, unconsumed, connection] : worst) {
    if (unconsumed_bytes_ <= limits_.all_bytes) break;
    assert(unconsumed_bytes_ >= unconsumed && !connection->closed_);
    unconsumed_bytes_ -= unconsumed;
    close(connection,
          absl::StrCat("unfinished messages of all connections exceed ", limits_.all_bytes,
                       " bytes; bytes of this connection: ", unconsumed));
  }
  return excessive;
}

std::shared_ptr<Connection> ConnectionTracker::FindReplaceable(const Connection& newcomer,
                                                               absl::Time now) {
  absl::MutexLock lock(&mutex_);
  std::shared_ptr<Connection> stranger, idle;
  const auto last_use = [](const Connection& c) { return std::max(c.used_, c.since_); };
  for (const auto& [peer, connection] : open_) {
    if (connection->closed_ || connection.get() == &newcomer) continue;
    if (!connection->is_authenticated_.load()) {
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

uint64_t ConnectionTracker::unconsumed_bytes() const {
  absl::MutexLock lock(&mutex_);
  return unconsumed_bytes_;
}

size_t ConnectionTracker::connections() const {
  absl::MutexLock lock(&mutex_);
  return open_.size();
}

}  // namespace hearth
