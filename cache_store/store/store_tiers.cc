#include "cache_store/store/store_tiers.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace hearth {
namespace {

std::unique_ptr<DeviceTier> DeviceOf(const StoreOptions& options) {
  if (options.device == nullptr) return nullptr;
  return std::make_unique<DeviceTier>(options.device, options.on_device_lost,
                                      options.shared_memory);
}

}  // namespace

StoreTiers::StoreTiers(const StoreOptions& options, const StoreSeams& seams,
                       std::shared_ptr<HostArena> host_arena, std::unique_ptr<DiskTier> disk_tier)
    : is_shared(options.shared_memory),
      min_table_bytes(seams.min_table_bytes),
      arena(std::move(host_arena)),
      disk(std::move(disk_tier)),
      device(DeviceOf(options)) {
  if (disk == nullptr) return;
  disk_slices = disk.get();
  if (seams.wrap_disk) disk_slices = (wrapped_disk = seams.wrap_disk(disk_slices)).get();
}

std::shared_ptr<std::byte> StoreTiers::AllocateSlice(size_t bytes) const {
  std::shared_ptr<std::byte> memory;
  if (arena != nullptr) memory = arena->Allocate(bytes);
  return memory != nullptr ? memory : hearth::AllocateSlice(bytes);
}

SliceView StoreTiers::InArena(const SliceView& slice) const {
  if (!is_shared || arena == nullptr) return slice;
  std::shared_ptr<std::byte> memory = arena->Allocate(slice.bytes.size());
  if (memory == nullptr) return slice;
  std::memcpy(memory.get(), slice.bytes.data(), slice.bytes.size());
  const absl::Span<const std::byte> bytes(memory.get(), slice.bytes.size());
  return SliceView{std::move(memory), bytes};
}

absl::StatusOr<SliceView> StoreTiers::ReadFromDisk(const StoredObject& object, size_t slice) const {
  const absl::StatusOr<std::optional<SliceView>> read = disk_slices->Read(object.Slice(slice));
  if (!read.ok()) return OfDisk(read.status());
  const bool is_gone = !read->has_value();
  if (!is_gone && object.IsIntact(slice, **read)) return **read;
  return absl::DataLossError(absl::StrCat("disk tier: a slice of layer ", object.layers[slice],
                                          is_gone ? " is gone" : " is not what was written"));
}

bool StoreTiers::AreOnDevice(absl::Span<StoredObject* const> objects) const {
  return device != nullptr && !objects.empty() &&
         std::all_of(objects.begin(), objects.end(),
                     [this](StoredObject* object) { return device->Has(object->number); });
}

}  // namespace hearth
