// Softmax attention of query rows over the keys and values of their sequences, stored in KV blocks.
//
// The order of operations for one row and head. A split is the tokens of one KV block: split s
// holds the keys at positions [s * C, (s + 1) * C). The row attends to the keys [position - window
// + 1, position]. For each split with at least one of these keys:
//   score[j] = softcap(dot(query, key j)); dot has sixteen partial sums (row_kernels.h)
//   m = the largest of these scores; p[j] = exp(score[j] - m)
//   l = sum of p[j]: sixteen partial sums by j % 16, added in a tree
//   o[d] = +0, then o[d] = fma(p[j], value[j][d], o[d]) for these keys j in ascending order
// Splits are combined in ascending order, from M = -infinity, L = 0, O = 0:
//   M' = max(M, m), a = exp(M - M'), b = exp(m - M')
//   L = fma(L, a, l * b), O[d] = fma(O[d], a, o[d] * b)
// The result is O[d] * (1 / L). A split with no key of the row is skipped, and its block may be
// null. Other keys of a block may be read, but their bits never change the result. So a row's
// result is the same alone and in a batch, in a prefill and in decoding.
//
// A sequence may have sealed blocks: complete KV blocks in the form in which they are stored,
// possibly quantized. Then a row reads every block before its own in the sealed form (dequantized
// if quantized), and its own block unsealed. So the row's position alone determines which form of a
// block it reads.
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
  int64_t split = 128;  // C: tokens of a KV block
  // number of keys that a row attends to, including its own; 0: all earlier keys
  int64_t window = 0;
  float softcap = 0;                            // softcap of the scores; 0: no softcap
  ElementType kv_type = ElementType::kFloat32;  // kFloat32 or kBFloat16
  // Whether products are chains of FusedDot on values rounded to bfloat16 (fused_attend.h).
  bool fuses = false;

  int64_t sharers() const { return heads / kv_heads; }  // query heads that share one KV head
};

// Consecutive rows (tokens) of one sequence: row i is at position begin + i. blocks[s]: KV block of
// split s, [K,V][kv_head][split][head_dim]. The memory is not owned.
struct AttendSequence {
  const std::byte* const* blocks = nullptr;
  int64_t begin = 0, rows = 0;
  // sealed[s]: split s in sealed form, for every split before a row's own split; `blocks` then
  // needs only the rows' own splits. Null: the sequence has no sealed blocks. If `quantization` is
  // on, a sealed block consists of the planes [K,V][kv_head] of proto/kv_quantization.h.
  const std::byte* const* sealed = nullptr;
  KvQuantization quantization = {};
};

// Adds the loops of the attention to `phases`. `queries` and `out`: [rows of all sequences, in
// order][heads * head_dim]. The queries are already scaled. REQUIRES: `out` overlaps no other
// memory.
void AddAttend(const AttendShape& shape, absl::Span<const AttendSequence> sequences,
               const ConstRows& queries, const Rows& out, Workspace* workspace,
               KernelPhases* phases);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_ATTEND_H_
