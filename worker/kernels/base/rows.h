// Rows of floats in memory, `stride` floats from one to the next. Views: they own nothing.
#ifndef HEARTH_WORKER_KERNELS_BASE_ROWS_H_
#define HEARTH_WORKER_KERNELS_BASE_ROWS_H_

#include <cstdint>

namespace hearth {

struct ConstRows {
  const float* data = nullptr;
  int64_t rows = 0, stride = 0;

  const float* Row(int64_t row) const { return data + row * stride; }
};

struct Rows {
  float* data = nullptr;
  int64_t rows = 0, stride = 0;

  float* Row(int64_t row) const { return data + row * stride; }
};

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_BASE_ROWS_H_
