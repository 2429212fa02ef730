#include "cache_store/base/pin_share.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

uint64_t Above(uint64_t limit, uint64_t value) { return value - std::min(limit, value); }

// Of a tenant with an entry.
uint64_t ShareOf(const TenantQuota& quota) {
  return quota.max_pinned_bytes > 0 ? quota.max_pinned_bytes : quota.floor_bytes;
}

}  // namespace

PinRoom PinRoomOf(const TenantQuotas& quotas, uint64_t capacity_bytes, double max_pinned_fraction) {
  uint64_t floors = 0;
  PinRoom room;
  for (const auto& [tenant, quota] : quotas.by_tenant) {
    floors += quota.floor_bytes;
    const uint64_t beyond = Above(quota.floor_bytes, ShareOf(quota));
    room.shares_bytes += std::min(beyond, ~room.shares_bytes);
  }
  room.bytes = static_cast<uint64_t>(static_cast<double>(Above(floors, capacity_bytes)) *
                                     max_pinned_fraction);
  return room;
}

absl::Status ValidatePins(const PinRoom& room) {
  if (room.shares_bytes <= room.bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "tenants.*.max_pinned_bytes: beyond the floors they are ", room.shares_bytes,
      " bytes together, and ", room.bytes, " may be pinned; a tenant's is kept for it alone"));
}

absl::Status MayPin(const TenantQuotas& quotas, const TenantLedger& ledger, const PinRoom& room,
                    uint64_t pinned_bytes, const std::string& tenant, uint64_t more_bytes) {
  const uint64_t own = ledger.UsageOf(tenant).pinned_bytes;
  if (!ledger.MayPin(tenant, more_bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("quota: pinning ", more_bytes, " bytes more than the tenant's ", own,
                     " would exceed its max_pinned_bytes, ", quotas.Of(tenant).max_pinned_bytes));
  }
  uint64_t taken = pinned_bytes;
  uint64_t share = 0;
  for (const auto& [name, quota] : quotas.by_tenant) {
    if (name == tenant) share = ShareOf(quota);
    taken -= std::min(ledger.UsageOf(name).pinned_bytes, ShareOf(quota));
  }
  const uint64_t beyond = Above(share, own + more_bytes) - Above(share, own);
  if (beyond == 0 || taken + beyond <= room.common_bytes()) return absl::OkStatus();
  // The share may have been taken by others.
  return absl::ResourceExhaustedError(absl::StrCat(
      "pinning ", more_bytes, " bytes more would exceed the limit of what may be pinned, ",
      room.common_bytes(), " bytes for all who have no max_pinned_bytes of their own"));
}

}  // namespace hearth
