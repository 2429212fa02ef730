// KvCacheRep: the tensors of a KvCache. Private to hearth_model, because it includes ATen.
//
// Thread safety and ownership: like KvCache.
// Each layer stores its rows in one block [kv_head][row][head_dim]; row 0 is position `first`.
// Before a step of several tokens, a local layer moves the W-1 rows that it still needs to row 0.
// So the shapes, strides and 64-byte alignment in a step depend only on its positions.
#ifndef HEARTH_WORKER_MODEL_TORCH_KV_CACHE_REP_H_
#define HEARTH_WORKER_MODEL_TORCH_KV_CACHE_REP_H_

#include <ATen/ATen.h>

#include <vector>

#include "worker/model/model_config.h"

namespace hearth {

// Maximum tokens of one step: the maximum chunk size.
inline constexpr int kMaxStepTokens = 1024;

struct LayerKv {
  bool local = false;
  at::Tensor keys, values;  // [kv_heads, rows, head_dim]
  int first = 0;            // position of row 0
};

// Returns the number of rows of a layer's block in a cache with this capacity.
int KvCacheRows(const ModelConfig& config, int layer, int capacity);

struct KvCacheRep {
  KvCacheRep(const ModelConfig& config, int capacity, at::Device device, at::ScalarType dtype);

  // Returns a view of rows [begin, end) of a layer's keys or values: [kv_heads, end - begin,
  // head_dim].
  at::Tensor Rows(const at::Tensor& block, const LayerKv& layer, int begin, int end) const {
    return block.narrow(1, begin - layer.first, end - begin);
  }
  // Frees rows of `layer`, so that `tokens` rows fit after position `length`.
  void MakeRoom(LayerKv* layer, int tokens);

  std::vector<LayerKv> layers;
  int length = 0;
  int restoring = -1;              // the length that is being restored, or -1
  bool copying_on_device = false;  // whether copies of the restore may still run on the device
  int capacity = 0;
  int window = 0;
  int kv_heads = 0, head_dim = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_TORCH_KV_CACHE_REP_H_
