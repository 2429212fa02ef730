// Writes a small LoRA adapter in PEFT's format. For tests only.
#ifndef HEARTH_TESTS_SUPPORT_TINY_ADAPTER_H_
#define HEARTH_TESTS_SUPPORT_TINY_ADAPTER_H_

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "nlohmann/json.hpp"
#include "tests/support/tiny_checkpoint.h"

namespace hearth {

struct TinyAdapter {
  uint64_t seed = 1;  // equal seeds give equal adapters
  int rank = 3;
  // by default the queries and the feed-forward's last projection of the first layer
  std::vector<std::string> projections = {"0.self_attn.q_proj", "0.mlp.down_proj"};
};

// Returns the names of all projections of the first `layers` layers.
inline std::vector<std::string> AllProjections(int layers) {
  std::vector<std::string> names;
  for (int layer = 0; layer < layers; ++layer) {
    for (const char* name :
         {".self_attn.q_proj", ".self_attn.k_proj", ".self_attn.v_proj", ".self_attn.o_proj",
          ".mlp.gate_proj", ".mlp.up_proj", ".mlp.down_proj"}) {
      names.push_back(std::to_string(layer) + name);
    }
  }
  return names;
}

// Writes to `dir`, which must exist.
inline void WriteTinyAdapter(const TinyGeometry& geometry, const TinyAdapter& adapter,
                             const std::string& dir) {
  nlohmann::json header;
  std::string data;
  uint64_t state = adapter.seed;
  const auto add = [&](const std::string& name, int rows, int columns) {
    const size_t begin = data.size();
    for (int i = 0; i < rows * columns; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      const float value = (static_cast<float>(state >> 40) / 0x1p24f - 0.5f) * 0.8f;
      data.append(reinterpret_cast<const char*>(&value), sizeof(value));
    }
    header["base_model.model.model.layers." + name] = {
        {"dtype", "F32"}, {"shape", {rows, columns}}, {"data_offsets", {begin, data.size()}}};
  };
  const int queries = geometry.heads * geometry.head_dim;
  const int keys = geometry.kv_heads * geometry.head_dim;
  for (const std::string& name : adapter.projections) {
    const auto is = [&](const char* end) { return absl::EndsWith(name, end); };
    const int inputs = is("o_proj")      ? queries
                       : is("down_proj") ? geometry.intermediate_size
                                         : geometry.hidden_size;
    const int outputs = is("q_proj")                       ? queries
                        : is("k_proj") || is("v_proj")     ? keys
                        : is("gate_proj") || is("up_proj") ? geometry.intermediate_size
                                                           : geometry.hidden_size;
    add(name + ".lora_A.weight", adapter.rank, inputs);
    add(name + ".lora_B.weight", outputs, adapter.rank);
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::ofstream(dir + "/adapter_model.safetensors", std::ios::binary)
          .write(reinterpret_cast<const char*>(&length), sizeof(length))
      << text << data;
  const nlohmann::json config = {
      {"peft_type", "LORA"}, {"r", adapter.rank}, {"lora_alpha", 2 * adapter.rank}};
  std::ofstream(dir + "/adapter_config.json") << config;
}
inline void WriteTinyAdapter(const TinyGeometry& geometry, uint64_t seed, const std::string& dir) {
  WriteTinyAdapter(geometry, TinyAdapter{seed}, dir);
}

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_TINY_ADAPTER_H_
