#include "cache_store/shared/tier/shared_options.h"

#include "absl/strings/str_cat.h"

namespace hearth {

absl::Status SharedOptions::Validate() const {
  if (fetch_budget < absl::Milliseconds(1) || fetch_budget > absl::Minutes(1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("fetch_budget: ", absl::FormatDuration(fetch_budget), ", must be 1ms to 1m"));
  }
  // A year: Redis counts milliseconds in 64 bits, and nothing here should outlive its secret.
  if (ttl < absl::Seconds(1) || ttl > absl::Hours(24 * 366)) {
    return absl::InvalidArgumentError(
        absl::StrCat("ttl: ", absl::FormatDuration(ttl), ", must be 1s to 8784h"));
  }
  return absl::OkStatus();
}

}  // namespace hearth
