// How long the store takes to find the boundaries that the shared engine's objects make.
//
//   shared_plan_bench
//
// Prompts of the 4B's layers and window, in chunks of 128 and of 16 tokens, nothing of which is in
// the store. The engine has everything; or of each window one local object is missing, so that all
// boundaries are looked at and none can be restored. Least of some turns, in milliseconds.
#include <algorithm>
#include <cstdio>
#include <vector>

#include "bench/turns.h"
#include "cache_store/shared/tier/object_map.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

constexpr int kTurns = 5;

KvLayout Layout(uint32_t chunk_tokens) {
  KvLayout layout;
  layout.chunk_tokens = chunk_tokens;
  layout.window = 1024;
  layout.kv_heads = 4;
  layout.head_dim = 256;
  layout.exactness = Exactness::kInvariant;
  for (int i = 0; i < 34; ++i) {
    layout.layers.push_back(i % 6 == 5 ? LayerGroup::kGlobal : LayerGroup::kLocal);
  }
  return layout;
}

ObjectMap MapOf(const KvLayout& layout, const PromptChain& chain, bool has_gaps) {
  ObjectMap map(layout, chain, 0);
  for (const ObjectId& id : map.ToProbe()) {
    const bool is_gap = id.group == LayerGroup::kLocal && id.begin / 896 * 896 == id.begin;
    if (!has_gaps || !is_gap) map.Set(id, ObjectMap::Place::kEngine);
  }
  return map;
}

template <typename Work>
double Least(Work work) {
  double least = 1e9;
  for (int turn = 0; turn < kTurns; ++turn) least = std::min(least, Seconds(work));
  return 1e3 * least;
}

void Run(uint32_t chunk_tokens, uint32_t tokens) {
  const KvLayout layout = Layout(chunk_tokens);
  const std::vector<uint32_t> token_ids(tokens, 7);
  const PromptChain chain = MakeChain(layout, Digest{}, token_ids, {}, tokens, {});
  const std::vector<uint32_t> candidates = RestoreCandidates(tokens, {}, chunk_tokens);
  const ObjectMap whole = MapOf(layout, chain, false), gaps = MapOf(layout, chain, true);
  uint32_t found = 0;
  const double map_ms = Least([&] { found += MapOf(layout, chain, false).KnownTokens(); });
  const double hit_ms = Least([&] { found += whole.Longest(candidates, 0); });
  const double miss_ms = Least([&] { found += gaps.Longest(candidates, 0); });
  const double all_ms = Least([&] { found += !whole.Restorable(candidates, 0).empty(); });
  std::printf("| %u | %u | %.3f | %.3f | %.3f | %.3f |%s\n", chunk_tokens, tokens, map_ms, hit_ms,
              miss_ms, all_ms, found == 0 ? " nothing" : "");
  std::fflush(stdout);
}

}  // namespace
}  // namespace hearth

int main() {
  std::printf("| chunk | tokens | map | longest | none | all |\n");
  for (const uint32_t chunk_tokens : {128, 16}) {
    for (const uint32_t tokens : {8192, 32768, 65536, 131072}) hearth::Run(chunk_tokens, tokens);
  }
  return 0;
}
