// StoreTiers: the tiers of a store beside RAM, whose slices are the objects' (StoredObject::host),
// and RAM's memory. What is read from disk is compared with its length and digest here.
//
// Thread safe, as the tiers are. Ownership: owns all of them.
#ifndef HEARTH_CACHE_STORE_STORE_STORE_TIERS_H_
#define HEARTH_CACHE_STORE_STORE_STORE_TIERS_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "cache_store/base/slice_view.h"
#include "cache_store/base/tier.h"
#include "cache_store/catalog/stored_object.h"
#include "cache_store/disk/disk_tier.h"
#include "cache_store/memory/device_tier.h"
#include "cache_store/memory/host_arena.h"
#include "cache_store/store/options.h"
#include "cache_store/store/store_seams.h"

namespace hearth {

// An error with the tier's name.
inline absl::Status OfDisk(const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat("disk tier: ", status.message()));
}

struct StoreTiers {
  StoreTiers(const StoreOptions& options, const StoreSeams& seams,
             std::shared_ptr<HostArena> host_arena, std::unique_ptr<DiskTier> disk_tier);

  // Memory for a slice, from the arena if that has room.
  std::shared_ptr<std::byte> AllocateSlice(size_t bytes) const;
  // The same bytes where workers can map them, if that is worth a copy.
  SliceView InArena(const SliceView& slice) const;
  // A slice from disk, verified. kDataLoss: it is gone, or it is not the object's.
  absl::StatusOr<SliceView> ReadFromDisk(const StoredObject& object, size_t slice) const;
  // Whether all of these have a copy on the device.
  bool AreOnDevice(absl::Span<StoredObject* const> objects) const;

  const bool is_shared;                    // StoreOptions::shared_memory
  const uint64_t min_table_bytes;          // DiskTier::kMinTableBytes, or a test's
  const std::shared_ptr<HostArena> arena;  // null: no RAM tier
  const std::unique_ptr<DiskTier> disk;    // null: RAM only
  std::unique_ptr<SliceTier> wrapped_disk;
  SliceTier* disk_slices = nullptr;          // what is written to and erased
  const std::unique_ptr<DeviceTier> device;  // null: no gpu tier
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_STORE_STORE_TIERS_H_
