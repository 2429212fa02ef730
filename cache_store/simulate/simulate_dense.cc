#include "cache_store/simulate/simulate_dense.h"

#include <optional>
#include <vector>

namespace hearth {
namespace {

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
    while (found < blocks.size() && retention_->Holds(blocks[found])) ++found;
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
      if (retention_->Holds(key)) {
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
        Shrink();
        has_parent = retention_->Holds(key);
      }
      parent = key;
    }
    return found;
  }

 private:
  void Shrink() {
    while (retention_->held() > capacity_blocks_) {
      std::optional<Retention::Key> first;
      retention_->Visit(Retention::Scope::kStore, [&](Retention::Key key) {
        first = key;
        return Retention::Answer::kTake;
      });
      retention_->Erase(first.value(), true);
    }
  }

  const bool one_by_one_;
  const uint64_t capacity_blocks_;
  const std::unique_ptr<Retention> retention_;
  uint64_t number_ = 0;
};

}  // namespace

uint64_t DenseHits(const Trace& trace, RetentionPolicy policy, uint64_t capacity_blocks) {
  DenseCache cache(policy, capacity_blocks);
  uint64_t found = 0;
  for (const TraceRequest& request : trace.requests) found += cache.Serve(request);
  return found;
}

}  // namespace hearth
