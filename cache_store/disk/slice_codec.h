// Lossless compression of a slice: its elements' bytes apart, each plane by itself.
//
// All first bytes of the elements, then all second bytes, and so on: the planes with sign and
// exponent repeat themselves, those with the mantissa's low bits are noise and stay as they are. A
// sample of each plane says which is which before anything is compressed, so noise costs little.
// Encoded bytes say so themselves (docs/snapshot_format.md) and are always fewer than the slice's,
// so that a value of the slice's size is the slice. Digests are the caller's, over the slice.
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

// The `slice_bytes` bytes. kDataLoss for anything but what EncodeSlice made of so many; memory for
// them is all that it takes. REQUIRES: IsEncodedSlice.
absl::StatusOr<SliceView> DecodeSlice(absl::Span<const std::byte> stored, uint64_t slice_bytes);

// Of bytes that stay where they are for as long as the view is used.
inline SliceView ViewOf(absl::string_view bytes) {
  return {nullptr, {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}};
}
// Decoded where it is encoded, and else as it is.
absl::StatusOr<SliceView> AsSlice(SliceView stored, uint64_t slice_bytes);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_SLICE_CODEC_H_
