// Attend: softmax attention of rows over the keys and values of their sequences, in blocks.
//
// The written order, for one row and head. Keys are taken in splits of C at absolute positions:
// split s holds the keys [s * C, (s + 1) * C), and the row sees those of [position - window + 1,
// position]. Of each split that it sees a key of:
//   score[j] = dot(query, key j), sixteen partial sums and a tree (row_kernels.h), then the softcap
//   m = the largest score seen; p[j] = exp(score[j] - m)
//   l = sum of p[j]: sixteen partial sums by j % 16 and a tree
//   o[d] = chain of fma(p[j], value[j][d], o[d]) from +0, over the keys seen, j ascending
// and splits are combined in ascending order, from M = -infinity, L = 0, O = 0:
//   M' = max(M, m), a = exp(M - M'), b = exp(m - M')
//   L = fma(L, a, l * b), O[d] = fma(O[d], a, o[d] * b)
// The result is O[d] * (1 / L). A split that the row sees nothing of is not part of it: no step is
// made for it, and its block may be null. A key that it does not see, in a block that it reads, is
// read at most and has no influence, whatever its bits are. So a row's result is the same alone and
// among others, in a prefill and decoded.
//
// Where a sequence has sealed splits, a row reads each split before its own there: as it is, or
// where they are quantized as the values that its numbers stand for. Its own it reads as it is. So
// which of them it reads follows from its position.
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

  // REQUIRES: kv_heads divides heads, with at most kSharersMax heads for one; head_dim is a
  // multiple of 16 up to kHeadDimMax, split one up to kSplitMax.
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t split = 128;  // C, keys of a block
  int64_t window = 0;   // keys that a row sees, itself among them; 0: all before it
  float softcap = 0;    // of the scores; 0: none
  ElementType kv_type = ElementType::kFloat32;  // or kBFloat16

  int64_t sharers() const { return heads / kv_heads; }  // query heads of one KV head
};

// Rows of one sequence, one after the other: row i is at position begin + i. Block s has the keys
// and values of split s: [K,V][kv_head][split][head_dim]. Not owned.
struct AttendSequence {
  const std::byte* const* blocks = nullptr;
  int64_t begin = 0, rows = 0;
  // Each split before a row's own, so that `blocks` need have none but these; null: none is sealed.
  // Where `quantization` is on, in planes [K,V][kv_head] (proto/kv_quantization.h).
  const std::byte* const* sealed = nullptr;
  KvQuantization quantization = {};
};

// `queries` and `out` have heads * head_dim columns, and the rows of all sequences in order. The
// queries are scaled already. REQUIRES: out overlaps nothing else.
void AddAttend(const AttendShape& shape, absl::Span<const AttendSequence> sequences,
               const ConstRows& queries, const Rows& out, Workspace* workspace,
               KernelPhases* phases);

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_ATTEND_H_
