// Lossless compression of a slice: splits its elements into planes of bytes and compresses each
// plane by itself.
//
// All first bytes of the elements, then all second bytes, and so on: the planes with sign and
// exponent repeat themselves, those with the mantissa's low bits are noise and stay as they are. A
// sample of each plane tells which is which before anything is compressed, so noise costs little.
// Encoded bytes are marked (docs/snapshot_format.md) and always fewer than the slice's, so a value
// of the slice's size is the slice itself. Digests are the caller's, over the slice.
// Thread safety: pure functions.
#ifndef HEARTH_CACHE_STORE_DISK_SLICE_CODEC_H_
#define HEARTH_CACHE_STORE_DISK_SLICE_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cache_store/base/slice_view.h"

namespace hearth {

// The share of a slice that compression must save to be worth undoing at every read.
inline constexpr double kMinCodecGain = 0.10;

// None where it would not save kMinCodecGain. `element_bytes`: 2 or 4; others are never worth it.
std::optional<SliceView> EncodeSlice(absl::Span<const std::byte> slice, uint32_t element_bytes);

// True when `stored` is not the `slice_bytes` of a slice but begins like encoded ones.
bool IsEncodedSlice(absl::Span<const std::byte> stored, uint64_t slice_bytes);

// Returns the `slice_bytes` bytes; allocates no more than that. kDataLoss for anything that
// EncodeSlice did not make of so many. REQUIRES: IsEncodedSlice.
absl::StatusOr<SliceView> DecodeSlice(absl::Span<const std::byte> stored, uint64_t slice_bytes);

// A view without an owner: the bytes must stay valid while it is used.
inline SliceView ViewOf(absl::string_view bytes) {
  return {nullptr, {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}};
}
// Decodes an encoded slice, and returns any other as it is.
absl::StatusOr<SliceView> AsSlice(SliceView stored, uint64_t slice_bytes);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_SLICE_CODEC_H_
