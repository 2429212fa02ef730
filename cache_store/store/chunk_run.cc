#include "cache_store/store/chunk_run.h"

#include <algorithm>
#include <cassert>

#include "cache_store/catalog/stored_object.h"
#include "proto/prefix_key.h"

namespace hearth {

std::optional<ChunkRun> ChunkRunOf(const RestorePointEntry& point, uint32_t first,
                                   uint32_t most_tokens) {
  const uint32_t chunk_tokens = point.model->layout.chunk_tokens;
  if (point.tokens() % chunk_tokens != 0) return std::nullopt;
  const uint32_t chunks = point.tokens() / chunk_tokens;
  if (first >= chunks) return std::nullopt;
  ChunkRun run;
  run.chunk_tokens = chunk_tokens;
  run.first_chunk = first;
  const uint32_t count = std::min(std::max(1u, most_tokens / chunk_tokens), chunks - first);
  const SegmentNode* node = point.node;
  for (uint32_t skipped = chunks - first - count; skipped > 0; --skipped) node = node->parent;
  run.ids.resize(count);
  run.token_ids.resize(size_t{count} * chunk_tokens);
  for (uint32_t i = count; i-- > 0; node = node->parent) {
    assert(node->parent != nullptr && node->token_ids.size() == chunk_tokens);
    run.ids[i] = ChunkId(node->key);
    std::copy(node->token_ids.begin(), node->token_ids.end(),
              run.token_ids.begin() + static_cast<ptrdiff_t>(size_t{i} * chunk_tokens));
  }
  if (first > 0) run.parent_id = ChunkId(node->key);
  return run;
}

}  // namespace hearth
