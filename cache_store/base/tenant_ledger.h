// TenantLedger: the quota of each tenant, and the sums of what it holds.
//
// An object belongs to one tenant, whose name is in its key, from the first restore point that
// names it to the last. Bytes count each object's keys and values once, whatever tiers they are in.
// The sums follow from the objects' states (StorageSums). Not thread safe: the store guards it.
// Invariant: usage equals what the restore points add up to (tests/support/store_checks).
#ifndef HEARTH_CACHE_STORE_BASE_TENANT_LEDGER_H_
#define HEARTH_CACHE_STORE_BASE_TENANT_LEDGER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

namespace hearth {

// In place of a tenant's name: all of them. No tenant has this name.
inline constexpr char kAllTenants[] = "*";

// The longest time to live: 136 years.
inline constexpr uint64_t kMaxTtlSeconds = uint64_t{UINT32_MAX};

// 0: no limit, no guarantee, no default.
struct TenantQuota {
  uint64_t max_bytes = 0;
  uint64_t max_objects = 0;
  uint64_t max_pinned_bytes = 0;
  // So much is never evicted for the sake of others.
  uint64_t floor_bytes = 0;
  // Of restore points published without a time to live, and the longest of any.
  uint64_t default_ttl_s = 0;
  uint64_t max_ttl_s = 0;

  bool has_ceiling() const { return max_bytes > 0 || max_objects > 0; }
};

struct TenantQuotas {
  TenantQuota others;  // every tenant without its own
  absl::flat_hash_map<std::string, TenantQuota> by_tenant;

  const TenantQuota& Of(const std::string& tenant) const {
    const auto it = by_tenant.find(tenant);
    return it == by_tenant.end() ? others : it->second;
  }
  // All floors together fit into `capacity_bytes`; no floor is above its tenant's ceiling, and no
  // default time to live above its maximum.
  absl::Status Validate(uint64_t capacity_bytes) const;
};

struct TenantUsage {
  uint64_t restore_points = 0, objects = 0, bytes = 0, pinned_bytes = 0;
  bool operator==(const TenantUsage& other) const {
    return restore_points == other.restore_points && objects == other.objects &&
           bytes == other.bytes && pinned_bytes == other.pinned_bytes;
  }
};

// A tenant's usage and limits, kept while it holds anything.
struct TenantAccount {
  struct Amount {
    uint64_t bytes = 0, objects = 0;
  };

  std::string tenant;
  TenantQuota quota;
  uint32_t owner = 0;  // Retention's
  TenantUsage usage;
  Amount promised;  // of objects on their way, or kept from eviction for a publish, beside `usage`
  Amount kept;      // of `usage`: pinned, or held by sessions
};

class TenantLedger {
 public:
  explicit TenantLedger(TenantQuotas quotas) : quotas_(std::move(quotas)) {}

  // The pointer stays valid until RemoveIfEmpty finds the account empty.
  TenantAccount* AccountOf(const std::string& tenant);
  void RemoveIfEmpty(TenantAccount* account);

  // Whether everything held and promised is within the ceiling; whether it would be after all
  // evictions that are possible.
  static bool IsWithin(const TenantAccount& account);
  static bool CanBeWithin(const TenantAccount& account);
  // Whether so much more fits beside the tenant's pins.
  bool FitsBesidePins(const std::string& tenant, uint64_t bytes, uint64_t objects) const;
  // The error of a publish that does not fit: kResourceExhausted.
  absl::Status NoRoom(const std::string& tenant, uint64_t bytes, uint64_t objects) const;
  bool MayPin(const std::string& tenant, uint64_t more_bytes) const;
  // Whether the tenant still has its guaranteed bytes after losing `bytes`.
  static bool IsAboveFloor(const TenantAccount& account, uint64_t bytes);
  // Guaranteed bytes that tenants other than `tenant` hold, without their pins.
  uint64_t GuaranteedBytes(const std::string& tenant) const;

  TenantUsage UsageOf(const std::string& tenant) const;
  const TenantQuota& QuotaOf(const std::string& tenant) const { return quotas_.Of(tenant); }

 private:
  const TenantQuotas quotas_;
  uint32_t next_owner_ = 1;
  absl::flat_hash_map<std::string, std::unique_ptr<TenantAccount>> accounts_;
};

// How much a tenant may pin, given what others have pinned. Beyond the floors at most a fraction of
// the capacity is pinned, so that eviction has a choice. A tenant with an entry has a share of its
// own, its max_pinned_bytes or else its floor, whatever others have pinned. The rest is common:
// first come, first served.
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

#endif  // HEARTH_CACHE_STORE_BASE_TENANT_LEDGER_H_
