// PackedRows: rows of x as the product's tiles read them. Private to worker/kernels.
//
// Tiles are as equal as can be, at most so large as a target has registers for; each is
// [input][row of the tile], and they lie one after the other. A view: it owns nothing.
#ifndef HEARTH_WORKER_KERNELS_BASE_PACKED_ROWS_H_
#define HEARTH_WORKER_KERNELS_BASE_PACKED_ROWS_H_

#include <cstdint>

namespace hearth {

struct PackedRows {
  const float* data = nullptr;
  int64_t rows = 0, tiles = 0;

  int64_t FirstRow(int64_t tile) const { return tile * rows / tiles; }
  int64_t TileOf(int64_t row) const { return ((row + 1) * tiles - 1) / rows; }
};

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_BASE_PACKED_ROWS_H_
