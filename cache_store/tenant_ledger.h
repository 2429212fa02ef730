// What each tenant may hold, and what it holds.
//
// An object belongs to one tenant, whose name is in its key, from the first restore point that
// names it to the last. Bytes are those of keys and values, each object once, whatever its tiers.
// Not thread safe: the store guards it.
// Invariant: usage equals what the restore points add up to (Catalog::CheckInvariants).
#ifndef HEARTH_CACHE_STORE_TENANT_LEDGER_H_
#define HEARTH_CACHE_STORE_TENANT_LEDGER_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

namespace hearth {

// 0: no limit, and no guarantee.
struct TenantQuota {
  uint64_t max_bytes = 0;
  uint64_t max_objects = 0;
  uint64_t max_pinned_bytes = 0;
  // Never evicted for the sake of others.
  uint64_t floor_bytes = 0;
};

struct TenantQuotas {
  TenantQuota others;  // every tenant without its own
  absl::flat_hash_map<std::string, TenantQuota> by_tenant;

  const TenantQuota& Of(const std::string& tenant) const {
    const auto it = by_tenant.find(tenant);
    return it == by_tenant.end() ? others : it->second;
  }
  // Floors fit into `capacity_bytes` together, and each below its own ceiling.
  absl::Status Validate(uint64_t capacity_bytes) const;
};

struct TenantUsage {
  uint64_t restore_points = 0, objects = 0, bytes = 0, pinned_bytes = 0;
  bool operator==(const TenantUsage& other) const {
    return restore_points == other.restore_points && objects == other.objects &&
           bytes == other.bytes && pinned_bytes == other.pinned_bytes;
  }
};

class TenantLedger {
 public:
  explicit TenantLedger(TenantQuotas quotas) : quotas_(std::move(quotas)) {}

  void AddPoint(const std::string& tenant) { ++accounts_[tenant].usage.restore_points; }
  void RemovePoint(const std::string& tenant);
  void AddObject(const std::string& tenant, uint64_t bytes);
  void RemoveObject(const std::string& tenant, uint64_t bytes);
  void AddPinned(const std::string& tenant, uint64_t bytes);
  void RemovePinned(const std::string& tenant, uint64_t bytes);

  // For objects on their way.
  void Reserve(const std::string& tenant, uint64_t bytes, uint64_t objects);
  void Unreserve(const std::string& tenant, uint64_t bytes, uint64_t objects);
  // More of these would fit beside what is held and reserved.
  bool Fits(const std::string& tenant, uint64_t bytes, uint64_t objects) const;
  // The same if all that is held were `kept`.
  bool WouldFit(const std::string& tenant, const TenantUsage& kept, uint64_t bytes,
                uint64_t objects) const;
  bool MayPin(const std::string& tenant, uint64_t more_bytes) const;
  // Without `bytes` of its own the tenant keeps what it was guaranteed.
  bool IsAboveFloor(const std::string& tenant, uint64_t bytes) const;
  // What others than `tenant` hold under a guarantee, beside what they pinned.
  uint64_t GuaranteedBytes(const std::string& tenant) const;

  TenantUsage UsageOf(const std::string& tenant) const;
  const TenantQuota& QuotaOf(const std::string& tenant) const { return quotas_.Of(tenant); }

 private:
  struct Account {
    TenantUsage usage;
    uint64_t reserved_bytes = 0, reserved_objects = 0;
  };
  // Forgets an account that holds nothing.
  void Settle(const std::string& tenant);

  const TenantQuotas quotas_;
  absl::flat_hash_map<std::string, Account> accounts_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_TENANT_LEDGER_H_
