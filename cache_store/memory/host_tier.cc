#include "cache_store/memory/host_tier.h"

#include <cassert>

#include "absl/strings/str_cat.h"

namespace hearth {

absl::StatusOr<std::optional<SliceView>> HostTier::Read(const StoredSlice& slice) {
  absl::MutexLock lock(&mu_);
  const auto it = slices_.find(slice.object);
  if (it == slices_.end()) return std::nullopt;
  for (const auto& [layer, view] : it->second) {
    if (layer == slice.layer) return view;
  }
  return std::nullopt;
}

absl::Status HostTier::Write(const StoredSlice& slice, SliceView view) {
  SliceView replaced;  // destroyed after the lock
  absl::MutexLock lock(&mu_);
  uint64_t old_bytes = 0;
  SliceView* place = nullptr;
  const auto it = slices_.find(slice.object);
  if (it != slices_.end()) {
    for (auto& [layer, held] : it->second) {
      if (layer != slice.layer) continue;
      place = &held;
      old_bytes = held.bytes.size();
    }
  }
  assert(bytes_ >= old_bytes && bytes_ <= capacity_bytes_);
  if (view.bytes.size() > capacity_bytes_ - (bytes_ - old_bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("host tier full: ", bytes_, " of ", capacity_bytes_, " bytes used"));
  }
  bytes_ = bytes_ - old_bytes + view.bytes.size();
  if (place != nullptr) {
    replaced = std::exchange(*place, std::move(view));
  } else {
    slices_[slice.object].emplace_back(slice.layer, std::move(view));
  }
  return absl::OkStatus();
}

absl::Status HostTier::EraseObjects(absl::Span<const uint64_t> objects) {
  absl::MutexLock lock(&mu_);
  for (const uint64_t object : objects) {
    const auto it = slices_.find(object);
    if (it == slices_.end()) continue;
    for (const auto& [layer, view] : it->second) {
      assert(bytes_ >= view.bytes.size());
      bytes_ -= view.bytes.size();
    }
    erased_.push_back(std::move(it->second));
    slices_.erase(it);
  }
  return absl::OkStatus();
}

void HostTier::Reap() {
  std::vector<LayerSlices> erased;
  {
    absl::MutexLock lock(&mu_);
    erased.swap(erased_);
  }
}

uint64_t HostTier::bytes() const {
  absl::MutexLock lock(&mu_);
  return bytes_;
}

uint64_t HostTier::objects() const {
  absl::MutexLock lock(&mu_);
  return slices_.size();
}

}  // namespace hearth
