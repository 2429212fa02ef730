// ModelConfig: the geometry and the constants of one Gemma 3 text model, read from config.json or
// from a GGUF header.
//
// Thread safety: plain values; const use from any thread.
// Both published styles are read: the old one (sliding_window_pattern, rope_theta,
// rope_local_base_freq, rope_scaling) and the new one (layer_types, rope_parameters), flat or below
// text_config. Fields that a published file leaves out take the defaults of Hugging Face's
// Gemma3TextConfig. An unsupported value is refused with the field, the value and the file: a model
// that loads is computed right.
#ifndef HEARTH_WORKER_MODEL_MODEL_CONFIG_H_
#define HEARTH_WORKER_MODEL_MODEL_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/kv_layout.h"
#include "worker/kernels/base/rope_config.h"

namespace hearth {

struct RopeConfigs {
  RopeConfig global{1000000.0};
  RopeConfig local{10000.0};
};

struct AttentionConfig {
  int num_heads = 8;
  int num_kv_heads = 4;
  int head_dim = 256;
  // W, counting the current token: position p of a local layer sees keys (p - W, p].
  int sliding_window = 4096;
  double query_pre_attn_scalar = 256.0;
  double logit_softcap = 0.0;  // 0: none
};

// What generation_config.json says of how to keep keys and values, and of how to draw tokens.
struct GenerationDefaults {
  std::string cache_implementation;  // empty: nothing
  // Its cache_config's options of quantized ones, by our names (kv_quantization.h); empty: none.
  std::string kv_quantization;
  double temperature = 1, top_p = 1;
  int top_k = 0;  // 0: all
};

struct ModelConfig {
  int hidden_size = 2304;
  int intermediate_size = 9216;
  int num_layers = 26;
  int vocab_size = 262208;
  int max_position_embeddings = 131072;
  std::vector<LayerGroup> layer_types;  // one a layer
  AttentionConfig attention;
  RopeConfigs rope;  // of the global and of the local layers
  double rms_norm_eps = 1e-6;
  double final_logit_softcap = 0.0;  // 0: none
  std::string activation = "gelu_pytorch_tanh";
  bool tie_word_embeddings = true;
  // True for Gemma3ForConditionalGeneration: the text part is below text_config.
  bool nested = false;
  int32_t bos_token_id = 2;
  int32_t pad_token_id = 0;
  std::vector<int32_t> eos_token_ids;  // sorted, unique; config.json's and generation_config.json's
  GenerationDefaults generation;
  // Fields of the files that ask transformers for something that this worker does not do, a
  // sentence each.
  std::vector<std::string> notes;

  bool is_local(int layer) const { return layer_types[layer] == LayerGroup::kLocal; }
};

// Of a folder, config.json and, when there is one, generation_config.json; of a GGUF file its
// header, and what that leaves to the architecture.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model);

// Parses the text of a config.json, and of a generation_config.json where there is one. The files'
// names are for messages.
absl::StatusOr<ModelConfig> ParseModelConfig(
    absl::string_view json, const std::string& file,
    std::optional<absl::string_view> generation_json = std::nullopt,
    const std::string& generation_file = {});

// OK when the model has an embedding for each. Else kInvalidArgument.
absl::Status CheckTokenIds(absl::Span<const int32_t> tokens, const ModelConfig& config);

// Fixed tokens spread over the vocabulary: what a worker computes to test itself.
inline int32_t SpreadToken(int position, int vocab_size) {
  constexpr int64_t kStride = 7919;  // a prime, so that no small vocabulary repeats early
  return static_cast<int32_t>((3 + position * kStride) % vocab_size);
}

// The layout of a model's stored KV, from its configuration. A pure function.

KvLayout LayoutOf(const ModelConfig& config, KvDtype dtype, uint32_t chunk_tokens,
                  Exactness exactness);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_MODEL_CONFIG_H_
