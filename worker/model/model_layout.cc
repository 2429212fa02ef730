#include "worker/model/model_layout.h"

namespace hearth {

KvLayout LayoutOf(const ModelConfig& config, KvDtype dtype, uint32_t chunk_tokens,
                  Exactness exactness) {
  KvLayout layout;
  layout.chunk_tokens = chunk_tokens;
  layout.window = static_cast<uint32_t>(config.attention.sliding_window);
  layout.kv_heads = static_cast<uint32_t>(config.attention.num_kv_heads);
  layout.head_dim = static_cast<uint32_t>(config.attention.head_dim);
  layout.dtype = dtype;
  layout.exactness = exactness;
  for (int layer = 0; layer < config.num_layers; ++layer) {
    layout.layers.push_back(config.is_local(layer) ? LayerGroup::kLocal : LayerGroup::kGlobal);
  }
  return layout;
}

}  // namespace hearth
