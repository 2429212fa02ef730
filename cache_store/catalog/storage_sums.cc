#include "cache_store/catalog/storage_sums.h"

#include <cassert>
#include <tuple>

namespace hearth {

void StorageSums::UnreserveHost(uint64_t bytes) {
  assert(host_reserved_ >= bytes);
  host_reserved_ -= bytes;
}

void StorageSums::UnreserveDisk(uint64_t bytes) {
  assert(disk_reserved_ >= bytes);
  disk_reserved_ -= bytes;
}

void StorageSums::CountInTiers(const StoredObject& object, uint64_t times) {
  const uint64_t bytes = times * object.bytes();
  const bool is_pinned = object.pins > 0;
  const bool is_held = object.sessions > 0;
  if (object.in_host) {
    sums_.host_bytes += bytes;
    if (is_held || (is_pinned && !object.on_disk)) sums_.host_kept_bytes += bytes;
    if (is_held || !object.on_disk) sums_.host_fixed_bytes += bytes;
  }
  if (object.on_disk) {
    const uint64_t cost = times * object.disk_cost_bytes();
    sums_.disk_bytes += cost;
    sums_.disk_objects += times;
    if (is_held || is_pinned) sums_.disk_kept_bytes += cost;
  }
  if (is_pinned) sums_.pinned_bytes += bytes;
}

void StorageSums::Count(const StoredObject& object, uint64_t times) {
  CountInTiers(object, times);
  if (object.account == nullptr) return;
  const uint64_t bytes = times * object.bytes();
  const bool is_pinned = object.pins > 0;
  TenantAccount& account = *object.account;
  if (is_pinned) account.usage.pinned_bytes += bytes;
  if (object.names.count > 0) {
    account.usage.bytes += bytes;
    account.usage.objects += times;
    if (object.sessions == 0 && !is_pinned) return;
    account.kept.bytes += bytes;
    account.kept.objects += times;
  } else if (object.promised > 0) {
    account.promised.bytes += bytes;
    account.promised.objects += times;
  }
}

void StorageSums::Count(const RestorePointEntry& point, uint64_t times) {
  if (!point.durable) return;
  const uint64_t cost = times * point.manifest_cost_bytes;
  sums_.disk_bytes += cost;
  if (point.pinned || point.sessions > 0) sums_.disk_kept_bytes += cost;
}

bool StorageSums::SameInTiers(const StorageSums& other) const {
  const auto all = [](const Sums& sums) {
    return std::tie(sums.host_bytes, sums.host_kept_bytes, sums.host_fixed_bytes, sums.disk_bytes,
                    sums.disk_kept_bytes, sums.disk_objects, sums.pinned_bytes);
  };
  return all(sums_) == all(other.sums_);
}

}  // namespace hearth
