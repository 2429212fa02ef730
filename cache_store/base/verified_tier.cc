#include "cache_store/base/verified_tier.h"

#include <cassert>

#include "absl/strings/str_cat.h"

namespace hearth {

absl::Status VerifiedTier::Named(const absl::Status& status) const {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(TierName(kind()), " tier: ", status.message()));
}

absl::StatusOr<std::optional<SliceView>> VerifiedTier::Read(const StoredSlice& slice) {
  absl::StatusOr<std::optional<SliceView>> read = tier_->Read(slice);
  if (!read.ok()) return Named(read.status());
  if (!read->has_value()) return std::nullopt;
  const absl::Span<const std::byte> bytes = (*read)->bytes;
  if (bytes.size() != slice.bytes) {
    return absl::DataLossError(absl::StrCat(TierName(kind()), " tier: slice of layer ", slice.layer,
                                            " has ", bytes.size(), " bytes, expected ",
                                            slice.bytes));
  }
  if (SliceDigest(bytes.data(), bytes.size()) != slice.digest) {
    return absl::DataLossError(absl::StrCat(TierName(kind()), " tier: slice of layer ", slice.layer,
                                            " does not match its digest"));
  }
  return read;
}

absl::Status VerifiedTier::Write(const StoredSlice& slice, SliceView view) {
  assert(view.bytes.size() == slice.bytes);
  return Named(tier_->Write(slice, std::move(view)));
}

absl::Status VerifiedTier::WriteAll(absl::Span<const SliceWrite> slices) {
  for (const SliceWrite& write : slices) {
    assert(write.view.bytes.size() == write.slice.bytes);
  }
  return Named(tier_->WriteAll(slices));
}

absl::Status VerifiedTier::EraseObjects(absl::Span<const uint64_t> objects) {
  return Named(tier_->EraseObjects(objects));
}

}  // namespace hearth
