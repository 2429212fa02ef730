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

// Shapes of the five products of a step.
struct ProductChoice {
  int qkv = 0, out = 0, gate_up = 0, down = 0, head = 0;
};

// REQUIRES: rows >= 1.
int ChooseProduct(int rows, const DeviceMatrix& matrix, bool is_pair, int processors);

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_PRODUCT_CHOICE_H_
