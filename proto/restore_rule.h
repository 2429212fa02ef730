// The restore rule: which objects a boundary needs, and at which boundaries a prompt can be cut,
// restored and stored. Publishing, lookup, loading and eviction call these functions instead of
// deciding themselves.
//
// Pure functions, thread safe. Positions are token counts: boundary B means "after the first B
// tokens".
#ifndef HEARTH_PROTO_RESTORE_RULE_H_
#define HEARTH_PROTO_RESTORE_RULE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "proto/kv_layout.h"

namespace hearth {

// A segment of a prompt: a whole chunk, or the shorter remainder that ends at a boundary.
struct Segment {
  uint32_t begin = 0;
  uint32_t tokens = 0;
  uint32_t end() const { return begin + tokens; }
};

// Limit of cuts per prompt: one for each chunk of the smallest size in the longest prompt. The
// store computes a key over up to chunk_tokens tokens for each cut. Workers send at most a few
// thousand cuts.
inline constexpr size_t kMaxCuts = kMaxPromptTokens / kMinChunkTokens;

// Validates the cuts of a request: at most kMaxCuts, strictly increasing, each in (0, tokens].
absl::Status ValidateCuts(absl::Span<const uint32_t> cuts, uint32_t tokens);

// Returns the segments of [0, boundary): whole chunks, then a remainder if boundary is not a
// multiple of chunk_tokens.
std::vector<Segment> SegmentsTo(uint32_t boundary, uint32_t chunk_tokens);

// Returns every object that must be readable to continue from `boundary`: the global object of each
// segment of [0, boundary), and the local object of each segment that overlaps the last window - 1
// tokens, [boundary - (W-1), boundary). A group without layers needs no objects. Sorted by first
// token, global before local.
std::vector<ObjectId> NeededObjects(const KvLayout& layout, uint32_t boundary);

// Returns the total bytes of NeededObjects(layout, boundary), without listing the objects.
uint64_t NeededBytes(const KvLayout& layout, uint32_t boundary);

// Returns the first token whose KV in local layers is needed to continue from `boundary`: max(0,
// boundary - (W-1)).
uint32_t LocalTailBegin(const KvLayout& layout, uint32_t boundary);

// Returns where the canonical prefill steps of a prompt end: at every multiple of chunk_tokens
// below `tokens`, at every cut, and at `tokens`. Ascending, unique.
std::vector<uint32_t> StepEnds(uint32_t tokens, absl::Span<const uint32_t> cuts,
                               uint32_t chunk_tokens);

// Returns the boundaries at which a request of class exact may restore: the ends of its prefill
// steps that are multiples of chunk_tokens or cuts, and at most `max_boundary`. Ascending.
std::vector<uint32_t> RestoreCandidates(uint32_t max_boundary, absl::Span<const uint32_t> cuts,
                                        uint32_t chunk_tokens);

// Returns the cuts strictly inside a segment, as positions in the prompt. Returns an empty list if
// keys do not include cuts.
absl::Span<const uint32_t> CutsBetween(const Segment& segment, absl::Span<const uint32_t> cuts,
                                       Exactness exactness);

// Returns the cuts of CutsBetween as offsets from the segment's first token.
std::vector<uint32_t> CutsInside(const Segment& segment, absl::Span<const uint32_t> cuts,
                                 Exactness exactness);

// Returns the boundaries of a prompt that are worth storing, decided before prefill starts: the
// breakpoints; the end of the prompt, if it is a cut or a multiple of chunk_tokens; the largest
// multiple of chunk_tokens below the end; and, if the store matched more tokens than could be
// restored, the largest multiple of chunk_tokens that is at most `matched_tokens`. All are step
// ends in (restored_tokens, tokens]. Ascending, unique.
std::vector<uint32_t> KeptBoundaries(uint32_t tokens, absl::Span<const uint32_t> cuts,
                                     uint32_t matched_tokens, uint32_t restored_tokens,
                                     uint32_t chunk_tokens);

}  // namespace hearth

#endif  // HEARTH_PROTO_RESTORE_RULE_H_
