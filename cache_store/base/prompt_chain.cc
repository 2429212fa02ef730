#include "cache_store/base/prompt_chain.h"

#include <algorithm>
#include <cassert>

#include "proto/prefix_key.h"

namespace hearth {
namespace {

// Hashing this many tokens (4 bytes each) with SHA-256 takes about a millisecond.
constexpr uint32_t kTokensBetweenStopChecks = 128 << 10;

}  // namespace

const KeyedSegment* PromptChain::EndingAt(uint32_t boundary, uint32_t chunk_tokens) const {
  if (boundary == 0) return nullptr;
  if (boundary % chunk_tokens == 0) {
    const size_t i = boundary / chunk_tokens - 1;
    return i < chunks.size() ? &chunks[i] : nullptr;
  }
  const auto it =
      std::lower_bound(remainders.begin(), remainders.end(), boundary,
                       [](const KeyedSegment& s, uint32_t end) { return s.segment.end() < end; });
  return it != remainders.end() && it->segment.end() == boundary ? &*it : nullptr;
}

std::vector<uint32_t> KeyedSegment::CutOffsets() const {
  std::vector<uint32_t> offsets(cuts.begin(), cuts.end());
  for (uint32_t& offset : offsets) offset -= segment.begin;
  return offsets;
}

bool KeyedSegment::HasCutOffsets(absl::Span<const uint32_t> offsets) const {
  return std::equal(
      cuts.begin(), cuts.end(), offsets.begin(), offsets.end(),
      [this](uint32_t cut, uint32_t offset) { return cut - segment.begin == offset; });
}

PromptChain MakeChain(const KvLayout& layout, const Digest& root,
                      absl::Span<const uint32_t> token_ids, absl::Span<const uint32_t> cuts,
                      uint32_t max_boundary, absl::Span<const uint32_t> ends,
                      const std::function<bool()>& stopped) {
  assert(max_boundary <= token_ids.size() && std::is_sorted(ends.begin(), ends.end()));
  const uint32_t chunk_tokens = layout.chunk_tokens;
  PromptChain chain;
  chain.root = root;
  chain.max_boundary = max_boundary;
  uint32_t hashed = 0;  // tokens hashed since the last call of `stopped`
  const auto add = [&](Segment segment, std::vector<KeyedSegment>* out) {
    KeyedSegment keyed;
    keyed.segment = segment;
    keyed.cuts = CutsBetween(segment, cuts, layout.exactness);
    const size_t parent = segment.begin / chunk_tokens;
    keyed.key = SegmentKey(parent == 0 ? root : chain.chunks[parent - 1].key,
                           token_ids.subspan(segment.begin, segment.tokens), keyed.CutOffsets());
    out->push_back(keyed);
    hashed += segment.tokens + static_cast<uint32_t>(keyed.cuts.size());
    if (hashed < kTokensBetweenStopChecks) return;
    hashed = 0;
    chain.is_whole = !stopped || !stopped();
  };
  chain.chunks.reserve(max_boundary / chunk_tokens);
  for (uint32_t begin = 0; begin + chunk_tokens <= max_boundary && chain.is_whole;
       begin += chunk_tokens) {
    add(Segment{begin, chunk_tokens}, &chain.chunks);
  }
  for (const uint32_t end : ends) {
    if (!chain.is_whole) break;
    if (end > max_boundary || end % chunk_tokens == 0) continue;
    const uint32_t begin = end / chunk_tokens * chunk_tokens;
    add(Segment{begin, end - begin}, &chain.remainders);
  }
  return chain;
}

ChainPtr ChainOf(absl::Span<const ChainPtr> made, const KvLayout& layout, const Digest& root,
                 absl::Span<const uint32_t> token_ids, absl::Span<const uint32_t> cuts,
                 uint32_t max_boundary, absl::Span<const uint32_t> ends,
                 const std::function<bool()>& stopped) {
  for (const ChainPtr& chain : made) {
    if (chain->root != root || chain->max_boundary < max_boundary || !chain->is_whole) continue;
    if (std::all_of(ends.begin(), ends.end(), [&](uint32_t end) {
          return end > max_boundary || chain->EndingAt(end, layout.chunk_tokens) != nullptr;
        })) {
      return chain;
    }
  }
  return std::make_shared<const PromptChain>(
      MakeChain(layout, root, token_ids, cuts, max_boundary, ends, stopped));
}

}  // namespace hearth
