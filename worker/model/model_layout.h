// The layout of a model's stored KV, from its configuration. A pure function.
#ifndef HEARTH_WORKER_MODEL_MODEL_LAYOUT_H_
#define HEARTH_WORKER_MODEL_MODEL_LAYOUT_H_

#include <cstdint>

#include "proto/kv_layout.h"
#include "worker/model/model_config.h"

namespace hearth {

KvLayout LayoutOf(const ModelConfig& config, KvDtype dtype, uint32_t chunk_tokens,
                  Exactness exactness);

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_MODEL_LAYOUT_H_
