// In front of the disk: gives back slices, whichever way they were stored. Writes pass through,
// encoded by the writer, who has to know what they take before any is written.
// Thread safety: as the tier behind it. Ownership: borrows that tier.
#ifndef HEARTH_CACHE_STORE_DISK_DECODING_TIER_H_
#define HEARTH_CACHE_STORE_DISK_DECODING_TIER_H_

#include <utility>

#include "cache_store/base/tier.h"
#include "cache_store/disk/slice_codec.h"

namespace hearth {

class DecodingTier : public SliceTier {
 public:
  explicit DecodingTier(SliceTier* tier) : tier_(tier) {}

  Tier kind() const override { return tier_->kind(); }
  absl::StatusOr<std::optional<SliceView>> Read(const StoredSlice& slice) override {
    absl::StatusOr<std::optional<SliceView>> read = tier_->Read(slice);
    if (!read.ok() || !read->has_value()) return read;
    const absl::Span<const std::byte> stored = (*read)->bytes;
    if (!IsEncodedSlice(stored, slice.bytes)) return read;
    absl::StatusOr<SliceView> decoded = DecodeSlice(stored, slice.bytes);
    if (!decoded.ok()) return decoded.status();
    return *std::move(decoded);
  }
  absl::Status Write(const StoredSlice& slice, SliceView view) override {
    return tier_->Write(slice, std::move(view));
  }
  absl::Status WriteAll(absl::Span<const SliceWrite> slices) override {
    return tier_->WriteAll(slices);
  }
  absl::Status EraseObjects(absl::Span<const uint64_t> objects) override {
    return tier_->EraseObjects(objects);
  }

 private:
  SliceTier* const tier_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_DECODING_TIER_H_
