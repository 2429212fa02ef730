// PromptChain: the keys of a prompt's segments, each a hash of the previous key and its own tokens.
//
// Plain values, computed without a lock. Ownership: a chain borrows the caller's list of cuts.
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

// A segment of one prompt with its key.
struct KeyedSegment {
  Segment segment;
  Digest key{};
  // Positions of the cuts inside the segment. Points into the caller's list, which must outlive
  // this struct: with a cut at every token, copies would take half a chunk of offsets for each
  // segment.
  absl::Span<const uint32_t> cuts;

  std::vector<uint32_t> CutOffsets() const;
  bool HasCutOffsets(absl::Span<const uint32_t> offsets) const;
};

// The keys of a prompt: its whole chunks, and the remainders that end at requested positions.
struct PromptChain {
  Digest root{};
  std::vector<KeyedSegment> chunks;      // chunks[i] begins at i * C
  std::vector<KeyedSegment> remainders;  // ascending by end
  uint32_t max_boundary = 0;             // the chain has keys up to this position
  bool is_whole = true;                  // false: `stopped` ended the computation
  // Returns the segment that ends at `boundary`, or null if the chain was made without it.
  const KeyedSegment* EndingAt(uint32_t boundary, uint32_t chunk_tokens) const;
};

// Computes the chunks up to `max_boundary`, and a remainder for each of `ends` that is at most
// max_boundary and no multiple of C (chunk_tokens). Calls `stopped`, if set, about once a
// millisecond; true ends the computation. REQUIRES: max_boundary <= token_ids.size(); `ends`
// ascending; `cuts` outlives the chain.
PromptChain MakeChain(const KvLayout& layout, const Digest& root,
                      absl::Span<const uint32_t> token_ids, absl::Span<const uint32_t> cuts,
                      uint32_t max_boundary, absl::Span<const uint32_t> ends,
                      const std::function<bool()>& stopped = nullptr);

using ChainPtr = std::shared_ptr<const PromptChain>;
// Like MakeChain, but returns a chain of `made` (chains of the same prompt) if one has all
// requested segments.
ChainPtr ChainOf(absl::Span<const ChainPtr> made, const KvLayout& layout, const Digest& root,
                 absl::Span<const uint32_t> token_ids, absl::Span<const uint32_t> cuts,
                 uint32_t max_boundary, absl::Span<const uint32_t> ends,
                 const std::function<bool()>& stopped = nullptr);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_PROMPT_CHAIN_H_
