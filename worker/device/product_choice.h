// ProductChoice: selects the tile shape of ProductProgram for a matrix and a number of rows. The
// selection affects only the speed; results are bit-identical.
//
// Thread safety: pure functions.
#ifndef HEARTH_WORKER_DEVICE_PRODUCT_CHOICE_H_
#define HEARTH_WORKER_DEVICE_PRODUCT_CHOICE_H_

#include "worker/device/product_program.h"

namespace hearth {

struct ShapeFacts {
  int rows, columns;  // rows and columns of the outputs that one thread block computes
  size_t shared_bytes;
  bool takes_pairs;
};
ShapeFacts FactsOf(int shape);
int ShapeCount();
// Returns the number of thread blocks of a launch.
int BlocksOf(const ShapeFacts& facts, int rows, int columns);

// The shape numbers (index in ProductTilings) of the five matrix products of a step.
struct ProductChoice {
  int qkv = 0, out = 0, gate_up = 0, down = 0, head = 0;
};

// Returns the number of the shape for a matrix product (index in ProductTilings). `shared_bytes`:
// maximum shared memory of a thread block. REQUIRES: rows >= 1; shared_bytes >= 50 KiB.
int ChooseProduct(int rows, const DeviceMatrix& matrix, bool is_pair, int processors,
                  size_t shared_bytes);

// Products in bfloat16: returns the number of the tiling (index in Bf16Tilings) for `rows` rows,
// and the rows and columns of its thread blocks.
int ChooseBf16Product(int rows);
ShapeFacts Bf16FactsOf(int tiling);

// Integer products: returns the number of the tiling (index in IntegerTilings) for `rows` rows and
// a matrix with `columns` columns, and the rows and columns of its thread blocks.
int ChooseIntegerProduct(int rows, int columns, int processors);
ShapeFacts IntegerFactsOf(int tiling);

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_PRODUCT_CHOICE_H_
