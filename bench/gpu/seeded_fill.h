// Makes a matrix of seeded weights (tests/support/seeded_model.h) in a GPU's memory, by the GPU.
#ifndef HEARTH_BENCH_GPU_SEEDED_FILL_H_
#define HEARTH_BENCH_GPU_SEEDED_FILL_H_

#include <vector>

#include "tests/support/seeded_device_model.h"
#include "worker/device/cuda_device.h"

namespace hearth {

DeviceMatrix FillSeededMatrix(CudaDevice* device, const std::vector<SeededRows>& rows, int inputs,
                              bool is_pair);

}  // namespace hearth

#endif  // HEARTH_BENCH_GPU_SEEDED_FILL_H_
