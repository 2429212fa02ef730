#include "tests/support/seeded_model.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/gemma_config.h"

namespace hearth {
namespace {

struct Tensor {
  std::string name;
  int outputs, inputs;  // if `inputs` is 0: a norm with `outputs` weights
  SeededMatrix seeded;
};

std::vector<Tensor> TensorsOf(const SeededGeometry& g) {
  const int q = g.heads * g.head_dim, kv = g.kv_heads * g.head_dim;
  std::vector<Tensor> tensors;
  const auto add = [&](const std::string& name, int layer, SeededTensor tensor, int outputs,
                       int inputs) {
    tensors.push_back({name, outputs, inputs, SeededOf(layer, tensor, inputs)});
  };
  add("model.embed_tokens.weight", 0, SeededTensor::kEmbedding, g.vocabulary, g.hidden);
  add("model.norm.weight", 0, SeededTensor::kFinalNorm, g.hidden, 0);
  for (int i = 0; i < static_cast<int>(g.layer_types.size()); ++i) {
    const std::string at = absl::StrCat("model.layers.", i, ".");
    add(at + "input_layernorm.weight", i, SeededTensor::kInputNorm, g.hidden, 0);
    add(at + "post_attention_layernorm.weight", i, SeededTensor::kPostAttentionNorm, g.hidden, 0);
    add(at + "pre_feedforward_layernorm.weight", i, SeededTensor::kPreFeedforwardNorm, g.hidden, 0);
    add(at + "post_feedforward_layernorm.weight", i, SeededTensor::kPostFeedforwardNorm, g.hidden,
        0);
    add(at + "self_attn.q_norm.weight", i, SeededTensor::kQNorm, g.head_dim, 0);
    add(at + "self_attn.k_norm.weight", i, SeededTensor::kKNorm, g.head_dim, 0);
    add(at + "self_attn.q_proj.weight", i, SeededTensor::kQ, q, g.hidden);
    add(at + "self_attn.k_proj.weight", i, SeededTensor::kK, kv, g.hidden);
    add(at + "self_attn.v_proj.weight", i, SeededTensor::kV, kv, g.hidden);
    add(at + "self_attn.o_proj.weight", i, SeededTensor::kOut, g.hidden, q);
    add(at + "mlp.gate_proj.weight", i, SeededTensor::kGate, g.intermediate, g.hidden);
    add(at + "mlp.up_proj.weight", i, SeededTensor::kUp, g.intermediate, g.hidden);
    add(at + "mlp.down_proj.weight", i, SeededTensor::kDown, g.hidden, g.intermediate);
  }
  return tensors;
}

std::string Config(const SeededGeometry& g) {
  const TinyGeometry same = {g.layer_types, g.window,       g.heads,      g.kv_heads, g.head_dim,
                             g.hidden,      g.intermediate, g.vocabulary, g.positions};
  return GemmaConfig(same, "bfloat16", g.attention_softcap, g.logit_softcap);
}

void Require(const std::ofstream& file, const std::string& path) {
  if (file.good()) return;
  std::fprintf(stderr, "%s: cannot write\n", path.c_str());
  std::abort();
}

}  // namespace

void WriteSeededModel(const SeededGeometry& geometry, const std::string& dir) {
  const std::vector<Tensor> tensors = TensorsOf(geometry);
  std::string header = "{";
  uint64_t begin = 0;
  for (const Tensor& tensor : tensors) {
    const uint64_t count = uint64_t{static_cast<uint32_t>(tensor.outputs)} *
                           static_cast<uint32_t>(std::max(1, tensor.inputs));
    const std::string shape = tensor.inputs > 0 ? absl::StrCat(tensor.outputs, ",", tensor.inputs)
                                                : absl::StrCat(tensor.outputs);
    absl::StrAppend(&header, header.size() > 1 ? "," : "", "\"", tensor.name,
                    "\":{\"dtype\":\"BF16\",\"shape\":[", shape, "],\"data_offsets\":[", begin, ",",
                    begin + 2 * count, "]}");
    begin += 2 * count;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t header_bytes = header.size();
  const std::string config_path = dir + "/config.json", path = dir + "/model.safetensors";
  std::ofstream config(config_path, std::ios::binary);
  config << Config(geometry);
  config.close();
  Require(config, config_path);
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&header_bytes), sizeof header_bytes);
  file << header;
  std::vector<uint16_t> row;
  for (const Tensor& tensor : tensors) {
    row.resize(static_cast<size_t>(std::max(1, tensor.inputs)));
    for (int output = 0; output < tensor.outputs; ++output) {
      for (size_t i = 0; i < row.size(); ++i) {
        row[i] = tensor.seeded.Weight(output, static_cast<int>(i));
      }
      file.write(reinterpret_cast<const char*>(row.data()),
                 static_cast<std::streamsize>(2 * row.size()));
    }
  }
  file.close();
  Require(file, path);
}

}  // namespace hearth
