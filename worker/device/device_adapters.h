// DeviceAdapters: the matrices of LoRA adapters in device memory, and the launches that add their
// products to the matrix products of a step (adapter_program.h).
//
// Thread safety: none. The device and the shape must outlive the DeviceAdapters.
// Errors: if the device has too little memory, device->error() is set.
#ifndef HEARTH_WORKER_DEVICE_DEVICE_ADAPTERS_H_
#define HEARTH_WORKER_DEVICE_DEVICE_ADAPTERS_H_

#include <vector>

#include "absl/types/span.h"
#include "worker/device/adapter_program.h"
#include "worker/device/device.h"
#include "worker/device/device_model.h"
#include "worker/device/product_choice.h"
#include "worker/kernels/layer.h"

namespace hearth {

class DeviceAdapters {
 public:
  static constexpr int kProducts = kHead;  // the products of a layer

  // `rows`: maximum rows of a step.
  DeviceAdapters(Device* device, const DeviceShape* shape, int rows)
      : device_(device), arena_(device), shape_(shape), rows_(rows) {}

  // Copies an adapter to the device; returns its number. Addresses change, so graphs that were
  // captured before must not be replayed. REQUIRES: one AdapterLayer for each layer of the shape.
  int Add(absl::Span<const AdapterLayer> layers);
  // Returns whether any adapter changes the product.
  bool Changes(StepProduct product) const { return most_ranks_[product] > 0; }
  // Buffer for the products of a step with the pair of matrices gate and up:
  // [rows][PaddedColumns(2 * intermediate)].
  float* pairs() const { return pairs_; }

  // The rows of a launch, and the maximum number of runs of a tile (LowRankArguments).
  struct LaunchRows {
    const StepTable& table;
    int rows, runs;
  };
  // Adds the products with the adapters. x: [rows][inputs of the product]. y: the results of the
  // matrix product, [rows][its outputs]; for kGateUp, the output of the gated GELU of pairs().
  void Launch(const LaunchRows& rows, int layer, StepProduct product, const float* x,
              float* y) const;

 private:
  struct Sizes {
    int inputs, outputs, columns;
  };
  Sizes SizesOf(StepProduct product) const;
  DeviceLowRank Upload(absl::Span<const LowRank* const> pairs, StepProduct product);
  template <typename T>
  const T* Copy(const std::vector<T>& from);

  Device* const device_;
  DeviceArena arena_;
  const DeviceShape* const shape_;
  const int rows_;
  std::vector<DeviceLowRank> products_;  // [adapters][layers][kProducts]
  const DeviceLowRank* device_products_ = nullptr;
  int most_ranks_[kProducts] = {};  // maximum of DeviceLowRank::ranks
  int inner_stride_ = 0;
  float *inner_ = nullptr, *pairs_ = nullptr;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_DEVICE_ADAPTERS_H_
