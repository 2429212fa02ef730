// MayPin: how much a tenant may pin, given what others have pinned.
//
// Beyond the floors at most a fraction of the capacity is pinned: eviction has the rest to choose
// from. A tenant with an entry has a share, its max_pinned_bytes or else its floor, which it can
// pin whatever others have pinned. What is nobody's share is for whoever comes first.
// Pure functions.
#ifndef HEARTH_CACHE_STORE_BASE_PIN_SHARE_H_
#define HEARTH_CACHE_STORE_BASE_PIN_SHARE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "cache_store/base/tenant_ledger.h"

namespace hearth {

struct PinRoom {
  uint64_t bytes = 0;         // that may be pinned beyond the floors
  uint64_t shares_bytes = 0;  // of these, tenants' shares
  uint64_t common_bytes() const { return bytes > shares_bytes ? bytes - shares_bytes : 0; }
};
PinRoom PinRoomOf(const TenantQuotas& quotas, uint64_t capacity_bytes, double max_pinned_fraction);

// The shares fit together.
absl::Status ValidatePins(const PinRoom& room);

// kResourceExhausted names the limit. `pinned_bytes`: what all tenants have pinned.
absl::Status MayPin(const TenantQuotas& quotas, const TenantLedger& ledger, const PinRoom& room,
                    uint64_t pinned_bytes, const std::string& tenant, uint64_t more_bytes);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_PIN_SHARE_H_
