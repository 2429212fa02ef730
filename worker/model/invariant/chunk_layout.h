// Where the rows of a chunk lie in its block, and how many bytes they are.
//
// Thread safety: pure functions.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_CHUNK_LAYOUT_H_
#define HEARTH_WORKER_MODEL_INVARIANT_CHUNK_LAYOUT_H_

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "proto/kv_layout.h"

namespace hearth {

// Columns [begin, begin + count) of a slice of `from_tokens` columns to those from `to_begin` on of
// one of `to_tokens`: a run of rows for each half and KV head.
inline void CopyColumns(const KvLayout& layout, const std::byte* from, int from_tokens, int begin,
                        int count, std::byte* to, int to_tokens, int to_begin) {
  const size_t row_bytes = layout.head_dim * KvDtypeBytes(layout.dtype);
  for (size_t run = 0; run < size_t{2} * layout.kv_heads; ++run) {
    std::memcpy(
        to + (run * static_cast<size_t>(to_tokens) + static_cast<size_t>(to_begin)) * row_bytes,
        from + (run * static_cast<size_t>(from_tokens) + static_cast<size_t>(begin)) * row_bytes,
        static_cast<size_t>(count) * row_bytes);
  }
}

inline size_t CountOf(const KvLayout& layout, LayerGroup group, int end) {
  const auto& layers = layout.layers;
  return static_cast<size_t>(std::count(layers.begin(), layers.begin() + end, group));
}

// A layer's place among those of its group.
inline size_t LayersBefore(const KvLayout& layout, int layer) {
  return CountOf(layout, layout.layers[static_cast<size_t>(layer)], layer);
}

inline size_t LayersIn(const KvLayout& layout, LayerGroup group) {
  return CountOf(layout, group, static_cast<int>(layout.layers.size()));
}

// Of a chunk's rows as they are.
inline size_t PlainBytes(const KvLayout& layout, LayerGroup group) {
  return LayersIn(layout, group) * layout.PlainSliceBytes(layout.chunk_tokens);
}

// Those that rows up to `length` begin.
inline size_t SplitsTo(const KvLayout& layout, int length) {
  return (static_cast<size_t>(length) + layout.chunk_tokens - 1) / layout.chunk_tokens;
}

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_CHUNK_LAYOUT_H_
