// A seeded model in a device's memory.
//
// Thread safety: as the device's.
#ifndef HEARTH_TESTS_SUPPORT_SEEDED_DEVICE_MODEL_H_
#define HEARTH_TESTS_SUPPORT_SEEDED_DEVICE_MODEL_H_

#include <functional>
#include <vector>

#include "tests/support/seeded_model.h"
#include "worker/device/device.h"
#include "worker/device/device_model.h"

namespace hearth {

// Rows of a stacked matrix that come from one tensor. A pair has two tensors, side by side.
struct SeededRows {
  SeededMatrix seeded;
  int outputs;
};
// Makes a matrix in the device's memory.
using MakeMatrix =
    std::function<DeviceMatrix(const std::vector<SeededRows>& rows, int inputs, bool is_pair)>;

// Computes the matrix on the CPU and copies it to the device.
DeviceMatrix MakeSeededMatrix(Device* device, const std::vector<SeededRows>& rows, int inputs,
                              bool is_pair);

// `positions`: length of the rotation tables.
DeviceModel MakeSeededModel(Device* device, const SeededGeometry& geometry, int split,
                            int positions, const MakeMatrix& make);

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_SEEDED_DEVICE_MODEL_H_
