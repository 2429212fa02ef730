// Writes a small LoRA adapter in PEFT's format, for the queries and the feed-forward's last
// projection of a checkpoint's first layer. For tests only.
#ifndef HEARTH_TESTS_SUPPORT_TINY_ADAPTER_H_
#define HEARTH_TESTS_SUPPORT_TINY_ADAPTER_H_

#include <cstdint>
#include <fstream>
#include <string>

#include "nlohmann/json.hpp"
#include "tests/support/tiny_checkpoint.h"

namespace hearth {

// Writes to `dir`, which must exist. Equal seeds give equal adapters.
inline void WriteTinyAdapter(const TinyGeometry& geometry, uint64_t seed, const std::string& dir) {
  constexpr int kRank = 3;
  nlohmann::json header;
  std::string data;
  const auto add = [&](const std::string& name, int rows, int columns) {
    const size_t begin = data.size();
    for (int i = 0; i < rows * columns; ++i) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      const float value = (static_cast<float>(seed >> 40) / 0x1p24f - 0.5f) * 0.8f;
      data.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    header["base_model.model.model.layers.0." + name] = {
        {"dtype", "F32"}, {"shape", {rows, columns}}, {"data_offsets", {begin, data.size()}}};
  };
  const int queries = geometry.heads * geometry.head_dim;
  add("self_attn.q_proj.lora_A.weight", kRank, geometry.hidden_size);
  add("self_attn.q_proj.lora_B.weight", queries, kRank);
  add("mlp.down_proj.lora_A.weight", kRank, geometry.intermediate_size);
  add("mlp.down_proj.lora_B.weight", geometry.hidden_size, kRank);
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::ofstream(dir + "/adapter_model.safetensors", std::ios::binary)
          .write(reinterpret_cast<const char*>(&length), sizeof(length))
      << text << data;
  const nlohmann::json config = {{"peft_type", "LORA"}, {"r", kRank}, {"lora_alpha", 6}};
  std::ofstream(dir + "/adapter_config.json") << config;
}

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_TINY_ADAPTER_H_
