#include "bench/simulate/simulate.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "cache_store/retention/retention.h"
#include "cache_store/shared/shared_ttl_policy.h"

namespace hearth {
namespace {

constexpr uint32_t kBlockTokens = Trace::kBlockTokens;

// Returns how many blocks of a prompt can be restored: the last token must always be computed.
uint32_t UsableBlocks(const TraceRequest& request) {
  return request.tokens == 0 ? 0 : (request.tokens - 1) / kBlockTokens;
}

// Evicts the entry with the lowest value. The policy remembers the evicted entry.
Retention::Key EvictLowest(Retention* retention) {
  std::optional<Retention::Key> first;
  retention->Visit([&](Retention::Key key) {
    first = key;
    return Retention::Answer::kTake;
  });
  retention->Erase(first.value(), true);
  return *first;
}

// A cache of a given size that serves the requests of a trace.
class Cache {
 public:
  virtual ~Cache() = default;
  // Serves the prompt of request number `index` of the trace. Returns how many blocks of the prompt
  // were in the cache. Afterwards the cache contains as much of the prompt as fits.
  virtual uint64_t Serve(uint32_t index, const TraceRequest& request) = 0;
};

// The restore points of a model with sliding windows: each needs the global layers of its whole
// prefix and the local layers of the last window of tokens. Restore points share blocks. Sizes are
// counted in layers of a block.
class PointSet {
 public:
  PointSet(const Trace& trace, const ModelShape& model)
      : model_(model),
        tail_blocks_((model.window - 1 + kBlockTokens - 1) / kBlockTokens),
        global_(trace.unique_blocks),
        local_(trace.unique_blocks),
        points_(trace.unique_blocks),
        before_(trace.unique_blocks) {
    for (const TraceRequest& request : trace.requests) {
      for (size_t i = 1; i < request.blocks.size(); ++i) {
        before_[request.blocks[i]] = request.blocks[i - 1];
      }
    }
  }

  // Returns how many blocks the longest usable restore point of this prompt has. At least one token
  // must remain to be computed.
  uint32_t Restorable(const TraceRequest& request) const {
    uint32_t end = UsableBlocks(request);
    while (end > 0 && !Has(request.blocks[end - 1])) --end;
    return end;
  }
  // Returns how many full blocks at the start of the prompt have their global layers in the cache.
  uint32_t Matched(const TraceRequest& request) const {
    const uint32_t full = request.tokens / kBlockTokens;
    uint32_t matched = 0;
    while (matched < full && global_[request.blocks[matched]] > 0) ++matched;
    return matched;
  }
  bool Has(uint32_t last_block) const { return points_[last_block] > 0; }
  // REQUIRES: Add: the restore point is not in the set. Remove: it is in the set.
  void Add(const std::vector<uint32_t>& blocks, uint32_t end) {
    assert(!Has(blocks[end - 1]));
    points_[blocks[end - 1]] = end;
    Count(blocks[end - 1], end, 1);
  }
  void Remove(uint32_t last_block) {
    assert(Has(last_block));
    Count(last_block, std::exchange(points_[last_block], 0), -1);
  }

  int64_t used() const { return used_; }
  uint32_t tail_blocks() const { return tail_blocks_; }
  const ModelShape& model() const { return model_; }

 private:
  void Count(uint32_t last_block, uint32_t end, int32_t by) {
    uint32_t block = last_block;
    for (uint32_t i = 0; i < end; ++i, block = before_[block]) {
      used_ += Change(&global_[block], by) * model_.global_layers;
      if (i < tail_blocks_) used_ += Change(&local_[block], by) * model_.local_layers;
    }
  }
  static int64_t Change(uint32_t* references, int32_t by) {
    const bool was = *references > 0;
    *references += by;
    return (*references > 0 ? 1 : 0) - (was ? 1 : 0);
  }

  const ModelShape model_;
  const uint32_t tail_blocks_;
  // for each block: number of restore points that need its global or local layers
  std::vector<uint32_t> global_, local_;
  // for each block that ends a restore point: number of blocks before its boundary; otherwise 0
  std::vector<uint32_t> points_;
  std::vector<uint32_t> before_;  // for each block: the block before it in the prompt
  int64_t used_ = 0;
};

class PointCache : public Cache {
 public:
  PointCache(const Trace& trace, const ModelShape& model, RetentionPolicy policy, double capacity)
      : capacity_(capacity),
        points_(trace, model),
        retention_(MakeRetention(policy, Retention::Depend::kNothing)) {}

