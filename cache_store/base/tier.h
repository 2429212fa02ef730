// SliceTier: keeps slices by key. RAM, disk, decorators and fakes implement this one interface.
//
// A miss is std::nullopt, never an error: only a miss falls through to the next tier. A tier knows
// nothing of prompts, restore points or eviction; the catalog decides what is written and erased.
// Thread safety: all methods from any thread.
// Ownership: views returned by Read stay valid after the slice is erased.
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

// Names a slice, and the length and digest of its bytes. Object numbers are never used twice while
// a store lives, so a late erase cannot hit a newer object.
struct StoredSlice {
  uint64_t object = 0;
  uint32_t layer = 0;  // model layer index
  uint64_t bytes = 0;
  uint64_t digest = 0;    // XXH3-64
  bool in_table = false;  // on disk: in a table of large slices, else among the small ones
};

struct SliceWrite {
  StoredSlice slice;
  SliceView view;
};

class SliceTier {
 public:
  virtual ~SliceTier() = default;
  virtual absl::StatusOr<std::optional<SliceView>> Read(const StoredSlice& slice) = 0;
  // kResourceExhausted when full; then nothing changed. Writing the same slice again replaces it.
  virtual absl::Status Write(const StoredSlice& slice, SliceView view) = 0;
  // Writes slices that belong together, which a tier may do better than one by one. After an error
  // some may be written.
  virtual absl::Status WriteAll(absl::Span<const SliceWrite> slices) {
    for (const SliceWrite& write : slices) {
      if (absl::Status status = Write(write.slice, write.view); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
  // Erases every slice of each object; unknown ones are no error.
  virtual absl::Status EraseObjects(absl::Span<const uint64_t> objects) = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_TIER_H_
