// The overlap of launches that ProductTuner chooses, on a device with prescribed times.
#include "worker/device/product_tuning.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>

#include "tests/support/seeded_device_model.h"
#include "worker/device/device_step.h"
#include "worker/device/emulated_device.h"

namespace hearth {
namespace {

// Times are given and nothing is run: work takes 2 us, or `overlapped_us` if launches may overlap.
class TimedDevice : public EmulatedDevice {
 public:
  void Launch(int /*program*/, const void* /*arguments*/, int /*blocks*/) override {}
  void SetOverlap(bool overlap) override {
    if (spent_before_overlap < 0) spent_before_overlap = spent_;
    overlaps_ = overlap;
  }
  double Time(const std::function<void()>& work) override {
    work();
    const double us = overlaps_ ? overlapped_us : 2;
    spent_ += us;
    return us;
  }
  double overlapped_us = 1;
  double spent_before_overlap = -1;  // time spent until the first step; negative: no step has run

 private:
  bool overlaps_ = false;
  double spent_ = 0;
};

struct Tuned {
  int overlap_rows;
  double spent_before_overlap;
};
Tuned Tune(double us, double overlapped_us) {
  TimedDevice device;
  device.overlapped_us = overlapped_us;
  const SeededGeometry geometry = {"tiny", "lg", 24, 4, 1, 32, 40, 72, 150, 512};
  const DeviceModel model =
      MakeSeededModel(&device, geometry, /*split=*/32, /*positions=*/64,
                      [&](const auto& rows, int inputs, bool is_pair) {
                        return MakeSeededMatrix(&device, rows, inputs, is_pair);
                      });
  DeviceStep step(&device, &model, {64, 32, 64, 128});
  EXPECT_EQ(step.overlap_rows(), 8);
  EXPECT_NE(ProductTuner(&device, &model, &step).Tune(us), "");
  return {step.overlap_rows(), device.spent_before_overlap};
}

TEST(ProductTuner, FasterOverlapIsChosenForMeasuredSteps) {
  const Tuned faster = Tune(1e9, 1);
  EXPECT_EQ(faster.overlap_rows, 32);
  EXPECT_EQ(Tune(1e9, 3).overlap_rows, 0);
  // Each row count costs 3 runs of 2 us and 3 runs of 1 us. The time ends with the last product,
  // then after the measurements of 1 row, and after those of 16 rows.
  const double before = faster.spent_before_overlap;
  EXPECT_EQ(Tune(before - 1, 1).overlap_rows, 8);
  EXPECT_EQ(Tune(before + 1, 1).overlap_rows, 8);
  EXPECT_EQ(Tune(before + 4 * 9 + 1, 1).overlap_rows, 16);
  EXPECT_EQ(Tune(before + 1, 3).overlap_rows, 0);
}

}  // namespace
}  // namespace hearth
