// OwnedRows: rows with memory of their own, for what lives as long as a list that has them.
#ifndef HEARTH_WORKER_KERNELS_BASE_OWNED_ROWS_H_
#define HEARTH_WORKER_KERNELS_BASE_OWNED_ROWS_H_

#include <cstdint>
#include <vector>

#include "worker/kernels/base/rows.h"

namespace hearth {

struct OwnedRows {
  OwnedRows(int64_t rows, int64_t columns)
      : data(static_cast<size_t>(rows * columns)), view{data.data(), rows, columns} {}
  OwnedRows(const OwnedRows&) = delete;
  OwnedRows& operator=(const OwnedRows&) = delete;

  std::vector<float> data;
  Rows view;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_BASE_OWNED_ROWS_H_
