// Creates a seeded model (seeded_model.h) in the memory of a device.
//
// Thread safety: that of the device.
#ifndef HEARTH_TESTS_SUPPORT_SEEDED_DEVICE_MODEL_H_
#define HEARTH_TESTS_SUPPORT_SEEDED_DEVICE_MODEL_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "tests/support/seeded_model.h"
#include "worker/device/device.h"
#include "worker/device/device_model.h"

namespace hearth {

// Returns weights in the layout of a DeviceMatrix. `outputs`: number of outputs, for a pair of each
// matrix. fill(output, is_second, row) writes the `inputs` weights of one output to `row`;
// `is_second` selects the second matrix of a pair. REQUIRES: `inputs` is a multiple of 8; for a
// pair, `outputs` is a multiple of 8.
using FillRow = std::function<void(int output, bool is_second, uint16_t* row)>;
std::vector<uint16_t> PackColumns(int inputs, int outputs, bool is_pair, const FillRow& fill);

// The rows of a stacked matrix that come from one tensor. If the matrix is a pair, its two tensors
// are side by side.
struct SeededRows {
  SeededMatrix seeded;
  int outputs;
};
// A function that creates a matrix in the memory of a device.
using MakeMatrix =
    std::function<DeviceMatrix(const std::vector<SeededRows>& rows, int inputs, bool is_pair)>;

// Computes a matrix on the CPU and copies it to the device.
DeviceMatrix MakeSeededMatrix(Device* device, const std::vector<SeededRows>& rows, int inputs,
                              bool is_pair);

// Creates the model. `positions`: number of positions in the tables of rotary embeddings.
DeviceModel MakeSeededModel(Device* device, const SeededGeometry& geometry, int split,
                            int positions, const MakeMatrix& make);

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_SEEDED_DEVICE_MODEL_H_
