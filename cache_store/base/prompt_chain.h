// PromptChain: the keys of a prompt's segments, each a hash of the previous key and its own tokens.
//
// Plain values, made without any lock. Ownership: a chain borrows the caller's list of cuts.
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

// A segment of one prompt with its place in the chain. Computed without the index's lock.
struct KeyedSegment {
  Segment segment;
  Digest key{};
  // The cuts inside it, as positions: a part of the caller's list, which must outlive this. Copies
  // would take half a chunk of offsets for each segment of a prompt with a cut at every token.
  absl::Span<const uint32_t> cuts;

  std::vector<uint32_t> CutOffsets() const;
  bool HasCutOffsets(absl::Span<const uint32_t> offsets) const;
};

// The chain of a prompt: its whole chunks, and the remainders that end at given positions.
struct PromptChain {
  Digest root{};
  std::vector<KeyedSegment> chunks;      // chunks[i] begins at i * C
  std::vector<KeyedSegment> remainders;  // ascending by end
  uint32_t max_boundary = 0;             // it was made up to there
  bool is_whole = true;                  // false: the making was stopped
  // The chain's segment that ends at `boundary`; null when it was not asked for.
  const KeyedSegment* EndingAt(uint32_t boundary, uint32_t chunk_tokens) const;
};

// Chunks up to `max_boundary`, and one remainder for each of `ends` that is no multiple of C and at
// most max_boundary. `stopped`, if set, is asked every millisecond or so. REQUIRES: max_boundary <=
// token_ids.size(), `ends` ascending, `cuts` outlives the chain.
PromptChain MakeChain(const KvLayout& layout, const Digest& root,
                      absl::Span<const uint32_t> token_ids, absl::Span<const uint32_t> cuts,
                      uint32_t max_boundary, absl::Span<const uint32_t> ends,
                      const std::function<bool()>& stopped = nullptr);

using ChainPtr = std::shared_ptr<const PromptChain>;
// The same, but that of `made`, chains of the same prompt, one that has all of it will do.
ChainPtr ChainOf(absl::Span<const ChainPtr> made, const KvLayout& layout, const Digest& root,
                 absl::Span<const uint32_t> token_ids, absl::Span<const uint32_t> cuts,
                 uint32_t max_boundary, absl::Span<const uint32_t> ends,
                 const std::function<bool()>& stopped = nullptr);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_PROMPT_CHAIN_H_
