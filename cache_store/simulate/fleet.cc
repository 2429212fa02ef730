#include "cache_store/simulate/fleet.h"

#include <algorithm>
#include <cassert>
#include <deque>
#include <random>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "cache_store/shared/shared_life.h"
#include "cache_store/simulate/dense_cache.h"

namespace hearth {
namespace {

// One shard of the engine: values by the end of their lives.
class Shard {
 public:
  Shard(uint64_t capacity, uint32_t samples, uint64_t seed)
      : capacity_(capacity), samples_(samples), random_(seed) {}

  bool Contains(uint32_t block) const { return places_.contains(block); }
  // Writes it, or puts its end off.
  void Use(uint32_t block, absl::Time end) {
    if (capacity_ == 0) return;
    if (const auto place = places_.find(block); place != places_.end()) {
      absl::Time& known = values_[place->second].end;
      known = std::max(known, end);
      return;
    }
    while (values_.size() >= capacity_) GiveUpOne();
    places_[block] = values_.size();
    values_.push_back({block, end});
  }

 private:
  struct Value {
    uint32_t block = 0;
    absl::Time end;
  };
  static constexpr size_t kCandidates = 16;  // that Redis remembers between two evictions

  void GiveUpOne() {
    for (uint32_t i = 0; i < samples_; ++i) {
      const uint32_t block = values_[random_() % values_.size()].block;
      if (std::find(candidates_.begin(), candidates_.end(), block) == candidates_.end())
        candidates_.push_back(block);
    }
    const auto gone = [this](uint32_t block) { return !Contains(block); };
    candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(), gone),
                      candidates_.end());
    const auto sooner = [this](uint32_t a, uint32_t b) { return EndOf(a) < EndOf(b); };
    std::sort(candidates_.begin(), candidates_.end(), sooner);
    const uint32_t victim = candidates_.front();
    candidates_.erase(candidates_.begin());
    candidates_.resize(std::min(candidates_.size(), kCandidates));
    Erase(victim);
  }
  absl::Time EndOf(uint32_t block) const { return values_[places_.at(block)].end; }
  void Erase(uint32_t block) {
    const size_t at = places_.at(block);
    values_[at] = values_.back();
    places_[values_[at].block] = at;
    values_.pop_back();
    places_.erase(block);
  }

  const uint64_t capacity_;
  const uint32_t samples_;
  std::mt19937_64 random_;
  std::vector<Value> values_;
  absl::flat_hash_map<uint32_t, size_t> places_;
  std::vector<uint32_t> candidates_;
};

}  // namespace

absl::StatusOr<Routing> ParseRouting(const std::string& name) {
  if (name == "random") return Routing::kRandom;
  if (name == "affinity") return Routing::kAffinity;
  return absl::InvalidArgumentError(
      absl::StrCat("routing ", name, " is not one of random, affinity"));
}

FleetRates SimulateFleet(const Trace& trace, const FleetShape& shape) {
  assert(shape.nodes >= 1 && shape.shards >= 1 && shape.samples >= 1);
  std::deque<DenseCache> nodes;  // neither is moved
  std::deque<Shard> shards;
  for (uint32_t i = 0; i < shape.nodes; ++i)
    nodes.emplace_back(RetentionPolicy::kDefault, shape.node_blocks);
  for (uint32_t i = 0; i < shape.shards; ++i)
    shards.emplace_back(shape.shared_blocks / shape.shards, shape.samples, i);
  const auto shard_of = [&](uint32_t block) -> Shard& {
    return shards[block * 0x9E3779B97F4A7C15u % shape.shards];
  };
  std::mt19937_64 random(7);
  uint64_t all = 0, found = 0, shared = 0;
  for (const TraceRequest& request : trace.requests) {
    const std::vector<uint32_t>& blocks = request.blocks;
    const uint64_t drawn = shape.routing == Routing::kRandom || blocks.empty()
                               ? random()
                               : blocks[0] * 0x9E3779B97F4A7C15u >> 20;
    DenseCache& node = nodes[drawn % shape.nodes];
    all += blocks.size();
    for (const uint32_t block : blocks) {
      const bool in_memory = node.Contains(block);
      if (!in_memory && !shard_of(block).Contains(block)) break;
      ++found;
      if (!in_memory) ++shared;
    }
    node.Serve(request);
    const absl::Time now = absl::FromUnixMillis(request.at_ms);
    const size_t whole = request.tokens / Trace::kBlockTokens;
    for (size_t depth = 0; depth < blocks.size(); ++depth) {
      const absl::Duration life =
          SharedLife(shape.ttl, static_cast<int64_t>(depth), /*whole=*/depth < whole);
      shard_of(blocks[depth]).Use(blocks[depth], now + life);
    }
  }
  const double counted = std::max<double>(1, static_cast<double>(all));
  return {static_cast<double>(found) / counted, static_cast<double>(shared) / counted};
}

}  // namespace hearth
