// Slices in RAM, bounded by bytes.
//
// Keeps the views it is given, without a copy. Thread safe.
// Invariants: 1. bytes() is the exact sum of the slices held. 2. bytes() <= capacity_bytes().
#ifndef HEARTH_CACHE_STORE_MEMORY_HOST_TIER_H_
#define HEARTH_CACHE_STORE_MEMORY_HOST_TIER_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "cache_store/base/tier.h"

namespace hearth {

class HostTier : public SliceTier {
 public:
  explicit HostTier(uint64_t capacity_bytes) : capacity_bytes_(capacity_bytes) {}

  Tier kind() const override { return Tier::kHost; }
  absl::StatusOr<std::optional<SliceView>> Read(const StoredSlice& slice) override;
  absl::Status Write(const StoredSlice& slice, SliceView view) override;
  // Erased memory is freed by the next Reap(): unmapping many MiB takes milliseconds, and callers
  // erase under the store's lock.
  absl::Status EraseObjects(absl::Span<const uint64_t> objects) override;
  void Reap();

  uint64_t bytes() const;
  uint64_t objects() const;
  uint64_t capacity_bytes() const { return capacity_bytes_; }

 private:
  using LayerSlices = std::vector<std::pair<uint32_t, SliceView>>;

  const uint64_t capacity_bytes_;
  mutable absl::Mutex mu_;
  absl::flat_hash_map<uint64_t, LayerSlices> slices_ ABSL_GUARDED_BY(mu_);
  std::vector<LayerSlices> erased_ ABSL_GUARDED_BY(mu_);
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_MEMORY_HOST_TIER_H_
