// A seeded model in a device's memory.
//
// Thread safety: as the device.
#ifndef HEARTH_TESTS_SUPPORT_SEEDED_DEVICE_MODEL_H_
#define HEARTH_TESTS_SUPPORT_SEEDED_DEVICE_MODEL_H_

#include <functional>
#include <vector>

#include "tests/support/seeded_model.h"
#include "worker/device/device.h"
#include "worker/device/device_model.h"

namespace hearth {

// Outputs of a stacked matrix that are one tensor's; of a pair there are two, side by side.
struct SeededRows {
  SeededMatrix seeded;
  int outputs;
};
// Makes a matrix in the device's memory.
using MakeMatrix =
    std::function<DeviceMatrix(const std::vector<SeededRows>& rows, int inputs, bool is_pair)>;

// On the CPU, and copies it.
DeviceMatrix MakeSeededMatrix(Device* device, const std::vector<SeededRows>& rows, int inputs,
                              bool is_pair);

// `positions`: of the rotations.
DeviceModel MakeSeededModel(Device* device, const SeededGeometry& geometry, int split,
                            int positions, const MakeMatrix& make);

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_SEEDED_DEVICE_MODEL_H_
