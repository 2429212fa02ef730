// SharedShape: how an object is divided into the values that the shared engine keeps of it;
// SharedPrompt: a prompt's objects as the engine names them.
//
// An object's slices, in ascending order of layers, are one run of bytes, behind a head that says
// what they are: together they are cut into parts that each fit a value, and that leave little
// unused of what an engine allocates for them. Who writes puts part 0, with the head, last, so that
// an object whose head is there was once there as a whole. Who reads knows the shape beforehand,
// from the prompt and the layout, and so the number of parts; the head must say the same.
//
//   head = magic, begin, tokens, group, parts, cuts, slices (u32 each), slice bytes, end in Unix
//          seconds or 0 (u64 each), token ids (u32 each), cut offsets (u32 each), digests of the
//          slices (u64 each)
//
// Plain values, pure functions. Parsing trusts nothing: every error is kDataLoss and says what.
#ifndef HEARTH_CACHE_STORE_SHARED_SHARED_OBJECT_H_
#define HEARTH_CACHE_STORE_SHARED_SHARED_OBJECT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cache_store/base/prompt_chain.h"
#include "cache_store/base/slice_view.h"
#include "cache_store/shared/shared_space.h"
#include "proto/kv_layout.h"

namespace hearth {

// What a reader learns from the head.
struct SharedFacts {
  std::vector<uint64_t> slice_digests;  // ascending by layer
  uint64_t expires_unix_s = 0;          // 0: none
};

struct SharedShape {
  ObjectId id;
  std::vector<uint32_t> token_ids;  // of the segment
  std::vector<uint32_t> cut_offsets;
  uint32_t slices = 0;
  uint64_t slice_bytes = 0;

  uint64_t object_bytes() const { return slices * slice_bytes; }
  size_t head_bytes() const;
  uint64_t text_bytes() const { return head_bytes() + object_bytes(); }  // of all parts
  // Limits of a layout keep it below 2^25: 32 GiB a slice is refused by every store's staging long
  // before.
  uint32_t parts() const;

  // Of a part.
  uint64_t TextBytes(uint32_t part) const {
    const Range range = RangeOf(part);
    return (part == 0 ? head_bytes() : 0) + range.end - range.begin;
  }
  // The text of a part, to be sealed. REQUIRES: part < parts(), the slices' sizes are slice_bytes.
  std::string TextOf(uint32_t part, const SharedFacts& facts,
                     absl::Span<const SliceView> views) const;
  // What part 0 says.
  absl::StatusOr<SharedFacts> ParseHead(absl::string_view text) const;
  // Where the text of a part lies in the slices, its head apart, in order. REQUIRES: each of
  // `slices` has slice_bytes.
  std::vector<absl::Span<std::byte>> PiecesOf(uint32_t part,
                                              absl::Span<std::byte* const> slices) const;

 private:
  struct Range {
    uint64_t begin = 0, end = 0;  // of the run of slices
  };
  Range RangeOf(uint32_t part) const;
  std::string Head(const SharedFacts& facts) const;
};

// Made without any lock; thread safe once made. Ownership: borrows the caller's token ids and cuts.
struct SharedPrompt {
  std::shared_ptr<const SharedSpace> space;
  KvLayout layout;
  ChainPtr chain;
  absl::Span<const uint32_t> token_ids;

  // Null: not of the chain.
  const KeyedSegment* SegmentOf(const ObjectId& id) const {
    return chain->EndingAt(id.begin + id.tokens, layout.chunk_tokens);
  }
  // REQUIRES for both: SegmentOf(id) is not null.
  SharedShape ShapeOf(const ObjectId& id) const;
  std::string NameOf(const ObjectId& id, uint32_t part) const {
    return space->PartName(SegmentOf(id)->key, id.group, part);
  }
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_SHARED_OBJECT_H_
