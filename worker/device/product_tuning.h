// Measures on a device which tilings of the matrix products are fastest, and whether launches of
// small steps should overlap. The choice affects only the speed; results are bit-identical.
//
// Thread safety: that of the DeviceStep.
#ifndef HEARTH_WORKER_DEVICE_PRODUCT_TUNING_H_
#define HEARTH_WORKER_DEVICE_PRODUCT_TUNING_H_

#include <limits>
#include <string>
#include <vector>

#include "worker/device/device.h"
#include "worker/device/device_model.h"
#include "worker/device/device_step.h"

namespace hearth {

struct TilingTime {
  double us;  // microseconds of one product, with its weights in no cache
  int tiling;
};

class ProductTuner {
 public:
  // The arguments must outlive the ProductTuner.
  ProductTuner(Device* device, const DeviceModel* model, DeviceStep* step)
      : device_(device), model_(model), step_(step) {}

  // Measures the tilings of a product that fit steps of `rows` rows. Returns the times, the fastest
  // first; empty if the device cannot measure.
  std::vector<TilingTime> TimesOf(StepProduct product, int rows);
  // Sets the fastest tilings for steps of 1, 2, 4, ... rows, and overlap for the small steps that
  // it makes faster. Measures for at most `us` microseconds on the device; choices after this time
  // stay as they are. Returns a sentence for the log; empty if the device cannot measure.
  std::string Tune(double us);

 private:
  bool TuneRows(int rows);
  void TuneOverlap();
  // Returns the shortest time of three runs, in microseconds. Before each run, `before` is called.
  double Time(const std::function<void()>& work, const std::function<void()>& before);

  Device* const device_;
  const DeviceModel* const model_;
  DeviceStep* const step_;
  double spent_us_ = 0, most_us_ = std::numeric_limits<double>::infinity();
  int measured_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_PRODUCT_TUNING_H_
