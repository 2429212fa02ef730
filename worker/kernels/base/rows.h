// Matrices of floats in memory. ConstRows, Rows and PackedRows are views and do not own the memory.
#ifndef HEARTH_WORKER_KERNELS_BASE_ROWS_H_
#define HEARTH_WORKER_KERNELS_BASE_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hearth {

// Row r begins at data + r * stride (in floats).
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

// A matrix [rows][columns] that owns its memory.
struct OwnedRows {
  OwnedRows(int64_t rows, int64_t columns)
      : data(static_cast<size_t>(rows * columns)), view{data.data(), rows, columns} {}
  OwnedRows(const OwnedRows&) = delete;
  OwnedRows& operator=(const OwnedRows&) = delete;

  std::vector<float> data;
  Rows view;
};

// Rows packed into consecutive tiles for the product kernels; each tile is [input][row of the
// tile]. The number of registers limits the rows of a tile. The sizes of the tiles differ by at
// most one row.
struct PackedRows {
  const float* data = nullptr;
  int64_t rows = 0, tiles = 0;

  int64_t FirstRow(int64_t tile) const { return tile * rows / tiles; }
  int64_t TileOf(int64_t row) const { return ((row + 1) * tiles - 1) / rows; }
};

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_BASE_ROWS_H_
