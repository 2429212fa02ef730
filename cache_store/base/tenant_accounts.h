// TenantAccounts: each tenant's quota, and the sums of what the tenant holds.
//
// An object belongs to one tenant, whose name is part of its key, from the first restore point that
// names the object to the last. An object's keys and values count once, whatever tiers hold them.
// StorageSums derives the sums from the objects' states. Not thread safe: the store guards it.
// Invariant: usage equals the sum over the restore points (tests/support/store_checks).
#ifndef HEARTH_CACHE_STORE_BASE_TENANT_ACCOUNTS_H_
#define HEARTH_CACHE_STORE_BASE_TENANT_ACCOUNTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

namespace hearth {

// Used instead of a tenant's name: all tenants. No tenant has this name.
inline constexpr char kAllTenants[] = "*";

// The longest time to live: 136 years.
inline constexpr uint64_t kMaxTtlSeconds = uint64_t{UINT32_MAX};

// 0 in a field: no limit, no guarantee, no default.
struct TenantQuota {
  uint64_t max_bytes = 0;
  uint64_t max_objects = 0;
  uint64_t max_pinned_bytes = 0;
  // This many bytes are never evicted for other tenants.
  uint64_t floor_bytes = 0;
  // Time to live of restore points published without a time to live; and the longest that is
  // allowed.
  uint64_t default_ttl_s = 0;
  uint64_t max_ttl_s = 0;

  bool has_ceiling() const { return max_bytes > 0 || max_objects > 0; }
};

struct TenantQuotas {
  TenantQuota others;  // quota of each tenant that has no entry
  absl::flat_hash_map<std::string, TenantQuota> by_tenant;

  const TenantQuota& Of(const std::string& tenant) const {
    const auto it = by_tenant.find(tenant);
    return it == by_tenant.end() ? others : it->second;
  }
  // Checks that all floors fit into `capacity_bytes` together, that no floor exceeds its tenant's
  // ceiling, and that no default time to live exceeds its maximum.
  absl::Status Validate(uint64_t capacity_bytes) const;
};

struct TenantUsage {
  uint64_t restore_points = 0, objects = 0, bytes = 0, pinned_bytes = 0;
  bool operator==(const TenantUsage& other) const {
    return restore_points == other.restore_points && objects == other.objects &&
           bytes == other.bytes && pinned_bytes == other.pinned_bytes;
  }
};

// A tenant's usage and limits. An account exists while the tenant holds anything.
struct TenantAccount {
  struct Amount {
    uint64_t bytes = 0, objects = 0;
  };

  std::string tenant;
  TenantQuota quota;
  uint32_t owner = 0;  // the tenant's number in Retention
  TenantUsage usage;
  Amount promised;  // objects being published, or protected from eviction for a publish; not in
                    // `usage`
  Amount kept;      // part of `usage` that is pinned or held by sessions
};

class TenantAccounts {
 public:
  explicit TenantAccounts(TenantQuotas quotas) : quotas_(std::move(quotas)) {}

  // The pointer stays valid until RemoveIfEmpty finds the account empty.
  TenantAccount* AccountOf(const std::string& tenant);
  void RemoveIfEmpty(TenantAccount* account);

  // IsWithin: usage and promises are within the ceiling. CanBeWithin: they would be after all
  // possible evictions.
  static bool IsWithin(const TenantAccount& account);
  static bool CanBeWithin(const TenantAccount& account);
  // Returns whether `bytes` and `objects` fit into the quota together with the tenant's pinned
  // bytes.
  bool FitsWithPins(const std::string& tenant, uint64_t bytes, uint64_t objects) const;
  // Returns the error of a publish that does not fit: kResourceExhausted.
  absl::Status NoRoom(const std::string& tenant, uint64_t bytes, uint64_t objects) const;
  bool MayPin(const std::string& tenant, uint64_t more_bytes) const;
  // Returns whether the tenant keeps its guaranteed bytes after losing `bytes`.
  static bool IsAboveFloor(const TenantAccount& account, uint64_t bytes);
  // Returns the guaranteed bytes that all tenants except `tenant` hold, without pinned bytes.
  uint64_t GuaranteedBytes(const std::string& tenant) const;

  TenantUsage UsageOf(const std::string& tenant) const;
  const TenantQuota& QuotaOf(const std::string& tenant) const { return quotas_.Of(tenant); }

 private:
  const TenantQuotas quotas_;
  uint32_t next_owner_ = 1;
  absl::flat_hash_map<std::string, std::unique_ptr<TenantAccount>> accounts_;
};

// Limits on pinned bytes. Beyond the tenants' floors at most a fraction of the capacity may be
// pinned, so that eviction has a choice. A tenant with a quota entry has its own share
// (max_pinned_bytes, or else its floor), whatever other tenants pin. The rest is common: first
// come, first served.
struct PinRoom {
  uint64_t bytes = 0;         // may be pinned beyond the floors
  uint64_t shares_bytes = 0;  // part of `bytes` that belongs to tenants' shares
  uint64_t common_bytes() const { return bytes > shares_bytes ? bytes - shares_bytes : 0; }
};
PinRoom PinRoomOf(const TenantQuotas& quotas, uint64_t capacity_bytes, double max_pinned_fraction);

// Checks that the shares fit together.
absl::Status ValidatePins(const PinRoom& room);

// Checks whether `tenant` may pin `more_bytes`. `pinned_bytes`: pinned by all tenants.
// kResourceExhausted names the limit.
absl::Status MayPin(const TenantQuotas& quotas, const TenantAccounts& accounts, const PinRoom& room,
                    uint64_t pinned_bytes, const std::string& tenant, uint64_t more_bytes);

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_BASE_TENANT_ACCOUNTS_H_
