// What the killed child publishes and its parent expects: pure functions of a seed.
#ifndef HEARTH_TESTS_CACHE_STORE_KILL_PROMPTS_H_
#define HEARTH_TESTS_CACHE_STORE_KILL_PROMPTS_H_

#include <vector>

#include "tests/support/store_kit.h"

namespace hearth {

// 16 KiB slices: about 2 MB a prompt, so that a kill usually lands between two slices.
inline Fingerprint KillModel() {
  KitModel model;
  model.chunk_tokens = 16;
  model.head_dim = 128;
  model.window = 40;
  model.layer_types = "lllllg";
  return model.Make();
}

// Prompts come in families of four that share their first 64 tokens.
inline KitPrompt KillPrompt(uint64_t seed) {
  KitPrompt prompt{KitTokens(1000 + seed / 4, 64), {}};
  for (const uint32_t token : KitTokens(seed, 137)) prompt.tokens.push_back(token);
  prompt.cuts = {100};
  return prompt;
}

inline std::vector<uint32_t> KillBoundaries() { return {64, 100, 192}; }

}  // namespace hearth

#endif  // HEARTH_TESTS_CACHE_STORE_KILL_PROMPTS_H_
