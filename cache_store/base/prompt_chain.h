// PromptChain: the hash keys of a prompt's segments. Each key is a hash of the previous segment's
// key and of this segment's tokens. Computed without a lock. A chain points into the caller's list
// of prefill cuts, which must outlive the chain.
#ifndef HEARTH_CACHE_STORE_BASE_PROMPT_CHAIN_H_
#define HEARTH_CACHE_STORE_BASE_PROMPT_CHAIN_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "proto/fingerprint.h"
#include "proto/kv_layout.h"
#include "proto/restore_rule.h"

namespace hearth {

// A segment of a prompt (a range of its tokens) and the segment's hash key.
struct KeyedSegment {
  Segment segment;
  Digest key{};
  // Token positions inside the segment at which prefill was split (cuts). Points into the caller's
  // list, which must outlive this struct. Not copied: if every token were a cut, the copies would
  // be as large as half of the prompt.
  absl::Span<const uint32_t> cuts;

  std::vector<uint32_t> CutOffsets() const;
  bool HasCutOffsets(absl::Span<const uint32_t> offsets) const;
};

// The keys of a prompt: of all whole chunks, and of the partial chunks (remainders) that end at
// requested positions.
struct PromptChain {
  Digest root{};
  std::vector<KeyedSegment> chunks;      // chunks[i] begins at token i * chunk_tokens
  std::vector<KeyedSegment> remainders;  // in ascending order of their end positions
  uint32_t max_boundary = 0;             // the keys cover the prompt up to this token position
  bool is_whole = true;                  // false: `stopped` ended the computation early
  // Returns the segment that ends at token position `boundary`; null if the chain has no such
  // segment.
  const KeyedSegment* EndingAt(uint32_t boundary, uint32_t chunk_tokens) const;
};

// Computes the keys of the chunks up to `max_boundary`, and of a partial chunk for each position in
// `ends` that is at most max_boundary and not a multiple of chunk_tokens. Calls `stopped` (if set)
// about once a millisecond, and stops if it returns true. REQUIRES: max_boundary <=
// token_ids.size(); `ends` is ascending; `cuts` outlives the chain.
PromptChain MakeChain(const KvLayout& layout, const Digest& root,
                      absl::Span<const uint32_t> token_ids, absl::Span<const uint32_t> cuts,
                      uint32_t max_boundary, absl::Span<const uint32_t> ends,
                      const std::function<bool()>& stopped = nullptr);

using ChainPtr = std::shared_ptr<const PromptChain>;
// Returns a chain from `made` (chains of the same prompt) if it has all requested segments;
// otherwise calls MakeChain.
ChainPtr ChainOf(absl::Span<const ChainPtr> made, const KvLayout& layout, const Digest& root,
                 absl::Span<const uint32_t> token_ids, absl::Span<const uint32_t> cuts,
                 uint32_t max_boundary, absl::Span<const uint32_t> ends,
                 const std::function<bool()>& stopped = nullptr);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_PROMPT_CHAIN_H_
