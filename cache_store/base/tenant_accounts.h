// TenantAccounts: each tenant's quota, and the sums of the restore points, objects and bytes that
// the tenant stores.
//
// An object belongs to exactly one tenant, and counts once, in however many tiers it is stored.
// StorageSums computes the sums. Not thread safe: the store's lock guards it. Invariant: a tenant's
// usage equals the sum over its restore points (tests/support/store_checks).
#ifndef HEARTH_CACHE_STORE_BASE_TENANT_ACCOUNTS_H_
#define HEARTH_CACHE_STORE_BASE_TENANT_ACCOUNTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

namespace hearth {

// Stands for all tenants where a tenant's name is expected. No tenant has this name.
inline constexpr char kAllTenants[] = "*";

// The longest allowed time to live: 136 years.
inline constexpr uint64_t kMaxTtlSeconds = uint64_t{UINT32_MAX};

// Limits of a tenant. 0 in a field: no limit, no guarantee or no default.
struct TenantQuota {
  uint64_t max_bytes = 0;
  uint64_t max_objects = 0;
  uint64_t max_pinned_bytes = 0;
  // This many bytes of the tenant are never evicted for other tenants.
  uint64_t floor_bytes = 0;
  // Time to live of restore points that are published without one, and the longest time to live
  // that a publish may request.
  uint64_t default_ttl_s = 0;
  uint64_t max_ttl_s = 0;

  bool has_ceiling() const { return max_bytes > 0 || max_objects > 0; }
};

struct TenantQuotas {
  TenantQuota others;  // quota of all tenants that are not in `by_tenant`
  absl::flat_hash_map<std::string, TenantQuota> by_tenant;

  const TenantQuota& Of(const std::string& tenant) const {
    const auto it = by_tenant.find(tenant);
    return it == by_tenant.end() ? others : it->second;
  }
  // Checks that the sum of all floor_bytes is at most `capacity_bytes`, that no tenant's
  // floor_bytes exceed its max_bytes, and that no default_ttl_s exceeds max_ttl_s.
  absl::Status Validate(uint64_t capacity_bytes) const;
};

struct TenantUsage {
  uint64_t restore_points = 0, objects = 0, bytes = 0, pinned_bytes = 0;
  bool operator==(const TenantUsage& other) const {
    return restore_points == other.restore_points && objects == other.objects &&
           bytes == other.bytes && pinned_bytes == other.pinned_bytes;
  }
};

// A tenant's usage and quota. The account exists while the tenant stores anything.
struct TenantAccount {
  struct Amount {
    uint64_t bytes = 0, objects = 0;
  };

  std::string tenant;
  TenantQuota quota;
  uint32_t owner = 0;  // number of the tenant in the eviction policy (Retention)
  TenantUsage usage;
  Amount promised;  // objects of running publishes that are not in `usage` yet
  Amount kept;      // part of `usage` that is pinned or read by a session
};

class TenantAccounts {
 public:
  explicit TenantAccounts(TenantQuotas quotas) : quotas_(std::move(quotas)) {}

  // Returns the tenant's account, and creates it if absent. The pointer is valid until
  // RemoveIfEmpty removes the account.
  TenantAccount* AccountOf(const std::string& tenant);
  void RemoveIfEmpty(TenantAccount* account);

  // IsWithin: the usage, with running publishes, is within the quota. CanBeWithin: it would be
  // after all possible evictions.
  static bool IsWithin(const TenantAccount& account);
  static bool CanBeWithin(const TenantAccount& account);
  // Returns whether a publish of `bytes` and `objects` fits into the quota next to the tenant's
  // pinned bytes.
  bool FitsWithPins(const std::string& tenant, uint64_t bytes, uint64_t objects) const;
  // Returns the error for a publish that does not fit into the tenant's quota: kResourceExhausted.
  absl::Status NoRoom(const std::string& tenant, uint64_t bytes, uint64_t objects) const;
  bool MayPin(const std::string& tenant, uint64_t more_bytes) const;
  // Returns whether the tenant still has its floor_bytes (guaranteed bytes) after losing `bytes`.
  static bool IsAboveFloor(const TenantAccount& account, uint64_t bytes);
  // Returns the sum of the guaranteed bytes that all tenants except `tenant` store now, without
  // their pinned bytes.
  uint64_t GuaranteedBytes(const std::string& tenant) const;

  TenantUsage UsageOf(const std::string& tenant) const;
  const TenantQuota& QuotaOf(const std::string& tenant) const { return quotas_.Of(tenant); }

 private:
  const TenantQuotas quotas_;
  uint32_t next_owner_ = 1;
  absl::flat_hash_map<std::string, std::unique_ptr<TenantAccount>> accounts_;
};

// Limits of pinned bytes. In addition to their floor_bytes, all tenants together may pin a fraction
// of the capacity that is left after all floor_bytes, so that eviction always has candidates. A
// tenant with a quota entry may always pin max_pinned_bytes or, without that limit, floor_bytes.
// All tenants share the rest, first come, first served.
struct PinRoom {
  uint64_t bytes = 0;  // bytes that all tenants together may pin in addition to their floor_bytes
  uint64_t shares_bytes = 0;  // part of `bytes` that is reserved for tenants with a quota entry
  uint64_t common_bytes() const { return bytes > shares_bytes ? bytes - shares_bytes : 0; }
};
PinRoom PinRoomOf(const TenantQuotas& quotas, uint64_t capacity_bytes, double max_pinned_fraction);

// Checks that the bytes reserved for tenants do not exceed the limit of pinned bytes.
absl::Status ValidatePins(const PinRoom& room);

// Checks whether `tenant` may pin `more_bytes` in addition. `pinned_bytes`: bytes that all tenants
// have pinned. kResourceExhausted names the exceeded limit.
absl::Status MayPin(const TenantQuotas& quotas, const TenantAccounts& accounts, const PinRoom& room,
                    uint64_t pinned_bytes, const std::string& tenant, uint64_t more_bytes);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_TENANT_ACCOUNTS_H_
