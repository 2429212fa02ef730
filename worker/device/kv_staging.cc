#include "worker/device/kv_staging.h"

#include <algorithm>
#include <cassert>

namespace hearth {

bool KvStaging::Reserve(size_t count) {
  constexpr size_t kGrain = 64;  // blocks; so that a growing sequence seldom allocates
  assert(blocks() == 0);
  if (count <= capacity_) return true;
  if (memory_ != nullptr) device_->Free(memory_);
  memory_ = nullptr;
  for (const size_t capacity : {(count + kGrain - 1) / kGrain * kGrain, count}) {
    const size_t slices = 2 * capacity + static_cast<size_t>(shape_.LayersIn(true));
    memory_ = device_->Allocate(slices * static_cast<size_t>(shape_.SliceBytes()));
    capacity_ = memory_ == nullptr ? 0 : capacity;
    if (memory_ != nullptr) return true;
  }
  return false;
}

std::byte* KvStaging::AddOffloaded(const std::byte* block) {
  assert(offloaded_.size() < capacity_);
  const auto at = 2 * offloaded_.size() * static_cast<size_t>(shape_.SliceBytes());
  std::byte* const staged = static_cast<std::byte*>(memory_) + at;
  offloaded_.emplace_back(block, staged);
  return staged;
}

void KvStaging::BeforeAttention(int layer) {
  if (!shape_.is_global[static_cast<size_t>(layer)]) return;
  StartCopies(shape_.LayersBefore(layer) + 1);
}

// Starts the copies of global layer number `number`.
void KvStaging::StartCopies(int number) {
  if (number >= shape_.LayersIn(true)) return;
  const auto bytes = static_cast<size_t>(shape_.SliceBytes());
  const size_t offset = static_cast<size_t>(number) * bytes;
  for (const auto& [from, to] : offloaded_) {
    device_->Copy(CopyWay::kIn, to + offset, from + offset, {bytes});
  }
}

}  // namespace hearth
