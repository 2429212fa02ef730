// SharedShape: how an object is divided into values of the shared engine. SharedPrompt: the names
// of a prompt's objects in the engine.
//
// The bytes of an object are a head that describes it, and its slices in ascending order of layers.
// These bytes are divided into parts. A part is small enough for one value, and almost fills the
// memory that Redis allocates for it. The writer writes part 0, which has the head, last: if the
// head exists, all other parts were written. The reader computes the shape (and the number of
// parts) from the prompt and the layout, and compares it with the head.
//
//   head = magic, begin, tokens, group, parts, cuts, slices (u32 each), slice bytes, expiry in Unix
//          seconds or 0 (u64 each), token ids (u32 each), cut offsets (u32 each), digests of the
//          slices (u64 each)
//
// Plain values, pure functions. Parsing trusts no input: every error is kDataLoss with a
// description.
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

// Fields of the head that a reader cannot compute from the prompt.
struct SharedFacts {
  std::vector<uint64_t> slice_digests;  // digest of each slice, in ascending order of layers
  uint64_t expires_unix_s = 0;          // Unix seconds of the expiry; 0: no expiry
};

struct SharedShape {
  ObjectId id;
  std::vector<uint32_t> token_ids;  // token ids of the segment
  std::vector<uint32_t> cut_offsets;
  uint32_t slices = 0;
  uint64_t slice_bytes = 0;

  uint64_t object_bytes() const { return slices * slice_bytes; }
  size_t head_bytes() const;
  // bytes of the head and of all slices
  uint64_t text_bytes() const { return head_bytes() + object_bytes(); }
  // Returns the number of parts, below 2^25: a layout allows slices of 32 GiB, but each store's
  // limit of received bytes refuses much smaller slices.
  uint32_t parts() const;

  // Returns the number of bytes of a part of the object.
  uint64_t TextBytes(uint32_t part) const {
    const Range range = RangeOf(part);
    return (part == 0 ? head_bytes() : 0) + range.end - range.begin;
  }
  // Returns the bytes of a part before sealing (encryption). REQUIRES: part < parts(); each view
  // has slice_bytes.
  std::string TextOf(uint32_t part, const SharedFacts& facts,
                     absl::Span<const SliceView> views) const;
  // Parses the head at the beginning of part 0.
  absl::StatusOr<SharedFacts> ParseHead(absl::string_view text) const;
  // Returns the ranges of `slices` into which the bytes of a part (without the head) belong, in
  // order. REQUIRES: each of `slices` has slice_bytes.
  std::vector<absl::Span<std::byte>> PiecesOf(uint32_t part,
                                              absl::Span<std::byte* const> slices) const;

 private:
  struct Range {
    uint64_t begin = 0, end = 0;  // positions in the concatenation of all slices
  };
  Range RangeOf(uint32_t part) const;
  std::string Head(const SharedFacts& facts) const;
};

// Names the objects of one prompt in the shared engine. Created without a lock; then immutable and
// thread safe. Ownership: borrows the caller's token ids and cuts.
struct SharedPrompt {
  std::shared_ptr<const SharedSpace> space;
  KvLayout layout;
  ChainPtr chain;
  absl::Span<const uint32_t> token_ids;

  // Returns the segment of the object; null if the chain does not have it.
  const KeyedSegment* SegmentOf(const ObjectId& id) const {
    return chain->EndingAt(id.begin + id.tokens, layout.chunk_tokens);
  }
  // REQUIRES, for the next two methods: SegmentOf(id) is not null.
  SharedShape ShapeOf(const ObjectId& id) const;
  std::string NameOf(const ObjectId& id, uint32_t part) const {
    return space->PartName(SegmentOf(id)->key, id.group, part);
  }
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_SHARED_SHARED_OBJECT_H_