  uint64_t Serve(uint32_t, const TraceRequest& request) override {
    const std::vector<uint32_t>& blocks = request.blocks;
    const uint32_t full = request.tokens / kBlockTokens;
    const uint32_t restored = points_.Restorable(request);
    const Retention::Prompt prompt{++number_, full * kBlockTokens,
                                   absl::FromUnixMillis(request.at_ms)};
    const std::vector<Retention::Key> path(blocks.begin(), blocks.begin() + UsableBlocks(request));
    retention_->Touch(path, prompt.tokens, prompt.now);
    // Adds restore points at three boundaries: the end of the matched prefix, the end of the last
    // full block, and one block before that.
    const std::set<uint32_t> ends = {points_.Matched(request), full > 1 ? full - 1 : 0, full};
    std::optional<uint32_t> before;  // the boundary that this request added last
    for (const uint32_t end : ends) {
      if (end <= restored || points_.Has(blocks[end - 1])) continue;
      Keep(blocks, end, prompt, end == full && before == end - 1);
      before = end;
    }
    while (points_.used() > capacity_) {
      points_.Remove(static_cast<uint32_t>(EvictLowest(retention_.get())));
    }
    return restored;
  }

 private:
  // `with_previous`: this request also added the boundary one block before.
  void Keep(const std::vector<uint32_t>& blocks, uint32_t end, const Retention::Prompt& prompt,
            bool with_previous) {
    const uint32_t last = blocks[end - 1];
    const ModelShape& model = points_.model();
    Retention::Facts facts;
    for (uint32_t i = end - 1; i-- > 0 && !facts.parent.has_value();) {
      if (points_.Has(blocks[i])) facts.parent = blocks[i];
    }
    if (with_previous) facts.with = blocks[end - 2];
    facts.tokens = facts.gain_tokens = end * kBlockTokens;
    const uint32_t tail = std::min(end, points_.tail_blocks() + (with_previous ? 1 : 0));
    facts.tail_bytes = uint64_t{tail} * model.local_layers * kBlockTokens;
    facts.bytes = facts.tail_bytes + uint64_t{end} * model.global_layers * kBlockTokens;
    points_.Add(blocks, end);
    retention_->Insert(last, facts, prompt);
  }

  const double capacity_;
  PointSet points_;
  const std::unique_ptr<Retention> retention_;
  uint64_t number_ = 0;
};

constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();

using Uses = std::vector<uint32_t>;  // numbers of requests in the trace, ascending

// Returns, for each block, the requests whose prompts contain the block. With `restorable`, only
// the requests that could restore the block.
std::vector<Uses> UsesOf(const Trace& trace, bool restorable) {
  std::vector<Uses> uses(trace.unique_blocks);
  for (uint32_t i = 0; i < trace.requests.size(); ++i) {
    const TraceRequest& request = trace.requests[i];
    const size_t blocks = restorable ? UsableBlocks(request) : request.blocks.size();
    for (size_t k = 0; k < blocks; ++k) uses[request.blocks[k]].push_back(i);
  }
  return uses;
}

// Returns the first request after `index` that is in `uses` but not in `longer`, which is a subset
// of `uses`.
uint32_t NextUse(const Uses& uses, const Uses* longer, uint32_t index) {
  auto next = std::upper_bound(uses.begin(), uses.end(), index);
  if (longer != nullptr) {
    auto taken = std::upper_bound(longer->begin(), longer->end(), index);
    while (next != uses.end() && taken != longer->end() && *next == *taken) ++next, ++taken;
  }
  return next == uses.end() ? kNever : *next;
}

// Belady's rule with knowledge of future requests: evicts the restore point whose next use is
// farthest in the future. A request uses a restore point if no longer restore point can serve the
// request.
class PointOptimum : public Cache {
 public:
  PointOptimum(const Trace& trace, const ModelShape& model, double capacity)
      : capacity_(capacity),
        points_(trace, model),
        uses_(UsesOf(trace, /*restorable=*/true)),
        next_(trace.unique_blocks, kNever) {}

