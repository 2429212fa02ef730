// The config.json of checkpoints that tests write.
//
// Thread safety: pure functions.
#ifndef HEARTH_TESTS_SUPPORT_GEMMA_CONFIG_H_
#define HEARTH_TESTS_SUPPORT_GEMMA_CONFIG_H_

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/support/tiny_checkpoint.h"

namespace hearth {

// Returns the config.json of a Gemma 3 model with this geometry. A softcap of 0 means no softcap.
inline std::string GemmaConfig(const TinyGeometry& g, const char* dtype, double attention_softcap,
                               double logit_softcap) {
  const auto softcap = [](double cap) { return cap > 0 ? absl::StrCat(cap) : "null"; };
  std::vector<std::string> types;
  for (char type : g.layer_types) {
    types.push_back(type == 'g' ? "\"full_attention\"" : "\"sliding_attention\"");
  }
  return absl::StrCat(
      "{\"model_type\": \"gemma3_text\", \"architectures\": [\"Gemma3ForCausalLM\"],\n",
      "\"hidden_activation\": \"gelu_pytorch_tanh\", \"rms_norm_eps\": 1e-06,\n",
      "\"rope_theta\": 1000000.0, \"rope_local_base_freq\": 10000.0, \"rope_scaling\": null,\n",
      "\"attn_logit_softcapping\": ", softcap(attention_softcap),
      ", \"final_logit_softcapping\": ", softcap(logit_softcap), ",\n",
      "\"bos_token_id\": 2, \"eos_token_id\": 1, \"pad_token_id\": 0,\n",
      "\"tie_word_embeddings\": true, \"torch_dtype\": \"", dtype, "\",\n",
      "\"attention_bias\": false,\n", "\"query_pre_attn_scalar\": ", g.head_dim,
      ", \"head_dim\": ", g.head_dim, ",\n\"hidden_size\": ", g.hidden_size,
      ", \"intermediate_size\": ", g.intermediate_size,
      ",\n\"num_hidden_layers\": ", g.layer_types.size(), ", \"num_attention_heads\": ", g.heads,
      ", \"num_key_value_heads\": ", g.kv_heads, ",\n\"vocab_size\": ", g.vocab_size,
      ", \"max_position_embeddings\": ", g.context_tokens, ", \"sliding_window\": ", g.window,
      ",\n\"layer_types\": [", absl::StrJoin(types, ", "), "]}\n");
}

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_GEMMA_CONFIG_H_
