#include "cache_store/catalog/compute_claims.h"

#include <algorithm>
#include <cassert>

namespace hearth {

std::optional<ComputeClaims::Promise> ComputeClaims::Find(
    absl::Span<const Boundary> boundaries) const {
  for (auto it = boundaries.rbegin(); it != boundaries.rend(); ++it) {
    const auto found = promised_.find(it->key);
    if (found == promised_.end()) continue;
    return Promise{it->tokens, it->key, claims_.at(found->second).until};
  }
  return std::nullopt;
}

size_t ComputeClaims::SharedChunks(absl::Span<const KeyedSegment> chunks) const {
  // A chunk's key covers all tokens before the chunk: two prompts that have a chunk in common also
  // have all earlier chunks in common.
  const auto end = std::partition_point(
      chunks.begin(), chunks.end(),
      [this](const KeyedSegment& chunk) { return chunks_.contains(chunk.key); });
  return static_cast<size_t>(end - chunks.begin());
}

ComputeClaims::Id ComputeClaims::Grant(absl::Span<const Boundary> boundaries,
                                       absl::Span<const KeyedSegment> chunks, absl::Time until) {
  if (claims_.size() >= kMaxClaims || chunks.size() > kMaxKeys - keys_) return 0;
  Claim claim;
  claim.until = until;
  const Id id = next_id_;
  for (const Boundary& boundary : boundaries) {
    if (promised_.emplace(boundary.key, id).second) claim.promised.push_back(boundary.key);
  }
  if (claim.promised.empty()) return 0;
  keys_ += chunks.size();
  for (const KeyedSegment& chunk : chunks) {
    claim.chunks.push_back(chunk.key);
    ++chunks_[chunk.key];
  }
  deadlines_.emplace(until, id);
  claims_.emplace(id, std::move(claim));
  assert(deadlines_.size() == claims_.size());
  ++next_id_;
  return id;
}

void ComputeClaims::End(Id id, Wakes* wakes) {
  const auto it = claims_.find(id);
  if (it == claims_.end()) return;
  const Claim claim = std::move(it->second);
  claims_.erase(it);
  deadlines_.erase({claim.until, id});
  assert(deadlines_.size() == claims_.size());
  for (const Digest& key : claim.promised) {
    // If the boundary was published and removed since, another claim may promise it now.
    const auto promise = promised_.find(key);
    if (promise == promised_.end() || promise->second != id) continue;
    promised_.erase(promise);
    WakeAll(key, wakes);
  }
  keys_ -= claim.chunks.size();
  for (const Digest& key : claim.chunks) {
    const auto chunk = chunks_.find(key);
    assert(chunk != chunks_.end());
    if (--chunk->second == 0) chunks_.erase(chunk);
  }
}

void ComputeClaims::Expire(absl::Time now, Wakes* wakes) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    End(deadlines_.begin()->second, wakes);
  }
}

ComputeClaims::Id ComputeClaims::Wait(const Digest& key, Wake wake) {
  assert(promised_.contains(key) && wake != nullptr);
  if (waiters_.size() >= kMaxWaiters) return 0;
  const Id id = next_id_++;
  waiters_.emplace(id, Waiter{key, std::move(wake)});
  waiting_[key].insert(id);
  return id;
}

void ComputeClaims::StopWaiting(Id id) {
  const auto it = waiters_.find(id);
  if (it == waiters_.end()) return;
  const auto waiting = waiting_.find(it->second.key);
  assert(waiting != waiting_.end());
  waiting->second.erase(id);
  if (waiting->second.empty()) waiting_.erase(waiting);
  waiters_.erase(it);
}

void ComputeClaims::Published(absl::Span<const Digest> keys, Wakes* wakes) {
  for (const Digest& key : keys) {
    promised_.erase(key);
    WakeAll(key, wakes);
  }
}

void ComputeClaims::WakeAll(const Digest& key, Wakes* wakes) {
  const auto waiting = waiting_.find(key);
  if (waiting == waiting_.end()) return;
  for (const Id id : waiting->second) {
    const auto waiter = waiters_.find(id);
    assert(waiter != waiters_.end());
    wakes->push_back(std::move(waiter->second.wake));
    waiters_.erase(waiter);
  }
  waiting_.erase(waiting);
}

}  // namespace hearth
