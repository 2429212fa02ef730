// ModelConfig: the dimensions and constants of a Gemma 3 text model, read from config.json or from
// a GGUF header.
//
// Thread safety: values; const use from any thread.
// config.json may have the old style (sliding_window_pattern, rope_theta, rope_local_base_freq,
// rope_scaling) or the new style (layer_types, rope_parameters), at the top level or inside
// text_config. Missing fields get the defaults of Hugging Face's Gemma3TextConfig. An unsupported
// value is an error that names the field, the value and the file, so that no model loads and
// computes wrong results.
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
  // Window W, including the current token: position p of a local layer attends to keys (p - W, p].
  int sliding_window = 4096;
  double query_pre_attn_scalar = 256.0;
  double logit_softcap = 0.0;  // 0: no softcap
};

// The fields of generation_config.json for KV caches and sampling.
struct GenerationDefaults {
  std::string cache_implementation;  // empty: not specified
  // Options of a quantized KV cache (cache_config), with the names of kv_quantization.h; empty:
  // none.
  std::string kv_quantization;
  double temperature = 1, top_p = 1;
  int top_k = 0;  // 0: top-k sampling is off
};

struct ModelConfig {
  int hidden_size = 2304;
  int intermediate_size = 9216;
  int num_layers = 26;
  int vocab_size = 262208;
  int max_position_embeddings = 131072;
  std::vector<LayerGroup> layer_types;  // one for each layer
  AttentionConfig attention;
  RopeConfigs rope;  // RoPE parameters of the global and the local layers
  double rms_norm_eps = 1e-6;
  double final_logit_softcap = 0.0;  // 0: no softcap
  std::string activation = "gelu_pytorch_tanh";
  bool tie_word_embeddings = true;
  // True for the class Gemma3ForConditionalGeneration, whose text model is in text_config.
  bool nested = false;
  int32_t bos_token_id = 2;
  int32_t pad_token_id = 0;
  std::vector<int32_t> eos_token_ids;  // sorted and unique
  GenerationDefaults generation;
  // One sentence for each field whose effect in transformers this worker does not implement.
  std::vector<std::string> notes;

  bool is_local(int layer) const { return layer_types[layer] == LayerGroup::kLocal; }
};

// Loads the config.json of a folder and, if it exists, its generation_config.json; or, if `model`
// is a GGUF file, its header with the architecture's defaults.
absl::StatusOr<ModelConfig> LoadModelConfig(const std::string& model);

// Parses the text of a config.json and, if given, of a generation_config.json. `file` and
// `generation_file` are the file names for error messages.
absl::StatusOr<ModelConfig> ParseModelConfig(
    absl::string_view json, const std::string& file,
    std::optional<absl::string_view> generation_json = std::nullopt,
    const std::string& generation_file = {});

// Returns OK if every token id is in the vocabulary, else kInvalidArgument.
absl::Status CheckTokenIds(absl::Span<const int32_t> tokens, const ModelConfig& config);

// Returns the token at a position of a fixed sequence that is spread over the vocabulary; for
// self-tests.
inline int32_t SpreadToken(int position, int vocab_size) {
  // a prime, so that tokens repeat late even with a small vocabulary
  constexpr int64_t kStride = 7919;
  return static_cast<int32_t>((3 + position * kStride) % vocab_size);
}

// Returns the layout of a model's stored keys and values; it depends only on the arguments.
KvLayout LayoutOf(const ModelConfig& config, KvDtype dtype, uint32_t chunk_tokens,
                  Exactness exactness);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_MODEL_CONFIG_H_
