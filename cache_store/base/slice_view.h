// SliceView: the bytes of one slice, and the buffers that hold them.
//
// A view shares ownership of its bytes, so they stay valid for a reader even if a tier evicts the
// slice. Immutable once shared; copying a view copies a pointer.
#ifndef HEARTH_CACHE_STORE_BASE_SLICE_VIEW_H_
#define HEARTH_CACHE_STORE_BASE_SLICE_VIEW_H_

#include <cstddef>
#include <memory>

#include "absl/types/span.h"

namespace hearth {

// The slice's bytes are valid while this view lives.
struct SliceView {
  std::shared_ptr<const void> owner;
  absl::Span<const std::byte> bytes;
};

// One cache line, for vector loads and DMA.
inline constexpr size_t kSliceAlignment = 64;

// Returns uninitialised, 64-byte aligned memory, which a publisher fills once and then shares.
std::shared_ptr<std::byte> AllocateSlice(size_t bytes);

// Returns a view of new memory with a copy of `bytes`.
SliceView CopySlice(absl::Span<const std::byte> bytes);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_SLICE_VIEW_H_
