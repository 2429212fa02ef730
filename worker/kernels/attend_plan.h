// Divides an attention into tiles, and computes which keys of a split a row attends to. A tile has
// a few tokens of one sequence, with the query heads that share one KV head. Private to
// worker/kernels.
//
// Thread safety: values.
#ifndef HEARTH_WORKER_KERNELS_ATTEND_PLAN_H_
#define HEARTH_WORKER_KERNELS_ATTEND_PLAN_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "worker/kernels/attend.h"

namespace hearth {

// Range [begin, end) of the keys that a row attends to, relative to the first key of the split.
struct SeenKeys {
  int64_t begin = 0, end = 0;
  bool none() const { return begin >= end; }
};

inline SeenKeys KeysSeen(const AttendShape& shape, int64_t position, int64_t split) {
  const int64_t first = shape.window > 0 ? std::max<int64_t>(0, position - shape.window + 1) : 0;
  const int64_t base = split * shape.split;
  return {std::max<int64_t>(0, first - base), std::min(shape.split, position + 1 - base)};
}

inline int64_t FirstSplit(const AttendShape& shape, int64_t position) {
  return shape.window > 0 ? std::max<int64_t>(0, position - shape.window + 1) / shape.split : 0;
}

// Rows that are computed together. A row is one query head of one token: row i is head i % sharers
// of token i / sharers.
struct AttendTile {
  const AttendSequence* sequence;
  int64_t kv_head;
  int64_t row;       // index in `queries` of the first token
  int64_t position;  // position of the first token in the sequence
  int64_t tokens;
  int64_t first_split, splits;  // the splits that at least one token of the tile attends to

  // Returns whether the tile reads `split` in its sealed form. In a sequence with sealed blocks,
  // all tokens of a tile are in the same split.
  bool IsSealed(const AttendShape& shape, int64_t split) const {
    return sequence->sealed != nullptr && split < position / shape.split;
  }
  bool IsQuantized(const AttendShape& shape, int64_t split) const {
    return IsSealed(shape, split) && sequence->quantization.is_on();
  }
};

// Online-softmax state of a tile's rows, over one split or over several splits.
struct AttendState {
  float* largest;  // [16]: largest score of each row
  float* sums;     // [16]: sum of each row's softmax weights
  float* outputs;  // [16][head_dim]

  static int64_t Floats(int64_t head_dim) { return AttendShape::kSharersMax * (head_dim + 2); }
  explicit AttendState(float* room)
      : largest(room),
        sums(room + AttendShape::kSharersMax),
        outputs(room + 2 * AttendShape::kSharersMax) {}
};

inline std::vector<AttendTile> PlanTiles(const AttendShape& shape,
                                         absl::Span<const AttendSequence> sequences) {
  const int64_t tile_tokens = AttendShape::kSharersMax / shape.sharers();
  std::vector<AttendTile> tiles;
  int64_t row = 0;
  for (const AttendSequence& sequence : sequences) {
    for (int64_t token = 0, tokens = 0; token < sequence.rows; token += tokens) {
      const int64_t position = sequence.begin + token;
      tokens = std::min(tile_tokens, sequence.rows - token);
      if (sequence.sealed != nullptr) {
        tokens = std::min(tokens, shape.split - position % shape.split);
      }
      const int64_t first = FirstSplit(shape, position);
      const int64_t splits = (position + tokens - 1) / shape.split + 1 - first;
      for (int64_t head = 0; head < shape.kv_heads; ++head) {
        tiles.push_back({&sequence, head, row + token, position, tokens, first, splits});
      }
    }
    row += sequence.rows;
  }
  return tiles;
}

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_ATTEND_PLAN_H_
