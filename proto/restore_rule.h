// The restore rule: which objects a boundary needs, and at which boundaries a prompt can be cut,
// restored and kept. Saving, lookup, loading and eviction all call these functions, and no other
// code decides this.
//
// Pure functions, thread safe. Positions are token counts: boundary B means "the first B tokens".
#ifndef HEARTH_PROTO_RESTORE_RULE_H_
#define HEARTH_PROTO_RESTORE_RULE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/kv_layout.h"

namespace hearth {

// A segment of a prompt: a whole chunk, or the remainder that ends at a boundary.
struct Segment {
  uint32_t begin = 0;
  uint32_t tokens = 0;
  uint32_t end() const { return begin + tokens; }
};

// One cut per shortest chunk of the longest prompt. Each cut costs a key over up to C tokens;
// workers send a few thousand at most.
inline constexpr size_t kMaxCuts = kMaxPromptTokens / kMinChunkTokens;

// Checks a caller's cuts: at most kMaxCuts, strictly increasing, each in (0, tokens].
absl::Status ValidateCuts(absl::Span<const uint32_t> cuts, uint32_t tokens);

// Returns the segments of [0, boundary): whole chunks, then a remainder if boundary % C != 0.
std::vector<Segment> SegmentsTo(uint32_t boundary, uint32_t chunk_tokens);

// Returns every object that must be readable to continue from `boundary`: the global object of each
// segment of [0, boundary), and the local object of each segment that overlaps [boundary - (W-1),
// boundary). A group without layers needs no objects. Sorted by begin, global before local.
std::vector<ObjectId> NeededObjects(const KvLayout& layout, uint32_t boundary);

// Returns the bytes of these objects, without listing them.
uint64_t NeededBytes(const KvLayout& layout, uint32_t boundary);

// Returns the first token whose local KV `boundary` needs: max(0, boundary - (W-1)).
uint32_t LocalTailBegin(const KvLayout& layout, uint32_t boundary);

// Returns the ends of the canonical prefill steps of a prompt: every multiple of C below `tokens`,
// every cut, and `tokens` itself. Ascending, unique.
std::vector<uint32_t> StepEnds(uint32_t tokens, absl::Span<const uint32_t> cuts,
                               uint32_t chunk_tokens);

// Returns the boundaries at which a request of class exact may restore: step ends of its prompt
// that are multiples of C or cuts, at most `max_boundary`. Ascending.
std::vector<uint32_t> RestoreCandidates(uint32_t max_boundary, absl::Span<const uint32_t> cuts,
                                        uint32_t chunk_tokens);

// Returns the cuts strictly inside a segment, as positions. Empty if keys do not include cuts.
absl::Span<const uint32_t> CutsBetween(const Segment& segment, absl::Span<const uint32_t> cuts,
                                       Exactness exactness);

// The same cuts as offsets from the segment's first token.
std::vector<uint32_t> CutsInside(const Segment& segment, absl::Span<const uint32_t> cuts,
                                 Exactness exactness);

// Returns the boundaries worth keeping, fixed before prefill starts: the breakpoints; the prompt's
// end if it is a cut or a multiple of C; the largest multiple of C below the end; and, if the store
// knew more tokens than could be restored (a second continuation), the largest multiple of C not
// above `matched_tokens`. Each is a step end in (restored_tokens, tokens]. Ascending, unique.
std::vector<uint32_t> KeptBoundaries(uint32_t tokens, absl::Span<const uint32_t> cuts,
                                     uint32_t matched_tokens, uint32_t restored_tokens,
                                     uint32_t chunk_tokens);

}  // namespace hearth

#endif  // HEARTH_PROTO_RESTORE_RULE_H_
