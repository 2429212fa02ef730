// The restore rule: which objects a boundary needs, and at which boundaries a prompt can be cut,
// restored and kept. Saving, looking up, loading and evicting all call these functions and no
// others.
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

// One for each of the shortest chunks in the longest prompt. Each costs a key over up to C tokens;
// a worker sends a few thousand at most.
inline constexpr size_t kMaxCuts = kMaxPromptTokens / kMinChunkTokens;

// Checks a caller's cuts: at most kMaxCuts, strictly increasing, each in (0, tokens].
absl::Status ValidateCuts(absl::Span<const uint32_t> cuts, uint32_t tokens);

// The segments of [0, boundary): whole chunks, then a remainder when boundary % C != 0.
std::vector<Segment> SegmentsTo(uint32_t boundary, uint32_t chunk_tokens);

// Every object that must be readable to go on from `boundary`: the global object of each segment of
// [0, boundary), and the local object of each segment that overlaps [boundary - (W-1), boundary).
// A group without layers needs nothing. Ascending by begin, global before local.
std::vector<ObjectId> NeededObjects(const KvLayout& layout, uint32_t boundary);

// What these objects take together, without listing them.
uint64_t NeededBytes(const KvLayout& layout, uint32_t boundary);

// First token whose local KV `boundary` needs: max(0, boundary - (W-1)).
uint32_t LocalTailBegin(const KvLayout& layout, uint32_t boundary);

// Ends of the canonical prefill steps of a prompt: every multiple of C below `tokens`, every cut,
// and `tokens` itself. Ascending, unique.
std::vector<uint32_t> StepEnds(uint32_t tokens, absl::Span<const uint32_t> cuts,
                               uint32_t chunk_tokens);

// Boundaries at which an exact request may restore: its own step ends that are multiples of C or
// cuts, at most `max_boundary`. Ascending.
std::vector<uint32_t> RestoreCandidates(uint32_t max_boundary, absl::Span<const uint32_t> cuts,
                                        uint32_t chunk_tokens);

// The cuts strictly between a segment's ends, as positions. Empty where keys do not include cuts.
absl::Span<const uint32_t> CutsBetween(const Segment& segment, absl::Span<const uint32_t> cuts,
                                       Exactness exactness);

// The same as offsets from the segment's first token.
std::vector<uint32_t> CutsInside(const Segment& segment, absl::Span<const uint32_t> cuts,
                                 Exactness exactness);

// Boundaries worth keeping, fixed before prefill starts: the declared breakpoints, the prompt's end
// where it is a cut or a multiple of C, the multiple of C strictly below the end, and, where the
// store knew more tokens than could be restored (a second continuation), the multiple of C at or
// below `matched_tokens`. Each is a step end in (restored_tokens, tokens]. Ascending, unique.
std::vector<uint32_t> KeptBoundaries(uint32_t tokens, absl::Span<const uint32_t> cuts,
                                     uint32_t matched_tokens, uint32_t restored_tokens,
                                     uint32_t chunk_tokens);

}  // namespace hearth

#endif  // HEARTH_PROTO_RESTORE_RULE_H_