  uint64_t Serve(uint32_t index, const TraceRequest& request) override {
    const std::vector<uint32_t>& blocks = request.blocks;
    const uint32_t restored = points_.Restorable(request);
    // Any boundary of the prompt may become a restore point. Visit the longest boundary first,
    // because a shorter boundary serves only requests that no longer boundary serves.
    const Uses* longer = nullptr;
    for (uint32_t end = request.tokens / kBlockTokens; end > 0; --end) {
      const uint32_t last = blocks[end - 1];
      const bool held = points_.Has(last);
      // A restore point cannot be added inside the restored prefix: its local layers were not
      // computed.
      if (!held && end <= restored) continue;
      const uint32_t next = NextUse(uses_[last], longer, index);
      if (held) order_.erase({next_[last], ~end, last});
      if (held && next == kNever) points_.Remove(last);
      if (next == kNever) continue;
      if (!held) points_.Add(blocks, end);
      next_[last] = next;
      order_.insert({next, ~end, last});
      longer = &uses_[last];
    }
    while (points_.used() > capacity_) {
      points_.Remove(std::get<2>(*order_.rbegin()));
      order_.erase(std::prev(order_.end()));
    }
    return restored;
  }

 private:
  const double capacity_;
  PointSet points_;
  const std::vector<Uses> uses_;
  std::vector<uint32_t> next_;
  // ordered by next use, longest first, last block
  std::set<std::tuple<uint32_t, uint32_t, uint32_t>> order_;
};

constexpr const char* kPolicyNames[] = {"default", "lru", "optimum"};  // indexed by SimulatedPolicy

// A cache of blocks that are evicted one by one. A block is useless if the block before it is
// missing.
class DenseCache : public Cache {
 public:
  // With kLru, this is the LRU cache of the published curves: each block has its own position in
  // the order, so a block may be evicted before the blocks after it.
  DenseCache(RetentionPolicy policy, uint64_t capacity_blocks)
      : one_by_one_(policy == RetentionPolicy::kLru),
        capacity_blocks_(capacity_blocks),
        retention_(MakeRetention(policy, Retention::Depend::kOnParent)) {}

  bool Contains(uint32_t block) const { return retention_->Contains(block); }
  uint64_t Serve(uint32_t, const TraceRequest& request) override {
    const std::vector<uint32_t>& blocks = request.blocks;
    uint64_t found = 0;
    while (found < blocks.size() && retention_->Contains(blocks[found])) ++found;
    const uint32_t full = request.tokens / kBlockTokens;
    const Retention::Prompt prompt{++number_, full * kBlockTokens,
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
        facts.tokens = (i + 1) * kBlockTokens;
        facts.gain_tokens = facts.bytes = kBlockTokens;
        facts.remainder = i >= full;
        facts.parent = parent;
        retention_->Insert(key, facts, prompt);
        // If the block before it was evicted, record the use of this block but do not store the
        // block.
        if (!has_parent && !one_by_one_) retention_->Erase(key, true);
        while (retention_->held() > capacity_blocks_) EvictLowest(retention_.get());
        has_parent = retention_->Contains(key);
      }
      parent = key;
    }
    return found;
  }

 private:
  const bool one_by_one_;
  const uint64_t capacity_blocks_;
  std::unique_ptr<Retention> retention_;
  uint64_t number_ = 0;
};

// The optimum for a cache of single blocks: evicts the block whose next use is farthest in the
// future; of blocks with the same next use, the one farthest from the prompt's start. Does not
// store blocks that are never used again.
class DenseOptimum : public Cache {
 public:
  DenseOptimum(const Trace& trace, uint64_t capacity_blocks)
      : capacity_blocks_(capacity_blocks), uses_(UsesOf(trace, /*restorable=*/false)) {}

  uint64_t Serve(uint32_t index, const TraceRequest& request) override {
    const std::vector<uint32_t>& blocks = request.blocks;
    uint64_t found = 0;
    for (uint32_t depth = 0; depth < blocks.size(); ++depth) {
      // The next use of a stored block is the current request.
      const bool is_held = held_.erase({index, depth, blocks[depth]}) > 0;
      if (is_held && found == depth) ++found;
    }
    for (uint32_t depth = 0; depth < blocks.size(); ++depth) {
      const uint32_t next = NextUse(uses_[blocks[depth]], nullptr, index);
      if (next != kNever) held_.insert({next, depth, blocks[depth]});
    }
    while (held_.size() > capacity_blocks_) held_.erase(std::prev(held_.end()));
    return found;
  }

