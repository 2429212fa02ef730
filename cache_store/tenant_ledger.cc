#include "cache_store/tenant_ledger.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

bool Within(uint64_t limit, uint64_t value) { return limit == 0 || value <= limit; }

}  // namespace

absl::Status TenantQuotas::Validate(uint64_t capacity_bytes) const {
  if (others.floor_bytes != 0) {
    return absl::InvalidArgumentError(
        "default.floor_bytes: a guarantee must name its tenant, since their number has no limit");
  }
  uint64_t floors = 0;
  for (const auto& [tenant, quota] : by_tenant) {
    if (!Within(quota.max_bytes, quota.floor_bytes)) {
      return absl::InvalidArgumentError(absl::StrCat("tenants.", tenant,
                                                     ".floor_bytes: ", quota.floor_bytes,
                                                     " is above its max_bytes, ", quota.max_bytes));
    }
    if (quota.floor_bytes > capacity_bytes - floors) {
      return absl::InvalidArgumentError(
          absl::StrCat("tenants.", tenant, ".floor_bytes: all floors together are above the ",
                       capacity_bytes, " bytes that the store keeps"));
    }
    floors += quota.floor_bytes;
  }
  return absl::OkStatus();
}

void TenantLedger::Settle(const std::string& tenant) {
  const auto it = accounts_.find(tenant);
  if (it == accounts_.end()) return;
  const Account& account = it->second;
  if (account.usage.restore_points == 0 && account.usage.objects == 0 &&
      account.usage.pinned_bytes == 0 && account.reserved_objects == 0) {
    accounts_.erase(it);
  }
}

void TenantLedger::RemovePoint(const std::string& tenant) {
  assert(accounts_[tenant].usage.restore_points > 0);
  --accounts_[tenant].usage.restore_points;
  Settle(tenant);
}

void TenantLedger::AddObject(const std::string& tenant, uint64_t bytes) {
  TenantUsage& usage = accounts_[tenant].usage;
  ++usage.objects;
  usage.bytes += bytes;
}

void TenantLedger::RemoveObject(const std::string& tenant, uint64_t bytes) {
  TenantUsage& usage = accounts_[tenant].usage;
  assert(usage.objects > 0 && usage.bytes >= bytes);
  --usage.objects;
  usage.bytes -= bytes;
  Settle(tenant);
}

void TenantLedger::AddPinned(const std::string& tenant, uint64_t bytes) {
  accounts_[tenant].usage.pinned_bytes += bytes;
}

void TenantLedger::RemovePinned(const std::string& tenant, uint64_t bytes) {
  assert(accounts_[tenant].usage.pinned_bytes >= bytes);
  accounts_[tenant].usage.pinned_bytes -= bytes;
  Settle(tenant);
}

void TenantLedger::Reserve(const std::string& tenant, uint64_t bytes, uint64_t objects) {
  if (objects == 0) return;
  accounts_[tenant].reserved_bytes += bytes;
  accounts_[tenant].reserved_objects += objects;
}

void TenantLedger::Unreserve(const std::string& tenant, uint64_t bytes, uint64_t objects) {
  if (objects == 0) return;
  Account& account = accounts_[tenant];
  assert(account.reserved_bytes >= bytes && account.reserved_objects >= objects);
  account.reserved_bytes -= bytes;
  account.reserved_objects -= objects;
  Settle(tenant);
}

bool TenantLedger::Fits(const std::string& tenant, uint64_t bytes, uint64_t objects) const {
  return WouldFit(tenant, UsageOf(tenant), bytes, objects);
}

bool TenantLedger::WouldFit(const std::string& tenant, const TenantUsage& kept, uint64_t bytes,
                            uint64_t objects) const {
  const auto it = accounts_.find(tenant);
  const Account account = it == accounts_.end() ? Account{} : it->second;
  const TenantQuota& quota = quotas_.Of(tenant);
  return Within(quota.max_bytes, kept.bytes + account.reserved_bytes + bytes) &&
         Within(quota.max_objects, kept.objects + account.reserved_objects + objects);
}

bool TenantLedger::MayPin(const std::string& tenant, uint64_t more_bytes) const {
  return Within(quotas_.Of(tenant).max_pinned_bytes, UsageOf(tenant).pinned_bytes + more_bytes);
}

bool TenantLedger::IsAboveFloor(const std::string& tenant, uint64_t bytes) const {
  const uint64_t floor = quotas_.Of(tenant).floor_bytes;
  return floor == 0 || UsageOf(tenant).bytes >= floor + bytes;
}

uint64_t TenantLedger::GuaranteedBytes(const std::string& tenant) const {
  uint64_t sum = 0;
  for (const auto& [name, quota] : quotas_.by_tenant) {
    if (name == tenant) continue;
    const TenantUsage usage = UsageOf(name);
    const uint64_t guaranteed = std::min(usage.bytes, quota.floor_bytes);
    sum += guaranteed - std::min(guaranteed, usage.pinned_bytes);
  }
  return sum;
}

TenantUsage TenantLedger::UsageOf(const std::string& tenant) const {
  const auto it = accounts_.find(tenant);
  return it == accounts_.end() ? TenantUsage{} : it->second.usage;
}

}  // namespace hearth
