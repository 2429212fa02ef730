#include "cache_store/simulate/fleet.h"

#include <cassert>
#include <random>
#include <vector>

#include "absl/strings/str_cat.h"

namespace hearth {

absl::StatusOr<Routing> ParseRouting(const std::string& name) {
  if (name == "random") return Routing::kRandom;
  if (name == "affinity") return Routing::kAffinity;
  return absl::InvalidArgumentError(
      absl::StrCat("routing ", name, " is not one of random, affinity"));
}

Fleet::Fleet(const FleetShape& shape) : ttl_(shape.ttl) {
  assert(shape.nodes >= 1 && shape.shards >= 1 && shape.samples >= 1);
  for (uint32_t i = 0; i < shape.nodes; ++i) nodes_.emplace_back(shape);
  for (uint32_t i = 0; i < shape.shards; ++i) {
    shards_.emplace_back(shape.shared_blocks / shape.shards, shape.samples, i);
  }
}

Fleet::Found Fleet::Serve(const TraceRequest& request, size_t node_number) {
  Node& node = nodes_.at(node_number);
  const std::vector<uint32_t>& blocks = request.blocks;
  Found found;
  for (const uint32_t block : blocks) {
    const bool in_memory = node.memory.Contains(block);
    if (!in_memory && !shards_[ShardOf(block)].Contains(block)) break;
    ++found.blocks;
    if (!in_memory) ++found.shared;
  }
  node.memory.Serve(request);
  const absl::Time now = absl::FromUnixMillis(request.at_ms);
  const size_t whole = request.tokens / Trace::kBlockTokens;
  const auto end_of = [&](size_t depth) {
    return now + SharedLives::LifeOf(ttl_, static_cast<int64_t>(depth), depth < whole);
  };
  if (found.blocks > 0 && node.lives.PutsOff(blocks[found.blocks - 1], now)) {
    for (size_t depth = found.blocks; depth-- > 0;) {
      shards_[ShardOf(blocks[depth])].PutOff(blocks[depth], end_of(depth));
    }
  }
  if (found.blocks == blocks.size()) return found;
  for (size_t depth = blocks.size(); depth-- > 0;) {
    shards_[ShardOf(blocks[depth])].Write(blocks[depth], end_of(depth));
  }
  return found;
}

absl::Time Fleet::EndOf(uint32_t block) const {
  const EngineShard& shard = shards_[ShardOf(block)];
  return shard.Contains(block) ? shard.EndOf(block) : absl::InfinitePast();
}

FleetRates SimulateFleet(const Trace& trace, const FleetShape& shape) {
  Fleet fleet(shape);
  std::mt19937_64 random(7);
  uint64_t all = 0, found = 0, shared = 0;
  for (const TraceRequest& request : trace.requests) {
    const std::vector<uint32_t>& blocks = request.blocks;
    const uint64_t drawn = shape.routing == Routing::kRandom || blocks.empty()
                               ? random()
                               : blocks[0] * 0x9E3779B97F4A7C15u >> 20;
    const Fleet::Found here = fleet.Serve(request, drawn % shape.nodes);
    all += blocks.size();
    found += here.blocks;
    shared += here.shared;
  }
  const double counted = std::max<double>(1, static_cast<double>(all));
  return {static_cast<double>(found) / counted, static_cast<double>(shared) / counted};
}

}  // namespace hearth