 private:
  const uint64_t capacity_blocks_;
  const std::vector<Uses> uses_;
  // ordered by next use, position in the prompt, block
  std::set<std::tuple<uint32_t, uint32_t, uint32_t>> held_;
};

std::unique_ptr<Cache> MakeCache(const Trace& trace, const ModelShape* model,
                                 SimulatedPolicy policy, double capacity) {
  const bool is_optimum = policy == SimulatedPolicy::kOptimum;
  const RetentionPolicy retention =
      policy == SimulatedPolicy::kLru ? RetentionPolicy::kLru : RetentionPolicy::kDefault;
  if (model != nullptr) {
    const double room =
        capacity * trace.unique_full_blocks * (model->global_layers + model->local_layers);
    if (is_optimum) return std::make_unique<PointOptimum>(trace, *model, room);
    return std::make_unique<PointCache>(trace, *model, retention, room);
  }
  const auto room = std::max<uint64_t>(1, static_cast<uint64_t>(capacity * trace.unique_blocks));
  if (is_optimum) return std::make_unique<DenseOptimum>(trace, room);
  return std::make_unique<DenseCache>(retention, room);
}

}  // namespace

const char* PolicyName(SimulatedPolicy policy) { return kPolicyNames[static_cast<int>(policy)]; }

absl::StatusOr<SimulatedPolicy> ParsePolicy(const std::string& name) {
  const auto found = absl::c_find(kPolicyNames, name);
  if (found != std::end(kPolicyNames)) {
    return static_cast<SimulatedPolicy>(found - std::begin(kPolicyNames));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("policy ", name, " is not one of default, lru, optimum"));
}

double HitRate(const Trace& trace, const ModelShape* model, SimulatedPolicy policy,
               double capacity) {
  const std::unique_ptr<Cache> cache = MakeCache(trace, model, policy, capacity);
  uint64_t all = 0, found = 0;
  for (uint32_t i = 0; i < trace.requests.size(); ++i) {
    const TraceRequest& request = trace.requests[i];
    all += model != nullptr ? request.tokens : request.blocks.size();
    found += cache->Serve(i, request);
  }
  return static_cast<double>(model != nullptr ? found * kBlockTokens : found) / all;
}

// A shard of the engine that the stores of a simulated fleet share. It evicts like Redis with
// volatile-ttl: takes a few random values and the best candidates of earlier samples, and evicts
// the value with the earliest expiry. The random numbers have a fixed seed, so equal calls give
// equal results.
class Fleet::EngineShard {
 public:
  // `samples`: the Redis setting maxmemory-samples.
  EngineShard(uint64_t capacity_blocks, uint32_t samples, uint64_t seed)
      : capacity_(capacity_blocks), samples_(samples), random_(seed) {}

  // Returns the expiry of a block; InfinitePast if the block is not in the shard.
  absl::Time EndOf(uint32_t block) const {
    const auto place = places_.find(block);
    return place == places_.end() ? absl::InfinitePast() : values_[place->second].end;
  }
  bool Contains(uint32_t block) const { return places_.contains(block); }
  // Extends the expiry of a block to `end`, unless it is later already. Returns false if the block
  // is not in the shard.
  bool ExtendExpiry(uint32_t block, absl::Time end) {
    const auto place = places_.find(block);
    if (place == places_.end()) return false;
    absl::Time& known = values_[place->second].end;
    known = std::max(known, end);
    return true;
  }
  // Adds the block with this expiry, or extends its expiry if the block is in the shard.
  void Write(uint32_t block, absl::Time end) {
    if (capacity_ == 0 || ExtendExpiry(block, end)) return;
    while (values_.size() >= capacity_) EvictOne();
    places_[block] = values_.size();
    values_.push_back({block, end});
  }

 private:
  struct Value {
    uint32_t block = 0;
    absl::Time end;
  };
  // Redis keeps this many eviction candidates from one eviction to the next
  static constexpr size_t kCandidates = 16;

