#include "proto/restore_rule.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

uint32_t FloorToChunk(uint32_t position, uint32_t chunk_tokens) {
  return position - position % chunk_tokens;
}

void SortUnique(std::vector<uint32_t>* positions) {
  std::sort(positions->begin(), positions->end());
  positions->erase(std::unique(positions->begin(), positions->end()), positions->end());
}

bool Contains(absl::Span<const uint32_t> sorted, uint32_t value) {
  return std::binary_search(sorted.begin(), sorted.end(), value);
}

// Returns the multiples of chunk_tokens in (0, last].
std::vector<uint32_t> ChunkEnds(uint32_t last, uint32_t chunk_tokens) {
  std::vector<uint32_t> ends;
  ends.reserve(last / chunk_tokens);
  for (uint64_t end = chunk_tokens; end <= last; end += chunk_tokens) {
    ends.push_back(static_cast<uint32_t>(end));
  }
  return ends;
}

}  // namespace

absl::Status ValidateCuts(absl::Span<const uint32_t> cuts, uint32_t tokens) {
  if (cuts.size() > kMaxCuts) {
    return absl::InvalidArgumentError(
        absl::StrCat("cuts: must have at most ", kMaxCuts, " positions; got ", cuts.size()));
  }
  uint32_t previous = 0;
  for (size_t i = 0; i < cuts.size(); ++i) {
    if (cuts[i] <= previous) {
      return absl::InvalidArgumentError(
          absl::StrCat("cuts[", i, "] is ", cuts[i], ", must be above ", previous,
                       ": cuts must be strictly increasing and above 0"));
    }
    if (cuts[i] > tokens) {
      return absl::InvalidArgumentError(
          absl::StrCat("cuts[", i, "] is ", cuts[i], ", past the end of the prompt, ", tokens));
    }
    previous = cuts[i];
  }
  return absl::OkStatus();
}

std::vector<Segment> SegmentsTo(uint32_t boundary, uint32_t chunk_tokens) {
  assert(chunk_tokens > 0);
  std::vector<Segment> segments;
  segments.reserve(boundary / chunk_tokens + 1);
  for (uint32_t begin = 0; begin < boundary;) {
    const uint32_t tokens = std::min(chunk_tokens, boundary - begin);
    segments.push_back({begin, tokens});
    begin += tokens;
  }
  return segments;
}

uint32_t LocalTailBegin(const KvLayout& layout, uint32_t boundary) {
  // The window includes the token being computed, so the next token sees only window - 1 stored
  // tokens.
  const uint32_t tail = layout.window > 0 ? layout.window - 1 : 0;
  return boundary > tail ? boundary - tail : 0;
}

std::vector<ObjectId> NeededObjects(const KvLayout& layout, uint32_t boundary) {
  const auto has = [&](LayerGroup group) {
    return std::find(layout.layers.begin(), layout.layers.end(), group) != layout.layers.end();
  };
  const bool has_global = has(LayerGroup::kGlobal);
  const bool has_local = has(LayerGroup::kLocal);
  const uint32_t tail_begin = LocalTailBegin(layout, boundary);
  std::vector<ObjectId> needed;
  for (const Segment& segment : SegmentsTo(boundary, layout.chunk_tokens)) {
    if (has_global) needed.push_back({segment.begin, segment.tokens, LayerGroup::kGlobal});
    if (has_local && segment.end() > tail_begin) {
      needed.push_back({segment.begin, segment.tokens, LayerGroup::kLocal});
    }
  }
  assert(std::is_sorted(needed.begin(), needed.end()));
  return needed;
}

uint64_t NeededBytes(const KvLayout& layout, uint32_t boundary) {
  const uint32_t chunk = layout.chunk_tokens, tail_begin = LocalTailBegin(layout, boundary);
  const uint64_t chunks = boundary / chunk, rest = boundary % chunk;
  const uint64_t tail_chunks = chunks - std::min<uint64_t>(chunks, tail_begin / chunk);
  const auto bytes = [&](LayerGroup group, uint64_t whole, bool has_rest) {
    return whole * layout.ObjectBytes(chunk, group) +
           (has_rest ? layout.ObjectBytes(static_cast<uint32_t>(rest), group) : 0);
  };
  return bytes(LayerGroup::kGlobal, chunks, rest > 0) +
         bytes(LayerGroup::kLocal, tail_chunks, rest > 0 && boundary > tail_begin);
}

std::vector<uint32_t> StepEnds(uint32_t tokens, absl::Span<const uint32_t> cuts,
                               uint32_t chunk_tokens) {
  std::vector<uint32_t> ends = RestoreCandidates(tokens, cuts, chunk_tokens);
  if (tokens > 0 && (ends.empty() || ends.back() != tokens)) ends.push_back(tokens);
  return ends;
}

std::vector<uint32_t> RestoreCandidates(uint32_t max_boundary, absl::Span<const uint32_t> cuts,
                                        uint32_t chunk_tokens) {
  assert(chunk_tokens > 0);
  std::vector<uint32_t> candidates = ChunkEnds(max_boundary, chunk_tokens);
  for (uint32_t cut : cuts) {
    if (cut > 0 && cut <= max_boundary) candidates.push_back(cut);
  }
  SortUnique(&candidates);
  return candidates;
}

absl::Span<const uint32_t> CutsBetween(const Segment& segment, absl::Span<const uint32_t> cuts,
                                       Exactness exactness) {
  if (!CutsAreKeyed(exactness)) return {};
  const auto first = std::upper_bound(cuts.begin(), cuts.end(), segment.begin);
  const auto last = std::lower_bound(first, cuts.end(), segment.end());
  return cuts.subspan(first - cuts.begin(), last - first);
}

std::vector<uint32_t> CutsInside(const Segment& segment, absl::Span<const uint32_t> cuts,
                                 Exactness exactness) {
  std::vector<uint32_t> offsets;
  for (const uint32_t cut : CutsBetween(segment, cuts, exactness)) {
    offsets.push_back(cut - segment.begin);
  }
  return offsets;
}

std::vector<uint32_t> KeptBoundaries(uint32_t tokens, absl::Span<const uint32_t> cuts,
                                     uint32_t matched_tokens, uint32_t restored_tokens,
                                     uint32_t chunk_tokens) {
  assert(chunk_tokens > 0);
  std::vector<uint32_t> kept(cuts.begin(), cuts.end());
  if (tokens % chunk_tokens == 0 || Contains(cuts, tokens)) kept.push_back(tokens);
  if (tokens > 0) kept.push_back(FloorToChunk(tokens - 1, chunk_tokens));
  // An earlier prompt has this many tokens in common with this prompt, but no restore point ends
  // there. A restore point near this position helps the next prompt that diverges here.
  if (matched_tokens > restored_tokens) {
    kept.push_back(FloorToChunk(std::min(matched_tokens, tokens), chunk_tokens));
  }
  SortUnique(&kept);
  const auto useless = [&](uint32_t boundary) {
    return boundary <= restored_tokens || boundary > tokens;
  };
  kept.erase(std::remove_if(kept.begin(), kept.end(), useless), kept.end());
  return kept;
}

}  // namespace hearth
