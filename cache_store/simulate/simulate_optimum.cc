// The hits of a cache that knows the future.
#include <algorithm>
#include <limits>
#include <set>
#include <tuple>
#include <vector>

#include "cache_store/simulate/simulate_points.h"

namespace hearth {
namespace {

constexpr uint32_t kNever = std::numeric_limits<uint32_t>::max();

// For each request and block of it, the number of the next request with that block.
std::vector<std::vector<uint32_t>> NextUses(const Trace& trace) {
  std::vector<std::vector<uint32_t>> next(trace.requests.size());
  std::vector<uint32_t> later(trace.unique_blocks, kNever);
  for (size_t i = trace.requests.size(); i-- > 0;) {
    for (const uint32_t block : trace.requests[i].blocks) {
      next[i].push_back(later[block]);
      later[block] = static_cast<uint32_t>(i);
    }
  }
  return next;
}

// Restore points in order of the next request that each would serve.
class Oracle {
 public:
  Oracle(const Trace& trace, const ModelShape& model, double capacity)
      : capacity_(capacity),
        points_(trace, model),
        uses_(trace.unique_blocks),
        next_(trace.unique_blocks, kNever) {
    for (uint32_t i = 0; i < trace.requests.size(); ++i) {
      const TraceRequest& request = trace.requests[i];
      const uint32_t usable = request.tokens == 0 ? 0 : (request.tokens - 1) / Trace::kBlockTokens;
      for (uint32_t k = 0; k < usable; ++k) uses_[request.blocks[k]].push_back(i);
    }
  }

  uint32_t Serve(uint32_t index, const TraceRequest& request) {
    const std::vector<uint32_t>& blocks = request.blocks;
    const uint32_t restored = points_.Restorable(request);
    // Any boundary of the prompt could be kept. From the longest down: a shorter one serves what
    // the longer ones do not.
    const std::vector<uint32_t>* longer = nullptr;
    for (uint32_t end = request.tokens / Trace::kBlockTokens; end > 0; --end) {
      const uint32_t last = blocks[end - 1];
      const bool held = points_.Has(last);
      if (!held && end <= restored) continue;  // its tail was not computed
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
  // The first of `uses` after `index` that is not one of `longer`, which is a part of them.
  static uint32_t NextUse(const std::vector<uint32_t>& uses, const std::vector<uint32_t>* longer,
                          uint32_t index) {
    auto next = std::upper_bound(uses.begin(), uses.end(), index);
    if (longer != nullptr) {
      auto taken = std::upper_bound(longer->begin(), longer->end(), index);
      while (next != uses.end() && taken != longer->end() && *next == *taken) ++next, ++taken;
    }
    return next == uses.end() ? kNever : *next;
  }

  const double capacity_;
  PointSet points_;
  std::vector<std::vector<uint32_t>> uses_;  // by block: requests that could restore it
  std::vector<uint32_t> next_;
  std::set<std::tuple<uint32_t, uint32_t, uint32_t>> order_;  // next use, longest first, last block
};

}  // namespace

uint64_t OptimumHits(const Trace& trace, uint64_t capacity_blocks) {
  const std::vector<std::vector<uint32_t>> next = NextUses(trace);
  std::set<std::tuple<uint32_t, uint32_t, uint32_t>> held;  // next use, depth, block
  uint64_t hits = 0;
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    const std::vector<uint32_t>& blocks = trace.requests[i].blocks;
    bool unbroken = true;
    for (uint32_t depth = 0; depth < blocks.size(); ++depth) {
      // A held block's next use is this request.
      const bool found = held.erase({static_cast<uint32_t>(i), depth, blocks[depth]}) > 0;
      unbroken = unbroken && found;
      if (unbroken) ++hits;
    }
    for (uint32_t depth = 0; depth < blocks.size(); ++depth) {
      if (next[i][depth] != kNever) held.insert({next[i][depth], depth, blocks[depth]});
    }
    while (held.size() > capacity_blocks) held.erase(std::prev(held.end()));
  }
  return hits;
}

uint64_t OptimumRestoredTokens(const Trace& trace, const ModelShape& model, double capacity) {
  Oracle oracle(trace, model, capacity);
  uint64_t restored = 0;
  for (uint32_t i = 0; i < trace.requests.size(); ++i) {
    restored += oracle.Serve(i, trace.requests[i]);
  }
  return restored * Trace::kBlockTokens;
}

}  // namespace hearth
