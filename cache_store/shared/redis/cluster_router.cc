#include "cache_store/shared/redis/cluster_router.h"

#include <algorithm>
#include <cassert>

#include "absl/container/flat_hash_set.h"
#include "cache_store/shared/redis/redis_reply.h"

namespace hearth {
namespace {

// Limit of redirections and retries of a command. Normal are two: a key moves once, and the slot
// map is outdated once more. Without a limit, a loop of redirections would not end.
constexpr int kTriesMax = 16;
constexpr absl::Duration kTryPause = absl::Milliseconds(20);
// Pause between two requests for the slot map, because a failover takes some seconds.
constexpr absl::Duration kMapPause = absl::Milliseconds(250);
// age at which the slot map is requested again
constexpr absl::Duration kMapLife = absl::Seconds(30);

absl::Status NoNode() { return absl::UnavailableError("redis: no node can be reached"); }

absl::StatusOr<SlotMap> MapOf(const NodeAddress& teller, const absl::StatusOr<RedisReply>& reply) {
  if (!reply.ok()) return reply.status();
  if (reply->kind != RedisReply::Kind::kError) return SlotMap::FromReply(*reply, teller);
  if (MeaningOf(reply->text) == ErrorMeaning::kNoCluster) return SlotMap::Single(teller);
  return StatusOfError(reply->text);
}

constexpr size_t kLanes = 3;
// Limit of nodes in addition to the primaries of two consecutive slot maps: addresses from the
// options, and targets of redirections. It protects against a node that redirects each key to a
// different node.
constexpr size_t kStrangersMax = 64;
// Time for which an unused target of a redirection is kept if no slot map has it yet.
constexpr absl::Duration kUnusedKept = absl::Seconds(10);

}  // namespace

ClusterNode* ClusterRouter::NodeAt(const NodeAddress& address, Lane lane) {
  const auto it = nodes_.find({address, lane});
  if (it != nodes_.end()) return it->second.get();
  if (nodes_.size() >= kLanes * (2 * primaries_ + kStrangersMax)) return nullptr;
  ++parts_->counters.nodes;
  auto node = std::make_unique<ClusterNode>(parts_, address, lane, this);
  return nodes_.emplace(std::make_pair(address, lane), std::move(node)).first->second.get();
}

ClusterNode* ClusterRouter::AnyUp() {
  std::vector<ClusterNode*> up;
  for (const auto& [key, node] : nodes_) {
    if (key.second == Lane::kShort && node->IsUp()) up.push_back(node.get());
  }
  if (up.empty()) return nullptr;
  return up[std::uniform_int_distribution<size_t>(0, up.size() - 1)(lots_)];
}

void ClusterRouter::ConnectSeeds() {
  for (const NodeAddress& address : parts_->options.addresses) NodeAt(address);
}

void ClusterRouter::Sweep() {
  if (!map_.has_value()) return;
  const std::vector<NodeAddress>& kept = map_->primaries();
  for (auto it = nodes_.begin(); it != nodes_.end();) {
    const bool is_kept = std::find(kept.begin(), kept.end(), it->first.first) != kept.end();
    const bool is_used = !it->second->IsIdle() || Now() - it->second->last_used() < kUnusedKept;
    it = is_kept || is_used ? std::next(it) : nodes_.erase(it);
  }
  parts_->counters.nodes = static_cast<uint32_t>(nodes_.size());
}

bool ClusterRouter::SomeMayAnswer() const {
  return std::any_of(nodes_.begin(), nodes_.end(), [](const auto& entry) {
    return entry.first.second == Lane::kShort && !entry.second->IsDown();
  });
}

void ClusterRouter::Begin() {
  ConnectSeeds();
  WantMap();
}

void ClusterRouter::Submit(std::shared_ptr<KeyBatch> batch, absl::Duration wait) {
  assert(!batch->expiry.has_value() && batch->size() > 0);
  batch->expiry = parts_->loop.At(Now() + wait, [this, batch] { Expire(batch); });
  if (map_.has_value()) return Route(batch);
  unrouted_.push_back(std::move(batch));
  RouteUnrouted();
}

void ClusterRouter::Expire(const std::shared_ptr<KeyBatch>& batch) {
  batch->expiry.reset();
  const absl::Status late = absl::DeadlineExceededError("redis did not answer in time");
  for (uint32_t i = 0; i < batch->size(); ++i) Finish({batch, i}, late);
}

void ClusterRouter::Route(const std::shared_ptr<KeyBatch>& batch) {
  absl::flat_hash_set<const NodeAddress*> nodes;
  for (uint32_t i = 0; i < batch->size(); ++i) {
    nodes.insert(map_->Owner(batch->slot(i)));
    Send({batch, i});
  }
  parts_->counters.round_trips += nodes.size();
}

void ClusterRouter::RouteUnrouted() {
  if (!map_.has_value()) {
    if (!SomeMayAnswer()) FinishUnrouted(why_no_map_);
    return;
  }
  std::vector<std::shared_ptr<KeyBatch>> batches;
  batches.swap(unrouted_);
  for (const auto& batch : batches) Route(batch);
}

void ClusterRouter::FinishUnrouted(const absl::Status& why) {
  std::vector<std::shared_ptr<KeyBatch>> batches;
  batches.swap(unrouted_);
  for (const auto& batch : batches) {
    for (uint32_t i = 0; i < batch->size(); ++i) Finish({batch, i}, why);
  }
}

void ClusterRouter::Send(const KeyRequest& request) {
  assert(map_.has_value() && request.index < request.batch->size());
  const NodeAddress* owner = map_->Owner(request.batch->slot(request.index));
  if (owner != nullptr) return SendTo(*owner, request);
  WantMap();
  Finish(request, absl::UnavailableError("redis: no node serves the hash slot of a key"));
}

void ClusterRouter::SendTo(const NodeAddress& address, const KeyRequest& request) {
  ClusterNode* const node = NodeAt(address);
  ClusterNode* const lane =
      node == nullptr || node->IsDown() ? node : NodeAt(address, request.command().lane());
  if (lane == nullptr) return Finish(request, NoNode());
  lane->Send(request);
}

void ClusterRouter::SendLater(const KeyRequest& request) {
  parts_->loop.At(Now() + kTryPause, [this, request] {
    if (request.IsWanted()) Send(request);
  });
}

void ClusterRouter::Finish(const KeyRequest& request, absl::StatusOr<RedisReply> reply) {
  if (!request.IsWanted()) return;
  if (!reply.ok() || reply->kind == RedisReply::Kind::kError) ++parts_->counters.failed;
  KeyBatch& batch = *request.batch;
  batch.Finish(request.index, std::move(reply));
  if (batch.AllFinished() && batch.expiry.has_value()) parts_->loop.Cancel(*batch.expiry);
}

void ClusterRouter::OnAnswer(ClusterNode* node, const KeyRequest& request,
                             absl::StatusOr<RedisReply> reply) {
  if (!request.IsWanted()) return;
  if (reply.ok() && reply->kind == RedisReply::Kind::kError) {
    return Redirect(node, request, reply->text);
  }
  Finish(request, std::move(reply));
}

// Handles an error reply: follows a redirection, repeats the request, or finishes it with the
// error.
void ClusterRouter::Redirect(ClusterNode* node, KeyRequest request, const std::string& error) {
  const ErrorMeaning meaning = MeaningOf(error);
  const bool is_moved = meaning == ErrorMeaning::kMoved;
  if (is_moved || meaning == ErrorMeaning::kReadOnly || meaning == ErrorMeaning::kNotNow) WantMap();
  const bool tries_again = is_moved || meaning == ErrorMeaning::kAsk ||
                           meaning == ErrorMeaning::kTryAgain || meaning == ErrorMeaning::kReadOnly;
  if (!tries_again) return Finish(request, StatusOfError(error));
  ++parts_->counters.redirections;
  if (request.batch->CountTry(request.index) > kTriesMax) {
    return Finish(request, absl::UnavailableError("redis: nodes redirect a key back and forth"));
  }
  request.asks = false;
  if (!is_moved && meaning != ErrorMeaning::kAsk) return SendLater(request);
  const std::optional<NodeAddress> target = TargetOf(error, node->address());
  if (!target.has_value()) return Finish(request, StatusOfError(error));
  request.asks = !is_moved;
  assert(map_.has_value());  // otherwise no node would have got the request
  if (is_moved) map_->Assign(request.batch->slot(request.index), *target);
  SendTo(*target, request);
}

void ClusterRouter::OnNodeUp(ClusterNode* node) {
  if (node->lane() != Lane::kShort) return;
  CountNodes();
  WantMap();
}

void ClusterRouter::OnNodeDown(ClusterNode* node) {
  if (node->lane() != Lane::kShort) return;
  why_no_map_ = node->why_down();
  CountNodes();
  WantMap();
  RouteUnrouted();
}

void ClusterRouter::CountNodes() {
  if (!map_.has_value()) return;
  parts_->counters.shards = static_cast<uint32_t>(map_->primaries().size());
  parts_->counters.reachable = static_cast<uint32_t>(std::count_if(
      map_->primaries().begin(), map_->primaries().end(), [this](const auto& address) {
        const auto it = nodes_.find({address, Lane::kShort});
        return it != nodes_.end() && it->second->IsUp();
      }));
}

void ClusterRouter::WantMap() {
  wants_map_ = true;
  if (asks_for_map_) return;
  if (map_timer_.has_value()) parts_->loop.Cancel(*map_timer_);
  map_timer_ = parts_->loop.At(std::max(Now(), next_question_), [this] { RequestMap(); });
}

// Returns the node to ask for the slot map. Without a cluster, each server would claim all slots,
// so the same server is asked each time.
ClusterNode* ClusterRouter::ChooseMapNode() {
  if (map_.has_value() && map_->primaries().size() == 1) {
    ClusterNode* node = NodeAt(map_->primaries()[0]);
    if (node != nullptr && node->IsUp()) return node;
  }
  return AnyUp();
}

void ClusterRouter::RequestMap() {
  map_timer_.reset();
  Sweep();
  ClusterNode* node = ChooseMapNode();
  // the first node that comes up will request the slot map
  if (node == nullptr) return ConnectSeeds();
  next_question_ = Now() + kMapPause;
  wants_map_ = false;
  asks_for_map_ = true;
  const uint64_t question = ++question_;
  map_timer_ = parts_->loop.At(Now() + parts_->options.connect_wait, [this, question] {
    map_timer_.reset();
    if (question == question_)
      OnMap({}, absl::DeadlineExceededError("redis: no answer to CLUSTER SLOTS in time"));
  });
  node->RequestSlots([this, question, teller = node->address()](absl::StatusOr<RedisReply> reply) {
    if (question == question_ && asks_for_map_) OnMap(teller, std::move(reply));
  });
}

void ClusterRouter::OnMap(const NodeAddress& teller, absl::StatusOr<RedisReply> reply) {
  asks_for_map_ = false;
  if (map_timer_.has_value()) parts_->loop.Cancel(*map_timer_);
  absl::StatusOr<SlotMap> map = MapOf(teller, reply);
  if (map.ok()) {
    Use(*std::move(map));
  } else {
    wants_map_ = true;
    if (!map_.has_value()) FinishUnrouted(map.status());
  }
  const absl::Time next = wants_map_ ? std::max(Now(), next_question_) : Now() + kMapLife;
  map_timer_ = parts_->loop.At(next, [this] { RequestMap(); });
}

void ClusterRouter::Use(SlotMap map) {
  map_ = std::move(map);
  primaries_ = map_->primaries().size();
  for (const NodeAddress& address : map_->primaries()) NodeAt(address);
  CountNodes();
  if (parts_->counters.reachable < parts_->counters.shards) wants_map_ = true;
  RouteUnrouted();
}

}  // namespace hearth
