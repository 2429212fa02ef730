// KvCacheRep: the tensors of a KvCache. Private to hearth_model: it includes ATen.
//
// Thread safety and ownership: as KvCache.
// A layer keeps its rows in one block [kv_head][row][head_dim]; row 0 is position `first`. Before a
// step of several tokens, a local layer moves the W-1 rows that it still needs to row 0. So the
// shapes, strides and 64-byte alignment of a step follow from its positions alone.
#ifndef HEARTH_WORKER_MODEL_TORCH_KV_CACHE_REP_H_
#define HEARTH_WORKER_MODEL_TORCH_KV_CACHE_REP_H_

#include <ATen/ATen.h>

#include <vector>

#include "worker/model/model_config.h"

namespace hearth {

// The most tokens of one step: the largest chunk.
inline constexpr int kMaxStepTokens = 1024;

struct LayerKv {
  bool local = false;
  at::Tensor keys, values;  // [kv_heads, rows, head_dim]
  int first = 0;            // position of row 0
};

// Returns the rows of a layer's block in a cache for `capacity` tokens.
int KvCacheRows(const ModelConfig& config, int layer, int capacity);

struct KvCacheRep {
  KvCacheRep(const ModelConfig& config, int capacity, at::Device device, at::ScalarType dtype);

  // Returns rows [begin, end) of a layer's keys or values: a view [kv_heads, end - begin,
  // head_dim].
  at::Tensor Rows(const at::Tensor& block, const LayerKv& layer, int begin, int end) const {
    return block.narrow(1, begin - layer.first, end - begin);
  }
  // Makes room for `tokens` more rows of `layer` after `length`.
  void MakeRoom(LayerKv* layer, int tokens);

  std::vector<LayerKv> layers;
  int length = 0;
  int restoring = -1;              // the length being restored, or -1
  bool copying_on_device = false;  // the device may still be copying for the restore
  int capacity = 0;
  int window = 0;
  int kv_heads = 0, head_dim = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_TORCH_KV_CACHE_REP_H_
