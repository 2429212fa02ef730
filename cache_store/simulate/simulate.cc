#include "cache_store/simulate/simulate.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache_store/simulate/dense_cache.h"
#include "cache_store/simulate/simulate_points.h"

namespace hearth {
namespace {

constexpr std::array<SimulatedPolicy, 3> kPolicies = {
    SimulatedPolicy::kDefault, SimulatedPolicy::kLru, SimulatedPolicy::kOptimum};

// Every sixth layer is global.
constexpr std::array<ModelShape, 5> kShapes = {{{"270m", 3, 15, 512, 256},
                                                {"1b", 4, 22, 512, 256},
                                                {"4b", 5, 29, 1024, 1024},
                                                {"12b", 8, 40, 1024, 2048},
                                                {"27b", 10, 52, 1024, 2048}}};

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
