// ProductChoice: which shape of ProductProgram computes a matrix for a number of rows. Bits do not
// depend on it.
//
// Thread safety: pure functions.
#ifndef HEARTH_WORKER_DEVICE_PRODUCT_CHOICE_H_
#define HEARTH_WORKER_DEVICE_PRODUCT_CHOICE_H_

#include "worker/device/product_program.h"

namespace hearth {

struct ShapeFacts {
  int rows, columns;  // of a block
  int warps;
  size_t shared_bytes;
  bool takes_pairs;
};
ShapeFacts FactsOf(int shape);
int ShapeCount();
// Blocks of a launch.
int BlocksOf(const ShapeFacts& facts, int rows, int columns);

// Shapes of the five products of a step.
struct ProductChoice {
  int qkv = 0, out = 0, gate_up = 0, down = 0, head = 0;
};

// `shared_bytes`: shared memory that a block may have. REQUIRES: rows >= 1; 50 KiB of it or more.
int ChooseProduct(int rows, const DeviceMatrix& matrix, bool is_pair, int processors,
                  size_t shared_bytes);

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_PRODUCT_CHOICE_H_
