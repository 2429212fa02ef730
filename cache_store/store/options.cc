#include "cache_store/store/options.h"

#include "absl/strings/str_cat.h"

namespace hearth {

absl::Status StoreOptions::Validate() const {
  if (host_bytes == 0 && !has_disk()) {
    return absl::InvalidArgumentError("host_bytes must be above 0 in a store without a disk tier");
  }
  if (default_durability == Durability::kDefault) {
    return absl::InvalidArgumentError("default_durability must be memory, disk or sync");
  }
  if (!(max_pinned_fraction >= 0.0 && max_pinned_fraction <= 1.0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_pinned_fraction must be in [0, 1]; got ", max_pinned_fraction));
  }
  if (default_ttl < absl::ZeroDuration() || default_ttl > absl::Seconds(kMaxTtlSeconds)) {
    return absl::InvalidArgumentError(
        absl::StrCat("default_ttl must be 0 to ", kMaxTtlSeconds, " s"));
  }
  if (scrub.period <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("scrub.period must be above 0");
  }
  if (max_staged_bytes == 0) return absl::InvalidArgumentError("max_staged_bytes must be above 0");
  if (absl::Status status = quotas.Validate(capacity_bytes()); !status.ok()) return status;
  return ValidatePins(PinRoomOf(quotas, capacity_bytes(), max_pinned_fraction));
}

}  // namespace hearth
