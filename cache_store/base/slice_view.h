// Bytes of one slice, and the buffers that hold them.
//
// A SliceView shares ownership of its bytes, so they stay valid for a reader whatever a tier does
// meanwhile. Immutable once shared; copying a view copies a pointer.
#ifndef HEARTH_CACHE_STORE_BASE_SLICE_VIEW_H_
#define HEARTH_CACHE_STORE_BASE_SLICE_VIEW_H_

#include <cstddef>
#include <memory>

#include "absl/types/span.h"

namespace hearth {

// A slice's bytes, valid while this lives.
struct SliceView {
  std::shared_ptr<const void> owner;
  absl::Span<const std::byte> bytes;
};

// One cache line: what vector loads and DMA like.
inline constexpr size_t kSliceAlignment = 64;

// Uninitialised, 64-byte aligned memory that a publisher fills once and then shares.
std::shared_ptr<std::byte> AllocateSlice(size_t bytes);

// A view of fresh memory holding a copy of `bytes`.
SliceView CopySlice(absl::Span<const std::byte> bytes);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_SLICE_VIEW_H_
