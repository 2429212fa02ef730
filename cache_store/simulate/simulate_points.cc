#include "cache_store/simulate/simulate_points.h"

#include <algorithm>
#include <cassert>
#include <optional>

namespace hearth {
namespace {

constexpr uint32_t kBlockTokens = Trace::kBlockTokens;

int64_t Change(uint32_t* references, int32_t by) {
  const bool was = *references > 0;
  *references += by;
  return (*references > 0 ? 1 : 0) - (was ? 1 : 0);
}

// One token at least is always left to compute.
uint32_t UsableBlocks(const TraceRequest& request) {
  return request.tokens == 0 ? 0 : (request.tokens - 1) / kBlockTokens;
}

class PointCache {
 public:
  PointCache(const Trace& trace, const ModelShape& model, RetentionPolicy policy, double capacity)
      : capacity_(capacity),
        points_(trace, model),
        retention_(MakeRetention(policy, Retention::Depend::kNothing)) {}

  // Blocks restored for this prompt.
  uint32_t Serve(const TraceRequest& request) {
    const std::vector<uint32_t>& blocks = request.blocks;
    const uint32_t full = request.tokens / kBlockTokens;
    const uint32_t restored = points_.Restorable(request);
    const Retention::Prompt prompt{++number_, full * kBlockTokens,
                                   absl::FromUnixMillis(request.at_ms)};
    const std::vector<Retention::Key> path(blocks.begin(), blocks.begin() + UsableBlocks(request));
    retention_->Touch(path, prompt.tokens, prompt.now);
    std::optional<uint32_t> before;  // the last one that this request added
    for (const uint32_t end : KeptEnds(request, restored, points_.Matched(request))) {
      if (points_.Has(blocks[end - 1])) continue;
      Keep(blocks, end, prompt, end == full && before == end - 1);
      before = end;
    }
    while (points_.used() > capacity_) {
      points_.Remove(static_cast<uint32_t>(GiveUpFirst(retention_.get())));
    }
    return restored;
  }

 private:
  // `with_previous`: the boundary one block before was added by the same request.
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

}  // namespace

Retention::Key GiveUpFirst(Retention* retention) {
  std::optional<Retention::Key> first;
  retention->Visit(Retention::Scope::kStore, [&](Retention::Key key) {
    first = key;
    return Retention::Answer::kTake;
  });
  retention->Erase(first.value(), true);
  return *first;
}

PointSet::PointSet(const Trace& trace, const ModelShape& model)
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

uint32_t PointSet::Restorable(const TraceRequest& request) const {
  for (uint32_t end = UsableBlocks(request); end > 0; --end) {
    if (Has(request.blocks[end - 1])) return end;
  }
  return 0;
}

uint32_t PointSet::Matched(const TraceRequest& request) const {
  const uint32_t full = request.tokens / kBlockTokens;
  uint32_t matched = 0;
  while (matched < full && global_[request.blocks[matched]] > 0) ++matched;
  return matched;
}

void PointSet::Add(const std::vector<uint32_t>& blocks, uint32_t end) {
  assert(!Has(blocks[end - 1]));
  points_[blocks[end - 1]] = end;
  Count(blocks[end - 1], end, 1);
}

void PointSet::Remove(uint32_t last_block) {
  assert(Has(last_block));
  Count(last_block, points_[last_block], -1);
  points_[last_block] = 0;
}

void PointSet::Count(uint32_t last_block, uint32_t end, int32_t by) {
  uint32_t block = last_block;
  for (uint32_t i = 0; i < end; ++i, block = before_[block]) {
    used_ += Change(&global_[block], by) * model_.global_layers;
    if (i < tail_blocks_) used_ += Change(&local_[block], by) * model_.local_layers;
  }
}

std::vector<uint32_t> KeptEnds(const TraceRequest& request, uint32_t restored, uint32_t matched) {
  const uint32_t full = request.tokens / kBlockTokens;
  std::vector<uint32_t> ends;
  if (matched > restored) ends.push_back(matched);
  if (full > 1) ends.push_back(full - 1);
  if (full > 0) ends.push_back(full);
  std::sort(ends.begin(), ends.end());
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  ends.erase(ends.begin(), std::upper_bound(ends.begin(), ends.end(), restored));
  return ends;
}

uint64_t RestoredTokens(const Trace& trace, const ModelShape& model, RetentionPolicy policy,
                        double capacity) {
  PointCache cache(trace, model, policy, capacity);
  uint64_t restored = 0;
  for (const TraceRequest& request : trace.requests) restored += cache.Serve(request);
  return restored * kBlockTokens;
}

}  // namespace hearth
