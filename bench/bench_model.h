// Contents of stores in benchmarks: prompts, and models that differ only in their layers and KV
// sizes.
#ifndef HEARTH_BENCH_BENCH_MODEL_H_
#define HEARTH_BENCH_BENCH_MODEL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "proto/fingerprint.h"

namespace hearth {

// Returns a model. `layer_types` has one letter per layer: 'g' for global, 'l' for local (sliding
// window).
inline Fingerprint BenchModel(const std::string& layer_types, uint64_t kv_heads, uint64_t head_dim,
                              const std::string& kv_dtype = "float32", uint64_t window = 512) {
  return Fingerprint::Create({{"chunk_tokens", uint64_t{128}},
                              {"window", window},
                              {"kv_heads", kv_heads},
                              {"head_dim", head_dim},
                              {"kv_dtype", kv_dtype},
                              {"exactness", std::string("exact")},
                              {"layer_types", layer_types},
                              {"object_layout", uint64_t{1}},
                              {"codec", std::string("raw")}})
      .value();
}

// The layers and KV sizes of Gemma 3 270M: 28.3 MB of KV for 2,048 tokens, in slices of 256 KiB.
inline Fingerprint Model270M() { return BenchModel("lllllglllllglllllg", 1, 256); }

// The layers and KV sizes of Gemma 3 4B: 163.6 MB of KV for 2,048 tokens, in slices of 512 KiB.
inline Fingerprint Model4B() {
  return BenchModel("lllllglllllglllllglllllglllllgllll", 4, 256, "bfloat16", 1024);
}

// Returns `count` token ids. Different seeds (up to 262,144) give different first tokens.
inline std::vector<uint32_t> BenchTokens(uint64_t seed, uint32_t count) {
  std::vector<uint32_t> tokens(count);
  for (uint32_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<uint32_t>((seed * 7919 + i) % 262144);
  }
  return tokens;
}

}  // namespace hearth

#endif  // HEARTH_BENCH_BENCH_MODEL_H_
