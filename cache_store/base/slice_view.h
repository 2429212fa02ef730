// SliceView: the bytes of one slice (the keys and values of one layer), with shared ownership. The
// bytes stay valid for a reader even if a tier evicts the slice. Copying a view copies a pointer.
// The bytes never change after the view is shared.
#ifndef HEARTH_CACHE_STORE_BASE_SLICE_VIEW_H_
#define HEARTH_CACHE_STORE_BASE_SLICE_VIEW_H_

#include <cstddef>
#include <memory>

#include "absl/types/span.h"

namespace hearth {

// The bytes stay valid while this view, or a copy of it, exists.
struct SliceView {
  std::shared_ptr<const void> owner;
  absl::Span<const std::byte> bytes;
};

// Alignment of a slice: one cache line, for vector loads and DMA.
inline constexpr size_t kSliceAlignment = 64;

// Returns uninitialised memory, aligned to 64 bytes. The publisher fills the memory before sharing
// it.
std::shared_ptr<std::byte> AllocateSlice(size_t bytes);

// Copies `bytes` to new memory and returns a view of the copy.
SliceView CopySlice(absl::Span<const std::byte> bytes);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_SLICE_VIEW_H_
