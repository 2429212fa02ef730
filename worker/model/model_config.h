// ModelConfig: the geometry and the constants of one Gemma 3 text model, read from config.json or
// from a GGUF header.
//
// Thread safety: plain values; const use from any thread.
// Both published styles are read: the old one (sliding_window_pattern, rope_theta,
// rope_local_base_freq, rope_scaling) and the new one (layer_types, rope_parameters), flat or
// inside text_config. Missing fields take the defaults of Hugging Face's Gemma3TextConfig. An
// unsupported value is refused; the error names the field, the value and the file. So every model
// that loads is computed correctly.
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
  double logit_softcap = 0.0;  // 0: no softcap
};

// The parts of generation_config.json about KV caches and sampling.
struct GenerationDefaults {
  std::string cache_implementation;  // empty: not specified
  // Options of a quantized cache from cache_config, by our names (kv_quantization.h); empty: none.
  std::string kv_quantization;
  double temperature = 1, top_p = 1;
  int top_k = 0;  // 0: all tokens
};

struct ModelConfig {
  int hidden_size = 2304;
  int intermediate_size = 9216;
  int num_layers = 26;
  int vocab_size = 262208;
  int max_position_embeddings = 131072;
  std::vector<LayerGroup> layer_types;  // one for each layer
  AttentionConfig attention;
  RopeConfigs rope;  // for global and local layers
  double rms_norm_eps = 1e-6;
  double final_logit_softcap = 0.0;  // 0: no softcap
  std::string activation = "gelu_pytorch_tanh";
  bool tie_word_embeddings = true;
  // True for Gemma3ForConditionalGeneration, whose text part is in text_config.
  bool nested = false;
  int32_t bos_token_id = 2;
  int32_t pad_token_id = 0;
  std::vector<int32_t> eos_token_ids;  // sorted and unique
  GenerationDefaults generation;
  // One sentence for each field that asks transformers for something this worker does not do.
  std::vector<std::string> notes;

  bool is_local(int layer) const { return layer_types[layer] == LayerGroup::kLocal; }
};

// Loads a folder's config.json and, if it exists, generation_config.json; or a GGUF file's header,
// with the architecture's defaults.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model);

// Parses the text of a config.json, and of a generation_config.json if there is one. The files'
// names are for messages.
absl::StatusOr<ModelConfig> ParseModelConfig(
    absl::string_view json, const std::string& file,
    std::optional<absl::string_view> generation_json = std::nullopt,
    const std::string& generation_file = {});

// Returns OK if the vocabulary has all token ids, else kInvalidArgument.
absl::Status CheckTokenIds(absl::Span<const int32_t> tokens, const ModelConfig& config);

// Returns fixed tokens spread over the vocabulary, for self-tests.
inline int32_t SpreadToken(int position, int vocab_size) {
  constexpr int64_t kStride = 7919;  // a prime, so no small vocabulary repeats early
  return static_cast<int32_t>((3 + position * kStride) % vocab_size);
}

// Returns the layout of a model's stored KV. A pure function of the configuration.

KvLayout LayoutOf(const ModelConfig& config, KvDtype dtype, uint32_t chunk_tokens,
                  Exactness exactness);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_MODEL_CONFIG_H_
