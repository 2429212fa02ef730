// How the catalog makes room. Both tiers follow one order (lru_order.h); they differ in what leaving
// means: from RAM, a restore point that is whole on disk is demoted, which loses nothing; from the
// store, it is removed.
#include <cassert>

#include "cache_store/catalog.h"

namespace hearth {

bool Catalog::ReserveHost(uint64_t bytes) {
  if (bytes > limits_.host_bytes) return false;
  while (host_bytes() > limits_.host_bytes - bytes) {
    if (!EvictOneForHost()) return false;
  }
  host_reserved_ += bytes;
  return true;
}

bool Catalog::ReserveDisk(uint64_t bytes) {
  if (bytes > limits_.disk_bytes) return false;
  while (disk_bytes() > limits_.disk_bytes - bytes) {
    if (!EvictOneForDisk()) return false;
  }
  disk_reserved_ += bytes;
  return true;
}

void Catalog::UnreserveHost(uint64_t bytes) {
  assert(host_reserved_ >= bytes);
  host_reserved_ -= bytes;
}

void Catalog::UnreserveDisk(uint64_t bytes) {
  assert(disk_reserved_ >= bytes);
  disk_reserved_ -= bytes;
}

bool Catalog::EvictOneForHost() {
  for (const auto& [rank, point] : lru_) {
    if (point->sessions > 0) continue;
    bool whole_on_disk = true;
    uint64_t demotable_bytes = 0, removable_bytes = 0;
    for (const StoredObject* object : point->objects) {
      if (!object->on_disk) whole_on_disk = false;
      if (!object->in_host || object->sessions > 0) continue;
      if (object->host_restore_points == 1 && object->on_disk) demotable_bytes += object->bytes();
      if (object->restore_points == 1) removable_bytes += object->bytes();
    }
    if (whole_on_disk) {
      if (!point->in_host || demotable_bytes == 0) continue;
      Demote(point);
      return true;
    }
    if (point->pinned || removable_bytes == 0) continue;
    Remove(point, Why::kEvicted);
    return true;
  }
  return false;
}

bool Catalog::EvictOneForDisk() {
  for (const auto& [rank, point] : lru_) {
    if (point->sessions > 0 || point->pinned) continue;
    uint64_t removable_bytes = 0;
    for (const StoredObject* object : point->objects) {
      if (object->on_disk && object->sessions == 0 && object->restore_points == 1) {
        removable_bytes += object->disk_cost_bytes();
      }
    }
    // One that shares all it has costs nothing to keep, and going would free nothing.
    if (removable_bytes == 0) continue;
    Remove(point, Why::kEvicted);
    return true;
  }
  return false;
}

void Catalog::Demote(RestorePointEntry* point) {
  if (!point->in_host) return;
  point->in_host = false;
  ++demoted_;
  for (StoredObject* object : point->objects) {
    --object->host_restore_points;
    if (object->host_restore_points == 0 && object->sessions == 0 && object->on_disk) {
      DropHostCopy(object);
    }
  }
}

}  // namespace hearth
