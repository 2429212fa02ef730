// Attend: softmax attention of rows over the keys and values of their sequences, in blocks.
//
// The written order, for one row and head. Split s holds the keys at positions [s * C, (s + 1) *
// C). The row sees the keys [position - window + 1, position]. For each split with a key that the
// row sees:
//   score[j] = dot(query, key j), sixteen partial sums and a tree (row_kernels.h), then the softcap
//   m = the largest score seen; p[j] = exp(score[j] - m)
//   l = sum of p[j]: sixteen partial sums by j % 16 and a tree
//   o[d] = chain of fma(p[j], value[j][d], o[d]) from +0, over the keys seen, j ascending
// Splits are combined in ascending order, from M = -infinity, L = 0, O = 0:
//   M' = max(M, m), a = exp(M - M'), b = exp(m - M')
//   L = fma(L, a, l * b), O[d] = fma(O[d], a, o[d] * b)
// The result is O[d] * (1 / L). A split without a seen key is skipped, and its block may be null.
// Unseen keys of a block may be read, but their bits never change the result. So a row's result is
// the same alone and in a batch, in a prefill and in decoding.
//
// If a sequence has sealed splits, a row reads every split before its own in the sealed form: as
// stored, or, if quantized, as the dequantized values. The row reads its own split unsealed. So the
// position alone decides which form of a split a row reads.
//
// Thread safety: reentrant; a workspace serves one call at a time.
#ifndef HEARTH_WORKER_KERNELS_ATTEND_H_
#define HEARTH_WORKER_KERNELS_ATTEND_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "proto/kv_quantization.h"
#include "worker/kernels/base/element.h"
#include "worker/kernels/base/kernel_memory.h"
#include "worker/kernels/base/phases.h"
#include "worker/kernels/base/rows.h"

namespace hearth {

struct AttendShape {
  static constexpr int64_t kHeadDimMax = 512, kSplitMax = 1024, kSharersMax = 16;

  // REQUIRES: kv_heads divides heads; at most kSharersMax heads share a KV head; head_dim is a
  // multiple of 16 up to kHeadDimMax, and split a multiple of 16 up to kSplitMax.
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t split = 128;  // C: keys of a block
  int64_t window = 0;   // keys that a row sees, including its own; 0: all before it
  float softcap = 0;    // cap of the scores; 0: none
  ElementType kv_type = ElementType::kFloat32;  // kFloat32 or kBFloat16

  int64_t sharers() const { return heads / kv_heads; }  // query heads that share one KV head
};

// Consecutive rows of one sequence: row i is at position begin + i. blocks[s] holds the keys and
// values of split s: [K,V][kv_head][split][head_dim]. Not owned.
struct AttendSequence {
  const std::byte* const* blocks = nullptr;
  int64_t begin = 0, rows = 0;
  // sealed[s]: split s in sealed form, for every split before a row's own; `blocks` then needs only
  // the rows' own splits. Null: nothing is sealed. If `quantization` is on, a sealed split has the
  // planes [K,V][kv_head] of proto/kv_quantization.h.
  const std::byte* const* sealed = nullptr;
  KvQuantization quantization = {};
};

// Adds attention to `phases`. `queries` and `out`: [rows of all sequences, in order] [heads *
// head_dim]; the queries are already scaled. REQUIRES: `out` overlaps no other memory.
void AddAttend(const AttendShape& shape, absl::Span<const AttendSequence> sequences,
               const ConstRows& queries, const Rows& out, Workspace* workspace,
               KernelPhases* phases);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_ATTEND_H_
