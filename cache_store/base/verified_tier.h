// VerifiedTier: a decorator that checks length and XXH3 digest on every read.
//
// kDataLoss when the tier's bytes are not the ones written; the caller quarantines them. Other
// errors are wrapped with the tier's name. Thread safe when the wrapped tier is.
#ifndef HEARTH_CACHE_STORE_BASE_VERIFIED_TIER_H_
#define HEARTH_CACHE_STORE_BASE_VERIFIED_TIER_H_

#include "cache_store/base/tier.h"

namespace hearth {

class VerifiedTier : public SliceTier {
 public:
  // `tier` must outlive this.
  explicit VerifiedTier(SliceTier* tier) : tier_(tier) {}

  Tier kind() const override { return tier_->kind(); }
  absl::StatusOr<std::optional<SliceView>> Read(const StoredSlice& slice) override;
  // REQUIRES: the view's length and digest are those of `slice` (checked when it was received).
  absl::Status Write(const StoredSlice& slice, SliceView view) override;
  absl::Status WriteAll(absl::Span<const SliceWrite> slices) override;
  absl::Status EraseObjects(absl::Span<const uint64_t> objects) override;

 private:
  absl::Status Named(const absl::Status& status) const;

  SliceTier* const tier_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_VERIFIED_TIER_H_
