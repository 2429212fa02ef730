// SliceTier: stores slices by key. Implemented by the disk tier, and by wrappers in tests.
//
// A slice that is not stored is std::nullopt, not an error. A tier knows nothing of prompts,
// restore points or eviction: the catalog decides what is written and erased. Thread safety: all
// methods from any thread. Views that Read() returned stay valid after the slice is erased.
#ifndef HEARTH_CACHE_STORE_BASE_TIER_H_
#define HEARTH_CACHE_STORE_BASE_TIER_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cache_store/base/slice_view.h"
#include "proto/kv_layout.h"

namespace hearth {

// Identifies a slice, with the length and digest of its bytes. A store never reuses an object
// number, so a late erase never erases a newer object.
struct StoredSlice {
  uint64_t object = 0;
  uint32_t layer = 0;  // index of the layer in the model
  uint64_t bytes = 0;
  uint64_t digest = 0;    // XXH3-64 of the slice's bytes
  bool in_table = false;  // column family on disk; true: large slices; false: small slices
};

struct SliceWrite {
  StoredSlice slice;
  SliceView view;
};

class SliceTier {
 public:
  virtual ~SliceTier() = default;
  virtual absl::StatusOr<std::optional<SliceView>> Read(const StoredSlice& slice) = 0;
  // Writes slices, and replaces slices of the same name. kResourceExhausted: the tier is full.
  // After an error, some of the slices may be written.
  virtual absl::Status WriteAll(absl::Span<const SliceWrite> slices) = 0;
  // Erases all slices of each object; ignores unknown objects.
  virtual absl::Status EraseObjects(absl::Span<const uint64_t> objects) = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_TIER_H_
