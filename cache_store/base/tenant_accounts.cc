#include "cache_store/base/tenant_accounts.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

bool Within(uint64_t limit, uint64_t value) { return limit == 0 || value <= limit; }

absl::Status CheckTtl(const TenantQuota& quota, const std::string& where) {
  if (Within(quota.max_ttl_s, quota.default_ttl_s) && Within(kMaxTtlSeconds, quota.max_ttl_s) &&
      Within(kMaxTtlSeconds, quota.default_ttl_s)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      where, ".default_ttl_s: ", quota.default_ttl_s, " must be at most max_ttl_s, which is ",
      quota.max_ttl_s, "; both must be at most ", kMaxTtlSeconds));
}

uint64_t Above(uint64_t limit, uint64_t value) { return value - std::min(limit, value); }

// Returns the bytes that a tenant with a quota entry may always pin.
uint64_t ShareOf(const TenantQuota& quota) {
  return quota.max_pinned_bytes > 0 ? quota.max_pinned_bytes : quota.floor_bytes;
}

}  // namespace

absl::Status TenantQuotas::Validate(uint64_t capacity_bytes) const {
  if (others.floor_bytes != 0) {
    return absl::InvalidArgumentError(
        "default.floor_bytes: must be 0; set floor_bytes for each tenant by name");
  }
  if (absl::Status status = CheckTtl(others, "default"); !status.ok()) return status;
  uint64_t floors = 0;
  for (const auto& [tenant, quota] : by_tenant) {
    absl::Status ttl = CheckTtl(quota, absl::StrCat("tenants.", tenant));
    if (!ttl.ok()) return ttl;
    if (!Within(quota.max_bytes, quota.floor_bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tenants.", tenant, ".floor_bytes: ", quota.floor_bytes,
                       " must be at most the tenant's max_bytes, ", quota.max_bytes));
    }
    if (quota.floor_bytes > capacity_bytes - floors) {
      return absl::InvalidArgumentError(
          absl::StrCat("tenants.", tenant,
                       ".floor_bytes: the sum of floor_bytes of all tenants must be at most the ",
                       capacity_bytes, " bytes of the store"));
    }
    floors += quota.floor_bytes;
  }
  return absl::OkStatus();
}

TenantAccount* TenantAccounts::AccountOf(const std::string& tenant) {
  std::unique_ptr<TenantAccount>& account = accounts_[tenant];
  if (account == nullptr) {
    account = std::make_unique<TenantAccount>();
    account->tenant = tenant;
    account->quota = quotas_.Of(tenant);
    account->owner = next_owner_++;
  }
  return account.get();
}

void TenantAccounts::RemoveIfEmpty(TenantAccount* account) {
  const TenantUsage& usage = account->usage;
  if (usage.restore_points > 0 || usage.objects > 0 || account->promised.objects > 0) return;
  assert(usage == TenantUsage() && account->kept.objects == 0);
  accounts_.erase(std::string(account->tenant));
}

bool TenantAccounts::IsWithin(const TenantAccount& account) {
  return Within(account.quota.max_bytes, account.usage.bytes + account.promised.bytes) &&
         Within(account.quota.max_objects, account.usage.objects + account.promised.objects);
}

bool TenantAccounts::CanBeWithin(const TenantAccount& account) {
  return Within(account.quota.max_bytes, account.kept.bytes + account.promised.bytes) &&
         Within(account.quota.max_objects, account.kept.objects + account.promised.objects);
}

bool TenantAccounts::FitsWithPins(const std::string& tenant, uint64_t bytes,
                                  uint64_t objects) const {
  const TenantQuota& quota = quotas_.Of(tenant);
  return Within(quota.max_bytes, UsageOf(tenant).pinned_bytes + bytes) &&
         Within(quota.max_objects, objects);
}

absl::Status TenantAccounts::NoRoom(const std::string& tenant, uint64_t bytes,
                                    uint64_t objects) const {
  const TenantQuota& quota = quotas_.Of(tenant);
  return absl::ResourceExhaustedError(absl::StrCat(
      "quota: ", bytes, " bytes in ", objects, " objects do not fit in the tenant's quota of ",
      quota.max_bytes, " bytes and ", quota.max_objects,
      " objects (0: no limit), because entries that are pinned or in use stay"));
}

bool TenantAccounts::MayPin(const std::string& tenant, uint64_t more_bytes) const {
  return Within(quotas_.Of(tenant).max_pinned_bytes, UsageOf(tenant).pinned_bytes + more_bytes);
}

bool TenantAccounts::IsAboveFloor(const TenantAccount& account, uint64_t bytes) {
  const uint64_t floor = account.quota.floor_bytes;
  return floor == 0 || account.usage.bytes >= floor + bytes;
}

uint64_t TenantAccounts::GuaranteedBytes(const std::string& tenant) const {
  uint64_t sum = 0;
  for (const auto& [name, quota] : quotas_.by_tenant) {
    if (name == tenant || quota.floor_bytes == 0) continue;
    const TenantUsage usage = UsageOf(name);
    const uint64_t guaranteed = std::min(usage.bytes, quota.floor_bytes);
    sum += guaranteed - std::min(guaranteed, usage.pinned_bytes);
  }
  return sum;
}

TenantUsage TenantAccounts::UsageOf(const std::string& tenant) const {
  const auto it = accounts_.find(tenant);
  return it == accounts_.end() ? TenantUsage{} : it->second->usage;
}

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
  return absl::InvalidArgumentError(
      absl::StrCat("tenants.*.max_pinned_bytes: the sum over all tenants, without their "
                   "floor_bytes, must be at most ",
                   room.bytes, " bytes; got ", room.shares_bytes));
}

absl::Status MayPin(const TenantQuotas& quotas, const TenantAccounts& accounts, const PinRoom& room,
                    uint64_t pinned_bytes, const std::string& tenant, uint64_t more_bytes) {
  const uint64_t own = accounts.UsageOf(tenant).pinned_bytes;
  if (!accounts.MayPin(tenant, more_bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "quota: a pin of ", more_bytes, " bytes in addition to the tenant's ", own,
        " pinned bytes would exceed max_pinned_bytes, ", quotas.Of(tenant).max_pinned_bytes));
  }
  uint64_t taken = pinned_bytes;
  uint64_t share = 0;
  for (const auto& [name, quota] : quotas.by_tenant) {
    if (name == tenant) share = ShareOf(quota);
    taken -= std::min(accounts.UsageOf(name).pinned_bytes, ShareOf(quota));
  }
  const uint64_t beyond = Above(share, own + more_bytes) - Above(share, own);
  if (beyond == 0 || taken + beyond <= room.common_bytes()) return absl::OkStatus();
  // Other tenants may have used the pinned bytes that all tenants share.
  return absl::ResourceExhaustedError(
      absl::StrCat("pinning ", more_bytes, " bytes more would exceed the ", room.common_bytes(),
                   " bytes that all tenants without a max_pinned_bytes may pin together"));
}

}  // namespace hearth
