#include "cache_store/simulate/dense_cache.h"

#include <optional>
#include <vector>

#include "cache_store/simulate/simulate_points.h"

namespace hearth {

DenseCache::DenseCache(RetentionPolicy policy, uint64_t capacity_blocks)
    : one_by_one_(policy == RetentionPolicy::kLru),
      capacity_blocks_(capacity_blocks),
      retention_(MakeRetention(policy, Retention::Depend::kOnParent)) {}

uint64_t DenseCache::Serve(const TraceRequest& request) {
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

}  // namespace hearth