  void EvictOne() {
    for (uint32_t i = 0; i < samples_; ++i) {
      const uint32_t block = values_[random_() % values_.size()].block;
      if (!absl::c_linear_search(candidates_, block)) candidates_.push_back(block);
    }
    const auto gone = [this](uint32_t block) { return !Contains(block); };
    candidates_.erase(std::remove_if(candidates_.begin(), candidates_.end(), gone),
                      candidates_.end());
    absl::c_sort(candidates_, [this](uint32_t a, uint32_t b) { return EndOf(a) < EndOf(b); });
    const size_t at = places_.at(candidates_.front());
    places_[values_.back().block] = at;
    places_.erase(candidates_.front());
    values_[at] = values_.back();
    values_.pop_back();
    candidates_.erase(candidates_.begin());
    candidates_.resize(std::min(candidates_.size(), kCandidates));
  }

  const uint64_t capacity_;
  const uint32_t samples_;
  std::mt19937_64 random_;
  std::vector<Value> values_;
  absl::flat_hash_map<uint32_t, size_t> places_;
  std::vector<uint32_t> candidates_;
};

struct Fleet::Node {
  DenseCache memory;
  SharedTtlPolicy lives;
};

Fleet::Fleet(const FleetShape& shape) : ttl_(shape.ttl) {
  assert(shape.nodes >= 1 && shape.shards >= 1 && shape.samples >= 1);
  for (uint32_t i = 0; i < shape.nodes; ++i) {
    nodes_.push_back({{RetentionPolicy::kDefault, shape.node_blocks}, SharedTtlPolicy(shape.ttl)});
  }
  for (uint32_t i = 0; i < shape.shards; ++i) {
    shards_.emplace_back(shape.shared_blocks / shape.shards, shape.samples, i);
  }
}

Fleet::~Fleet() = default;

Fleet::EngineShard& Fleet::ShardOf(uint32_t block) {
  return shards_[block * 0x9E3779B97F4A7C15u % shards_.size()];
}

Fleet::Found Fleet::Serve(const TraceRequest& request, size_t node_number) {
  Node& node = nodes_.at(node_number);
  const std::vector<uint32_t>& blocks = request.blocks;
  Found found;
  for (const uint32_t block : blocks) {
    const bool in_memory = node.memory.Contains(block);
    if (!in_memory && !ShardOf(block).Contains(block)) break;
    ++found.blocks;
    if (!in_memory) ++found.shared;
  }
  node.memory.Serve(0, request);
  const absl::Time now = absl::FromUnixMillis(request.at_ms);
  const size_t whole = request.tokens / kBlockTokens;
  const auto end_of = [&](size_t depth) {
    return now + SharedTtlPolicy::TtlOf(ttl_, static_cast<int64_t>(depth), depth < whole);
  };
  if (found.blocks > 0 && node.lives.ExtendsExpiry(blocks[found.blocks - 1], now)) {
    for (size_t depth = found.blocks; depth-- > 0;) {
      ShardOf(blocks[depth]).ExtendExpiry(blocks[depth], end_of(depth));
    }
  }
  if (found.blocks == blocks.size()) return found;
  for (size_t depth = blocks.size(); depth-- > 0;) {
    ShardOf(blocks[depth]).Write(blocks[depth], end_of(depth));
  }
  return found;
}

absl::Time Fleet::EndOf(uint32_t block) { return ShardOf(block).EndOf(block); }

FleetRates SimulateFleet(const Trace& trace, const FleetShape& shape) {
  Fleet fleet(shape);
  std::mt19937_64 random(7);
  uint64_t all = 0, found = 0, shared = 0;
  for (const TraceRequest& request : trace.requests) {
    const std::vector<uint32_t>& blocks = request.blocks;
    const uint64_t drawn =
        shape.affinity && !blocks.empty() ? blocks[0] * 0x9E3779B97F4A7C15u >> 20 : random();
    const Fleet::Found here = fleet.Serve(request, drawn % shape.nodes);
    all += blocks.size();
    found += here.blocks;
    shared += here.shared;
  }
  const double counted = std::max<double>(1, static_cast<double>(all));
  return {static_cast<double>(found) / counted, static_cast<double>(shared) / counted};
}

}  // namespace hearth
