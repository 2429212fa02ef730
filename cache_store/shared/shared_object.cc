#include "cache_store/shared/shared_object.h"

#include <algorithm>
#include <cassert>

#include "absl/status/status.h"
#include "cache_store/shared/shared_space.h"
#include "proto/byte_codec.h"

namespace hearth {
namespace {

constexpr uint32_t kHeadMagic = 0x314F5348;  // "HSO1" in ASCII
constexpr size_t kFixedBytes = 7 * sizeof(uint32_t) + 2 * sizeof(uint64_t);

// Bytes that Redis allocates in addition to a value's own bytes, in the same allocation.
constexpr uint64_t kAllocatedBytes = 64;
static_assert(SharedSpace::kMaxValueBytes + kAllocatedBytes == uint64_t{1} << 20);
// If at most this many bytes remain, they become one part. The first part must have space for the
// head, which is below 17 KiB, because the numbers of chunks and layers are limited.
constexpr uint64_t kWholeBytes = 32 << 10;
// At most 1/kUnusedShare of the memory that Redis allocates for an object may be unused.
constexpr uint64_t kUnusedShare = 128;

// Returns the largest allocation size of jemalloc (Redis's allocator) that is at most `bytes`.
// There are four sizes from each power of two to the next. REQUIRES: bytes >= kWholeBytes.
uint64_t SizeClassUpTo(uint64_t bytes) {
  uint64_t power = kWholeBytes;
  while (2 * power <= bytes) power *= 2;
  assert(bytes >= kWholeBytes);
  return bytes / (power / 4) * (power / 4);
}

// Returns the size of the next part, if `left` bytes of an object of `whole` bytes remain: all of
// them, or as many as fill one allocation size.
uint64_t CutOf(uint64_t left, uint64_t whole) {
  constexpr uint64_t kOverheadBytes = SharedSpace::kSealBytes + kAllocatedBytes;
  const uint64_t allocated = left + kOverheadBytes;
  if (allocated <= kWholeBytes) return left;
  const uint64_t filled = SizeClassUpTo(allocated);
  const uint64_t next = SizeClassUpTo(filled + filled / 4);
  return filled == allocated || next - allocated <= whole / kUnusedShare ? left
                                                                         : filled - kOverheadBytes;
}

}  // namespace

size_t SharedShape::head_bytes() const {
  return kFixedBytes + (token_ids.size() + cut_offsets.size()) * sizeof(uint32_t) +
         slices * sizeof(uint64_t);
}

uint32_t SharedShape::parts() const {
  const uint64_t whole = text_bytes();
  uint64_t count = whole / SharedSpace::kMaxTextBytes;
  for (uint64_t left = whole % SharedSpace::kMaxTextBytes; left > 0; ++count) {
    const uint64_t cut = CutOf(left, whole);
    assert(cut > 0 && cut <= left);
    left -= cut;
  }
  return static_cast<uint32_t>(count);
}

SharedShape::Range SharedShape::RangeOf(uint32_t part) const {
  const uint64_t head = head_bytes(), whole = text_bytes();
  assert(part < parts());
  const uint64_t full = whole / SharedSpace::kMaxTextBytes;
  uint64_t begin = std::min<uint64_t>(part, full) * SharedSpace::kMaxTextBytes;
  for (uint64_t before = full; before < part; ++before) begin += CutOf(whole - begin, whole);
  const uint64_t bytes = part < full ? SharedSpace::kMaxTextBytes : CutOf(whole - begin, whole);
  assert(part > 0 || head <= bytes);
  return {part == 0 ? 0 : begin - head, begin + bytes - head};
}

std::string SharedShape::Head(const SharedFacts& facts) const {
  assert(facts.slice_digests.size() == slices && token_ids.size() == id.tokens);
  std::string head;
  head.reserve(head_bytes());
  for (const uint32_t field : {kHeadMagic, id.begin, id.tokens, static_cast<uint32_t>(id.group),
                               parts(), static_cast<uint32_t>(cut_offsets.size()), slices}) {
    AppendU32(&head, field);
  }
  AppendU64(&head, slice_bytes);
  AppendU64(&head, facts.expires_unix_s);
  AppendU32Array(&head, token_ids);
  AppendU32Array(&head, cut_offsets);
  for (const uint64_t digest : facts.slice_digests) AppendU64(&head, digest);
  assert(head.size() == head_bytes());
  return head;
}

std::string SharedShape::TextOf(uint32_t part, const SharedFacts& facts,
                                absl::Span<const SliceView> views) const {
  assert(views.size() == slices);
  std::string text = part == 0 ? Head(facts) : std::string();
  const Range range = RangeOf(part);
  text.reserve(text.size() + (range.end - range.begin));
  for (uint64_t at = range.begin; at < range.end;) {
    const SliceView& view = views[at / slice_bytes];
    assert(view.bytes.size() == slice_bytes);
    const uint64_t offset = at % slice_bytes;
    const uint64_t count = std::min(range.end - at, slice_bytes - offset);
    text.append(reinterpret_cast<const char*>(view.bytes.data()) + offset, count);
    at += count;
  }
  assert(text.size() <= SharedSpace::kMaxTextBytes);
  return text;
}

absl::StatusOr<SharedFacts> SharedShape::ParseHead(absl::string_view text) const {
  if (text.size() < head_bytes())
    return absl::DataLossError("the header of an object in the shared tier is cut short");
  ByteReader reader(text);
  reader.Bytes(kFixedBytes - sizeof(uint64_t), "shape");
  SharedFacts facts;
  facts.expires_unix_s = reader.U64("expires");
  reader.Bytes((token_ids.size() + cut_offsets.size()) * sizeof(uint32_t), "tokens");
  facts.slice_digests = reader.U64Array(slices, "digests");
  // A value's name is a hash of the prompt and shape; this comparison also notices a hash
  // collision.
  if (text.substr(0, head_bytes()) == Head(facts)) return facts;
  return absl::DataLossError("the header in the shared tier belongs to another object");
}

std::vector<absl::Span<std::byte>> SharedShape::PiecesOf(
    uint32_t part, absl::Span<std::byte* const> slices_at) const {
  assert(slices_at.size() == slices);
  const Range range = RangeOf(part);
  std::vector<absl::Span<std::byte>> pieces;
  for (uint64_t at = range.begin; at < range.end;) {
    const uint64_t offset = at % slice_bytes;
    const uint64_t count = std::min(range.end - at, slice_bytes - offset);
    pieces.emplace_back(slices_at[at / slice_bytes] + offset, count);
    at += count;
  }
  return pieces;
}

SharedShape SharedPrompt::ShapeOf(const ObjectId& id) const {
  assert(id.tokens > 0 && uint64_t{id.begin} + id.tokens <= token_ids.size());
  assert(SegmentOf(id) != nullptr);
  SharedShape shape;
  shape.id = id;
  const absl::Span<const uint32_t> ids = token_ids.subspan(id.begin, id.tokens);
  shape.token_ids.assign(ids.begin(), ids.end());
  shape.cut_offsets = SegmentOf(id)->CutOffsets();
  shape.slices = static_cast<uint32_t>(layout.LayerCount(id.group));
  shape.slice_bytes = layout.SliceBytes(id.tokens);
  return shape;
}

}  // namespace hearth
