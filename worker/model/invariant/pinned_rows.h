// PinnedRows: allocates the host memory to which a device copies the logits of a step. Released
// memory is kept and reused, because pinning memory takes longer than a copy.
//
// Thread safety: Take by one thread at a time; the memory may be released by any thread.
// Ownership: shares ownership of the device; each memory shares ownership of the PinnedRows.
#ifndef HEARTH_WORKER_MODEL_INVARIANT_PINNED_ROWS_H_
#define HEARTH_WORKER_MODEL_INVARIANT_PINNED_ROWS_H_

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "worker/device/device.h"

namespace hearth {

class PinnedRows : public std::enable_shared_from_this<PinnedRows> {
 public:
  explicit PinnedRows(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  PinnedRows(const PinnedRows&) = delete;
  PinnedRows& operator=(const PinnedRows&) = delete;
  ~PinnedRows() {
    for (const auto& [floats, free] : free_) {
      for (float* memory : free) device_->FreeHost(memory);
    }
  }

  // Returns memory for `rows` rows of `columns` floats with undefined content, or null if there is
  // too little memory. The number of rows is rounded up to a power of two, so that steps of
  // different sizes use the same memory.
  std::shared_ptr<float[]> Take(size_t rows, size_t columns) {
    size_t rounded = 1;
    while (rounded < rows) rounded *= 2;
    const size_t floats = rounded * columns;
    float* memory = TakeFree(floats);
    if (memory == nullptr) {
      memory = static_cast<float*>(device_->AllocateHost(floats * sizeof(float)));
    }
    if (memory == nullptr) return nullptr;
    return {memory, [self = shared_from_this(), floats](float* released) {
              const std::lock_guard<std::mutex> lock(self->mu_);
              self->free_[floats].push_back(released);
            }};
  }

 private:
  float* TakeFree(size_t floats) {
    const std::lock_guard<std::mutex> lock(mu_);
    std::vector<float*>& free = free_[floats];
    if (free.empty()) return nullptr;
    float* const memory = free.back();
    free.pop_back();
    return memory;
  }

  const std::shared_ptr<Device> device_;
  std::mutex mu_;
  std::map<size_t, std::vector<float*>> free_;  // released memory, by size in floats
};

}  // namespace hearth

#endif  // HEARTH_WORKER_MODEL_INVARIANT_PINNED_ROWS_H_
