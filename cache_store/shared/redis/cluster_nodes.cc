#include "cache_store/shared/redis/cluster_nodes.h"

#include <algorithm>
#include <vector>

namespace hearth {
namespace {

constexpr size_t kLanes = 3;
// Seeds, and where redirections lead, beside the primaries of two maps of which one follows the
// other. A node that sends each key elsewhere finds no more.
constexpr size_t kStrangersMax = 64;
// A node that redirections lead to, and that no map names yet.
constexpr absl::Duration kUnusedKept = absl::Seconds(10);

}  // namespace

ClusterNode* ClusterNodes::Get(const NodeAddress& address, Lane lane) {
  const auto it = nodes_.find({address, lane});
  if (it != nodes_.end()) return it->second.get();
  if (nodes_.size() >= kLanes * (2 * primaries_ + kStrangersMax)) return nullptr;
  ++parts_->counters.nodes;
  auto node = std::make_unique<ClusterNode>(parts_, address, lane, observer_);
  return nodes_.emplace(Key(address, lane), std::move(node)).first->second.get();
}

ClusterNode* ClusterNodes::AnyUp() {
  std::vector<ClusterNode*> up;
  for (const auto& [key, node] : nodes_) {
    if (key.second == Lane::kShort && node->IsUp()) up.push_back(node.get());
  }
  if (up.empty()) return nullptr;
  return up[std::uniform_int_distribution<size_t>(0, up.size() - 1)(lots_)];
}

void ClusterNodes::MeetSeeds() {
  for (const NodeAddress& address : parts_->options.addresses) Get(address);
}

void ClusterNodes::MeetPrimaries(const SlotMap& map) {
  primaries_ = map.primaries().size();
  for (const NodeAddress& address : map.primaries()) Get(address);
}

void ClusterNodes::Sweep(const SlotMap* map) {
  if (map == nullptr) return;
  const absl::Time now = parts_->loop.Now();
  for (auto it = nodes_.begin(); it != nodes_.end();) {
    const std::vector<NodeAddress>& kept = map->primaries();
    const bool is_kept = std::find(kept.begin(), kept.end(), it->first.first) != kept.end();
    const bool is_used = !it->second->IsIdle() || now - it->second->last_used() < kUnusedKept;
    it = is_kept || is_used ? std::next(it) : nodes_.erase(it);
  }
  parts_->counters.nodes = static_cast<uint32_t>(nodes_.size());
}

void ClusterNodes::ForEach(absl::FunctionRef<void(ClusterNode*)> visit) {
  for (const auto& [key, node] : nodes_) visit(node.get());
}

bool ClusterNodes::SomeMayAnswer() const {
  return std::any_of(nodes_.begin(), nodes_.end(), [](const auto& entry) {
    return entry.first.second == Lane::kShort && !entry.second->IsDown();
  });
}

uint32_t ClusterNodes::CountUp(const SlotMap& map) const {
  return static_cast<uint32_t>(
      std::count_if(map.primaries().begin(), map.primaries().end(), [this](const auto& address) {
        const auto it = nodes_.find({address, Lane::kShort});
        return it != nodes_.end() && it->second->IsUp();
      }));
}

}  // namespace hearth
