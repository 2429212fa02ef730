// Prompts that the child process of kill_nine_test publishes and its parent expects. Pure functions
// of a seed.
#ifndef HEARTH_TESTS_CACHE_STORE_STORE_KILL_PROMPTS_H_
#define HEARTH_TESTS_CACHE_STORE_STORE_KILL_PROMPTS_H_

#include <string>
#include <vector>

#include "tests/support/store_kit.h"

namespace hearth {

// Slices of 16 KiB: a long prompt has about 2 MB, so that a kill usually happens between two
// slices.
inline Fingerprint KillModel() {
  KitModel model;
  model.chunk_tokens = 16;
  model.head_dim = 128;
  model.window = 40;
  model.layer_types = "lllllg";
  return model.Make();
}

// Every third prompt is short, and its slices go through the log. The others are written as tables.
inline bool IsShortKillPrompt(uint64_t seed) { return seed % 3 == 2; }

// Groups of four prompts have the first 64 tokens in common.
inline KitPrompt KillPrompt(uint64_t seed) {
  if (IsShortKillPrompt(seed)) return {KitTokens(500000 + seed, 33), {}};
  KitPrompt prompt{KitTokens(1000 + seed / 4, 64), {}};
  for (const uint32_t token : KitTokens(seed, 137)) prompt.tokens.push_back(token);
  prompt.cuts = {100};
  return prompt;
}

inline std::vector<uint32_t> KillBoundaries(uint64_t seed) {
  if (IsShortKillPrompt(seed)) return {32};
  return {64, 100, 192};
}

// Options of the child's two stores, in folders of these names: one has space for everything, the
// other always evicts.
inline StoreOptions KillOptions(const std::string& folder, bool ample) {
  StoreOptions options;
  options.data_dir = folder + (ample ? "/ample" : "/small");
  options.host_bytes = 8 << 20;  // RAM for four long prompts; the copies of others are dropped
  options.disk_bytes = ample ? uint64_t{16} << 30 : uint64_t{24} << 20;
  options.scrub.bytes_per_s = uint64_t{256} << 20;
  options.scrub.period = absl::Milliseconds(1);  // scrub without a pause between passes
  return options;
}

}  // namespace hearth

#endif  // HEARTH_TESTS_CACHE_STORE_STORE_KILL_PROMPTS_H_
