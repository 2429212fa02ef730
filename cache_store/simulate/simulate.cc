#include "cache_store/simulate/simulate.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache_store/simulate/simulate_points.h"

namespace hearth {
namespace {

constexpr std::array<SimulatedPolicy, 3> kPolicies = {
    SimulatedPolicy::kDefault, SimulatedPolicy::kLru, SimulatedPolicy::kOptimum};

// Every sixth layer is global.
constexpr std::array<ModelShape, 5> kShapes = {{{"270m", 3, 15, 512},
                                                {"1b", 4, 22, 512},
                                                {"4b", 5, 29, 1024},
                                                {"12b", 8, 40, 1024},
                                                {"27b", 10, 52, 1024}}};

// A dense cache replayed: a block is a unit, and worth nothing without the one before it. kLru is
// the LRU of the published curves: blocks are moved one by one, and one may go while its children
// stay.
class DenseCache {
 public:
  DenseCache(RetentionPolicy policy, uint64_t capacity_blocks)
      : one_by_one_(policy == RetentionPolicy::kLru),
        capacity_blocks_(capacity_blocks),
        retention_(MakeRetention(policy, Retention::Depend::kOnParent)) {}

  // The blocks that are found of this prompt; afterwards as much of it as may stay is kept.
  uint64_t Serve(const TraceRequest& request) {
    const std::vector<uint32_t>& blocks = request.blocks;
    uint64_t found = 0;
    while (found < blocks.size() && retention_->Contains(blocks[found])) ++found;
    const uint32_t full = request.tokens / Trace::kBlockTokens;
    const Retention::Prompt prompt{++number_, full * Trace::kBlockTokens,
                                   absl::FromUnixMillis(request.at_ms)};
    if (!one_by_one_) {
      const std::vector<Retention::Key> path(blocks.begin(), blocks.end());
      retention_->Touch(path, prompt.tokens, prompt.now);
    }
    std::optional<Retention::Key> parent;
    bool has_parent = true;
    for (uint32_t i = 0; i < blocks.size(); ++i) {
      const Retention::Key key = blocks[i];
      if (retention_->Contains(key)) {
        if (one_by_one_) retention_->Touch({key}, prompt.tokens, prompt.now);
      } else {
        Retention::Facts facts;
        facts.tokens = (i + 1) * Trace::kBlockTokens;
        facts.gain_tokens = facts.bytes = Trace::kBlockTokens;
        facts.remainder = i >= full;
        facts.parent = parent;
        retention_->Insert(key, facts, prompt);
        // Without the one before it: seen and remembered, not kept.
        if (!has_parent && !one_by_one_) retention_->Erase(key, true);
        while (retention_->held() > capacity_blocks_) GiveUpFirst(retention_.get());
        has_parent = retention_->Contains(key);
      }
      parent = key;
    }
    return found;
  }

 private:
  const bool one_by_one_;
  const uint64_t capacity_blocks_;
  const std::unique_ptr<Retention> retention_;
  uint64_t number_ = 0;
};

RetentionPolicy RetentionOf(SimulatedPolicy policy) {
  return policy == SimulatedPolicy::kLru ? RetentionPolicy::kLru : RetentionPolicy::kDefault;
}

double DenseHitRate(const Trace& trace, SimulatedPolicy policy, double capacity) {
  const auto room = std::max<uint64_t>(1, static_cast<uint64_t>(capacity * trace.unique_blocks));
  DenseCache cache(RetentionOf(policy), room);
  uint64_t all = 0, found = 0;
  for (const TraceRequest& request : trace.requests) {
    all += request.blocks.size();
    if (policy != SimulatedPolicy::kOptimum) found += cache.Serve(request);
  }
  if (policy == SimulatedPolicy::kOptimum) found = OptimumHits(trace, room);
  return static_cast<double>(found) / all;
}

double PointHitRate(const Trace& trace, const ModelShape& model, SimulatedPolicy policy,
                    double capacity) {
  const double room =
      capacity * trace.unique_full_blocks * (model.global_layers + model.local_layers);
  uint64_t all = 0;
  for (const TraceRequest& request : trace.requests) all += request.tokens;
  const uint64_t restored = policy == SimulatedPolicy::kOptimum
                                ? OptimumRestoredTokens(trace, model, room)
                                : RestoredTokens(trace, model, RetentionOf(policy), room);
  return static_cast<double>(restored) / all;
}

}  // namespace

const char* PolicyName(SimulatedPolicy policy) {
  constexpr const char* kNames[] = {"default", "lru", "optimum"};
  static_assert(std::size(kNames) == kPolicies.size(), "one name a policy");
  return kNames[static_cast<size_t>(policy)];
}

absl::StatusOr<SimulatedPolicy> ParsePolicy(const std::string& name) {
  for (const SimulatedPolicy policy : kPolicies) {
    if (name == PolicyName(policy)) return policy;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("policy ", name, " is not one of default, lru, optimum"));
}

absl::StatusOr<ModelShape> ParseModelShape(const std::string& name) {
  for (const ModelShape& shape : kShapes) {
    if (name == shape.name) return shape;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("model ", name, " is not one of 270m, 1b, 4b, 12b, 27b"));
}

double HitRate(const Trace& trace, const std::optional<ModelShape>& model, SimulatedPolicy policy,
               double capacity) {
  return model.has_value() ? PointHitRate(trace, *model, policy, capacity)
                           : DenseHitRate(trace, policy, capacity);
}

}  // namespace hearth
