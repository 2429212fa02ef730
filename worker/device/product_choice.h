// ProductChoice: the shape of ProductProgram for a matrix and a number of rows. The choice changes
// no bit.
//
// Thread safety: pure functions.
#ifndef HEARTH_WORKER_DEVICE_PRODUCT_CHOICE_H_
#define HEARTH_WORKER_DEVICE_PRODUCT_CHOICE_H_

#include "worker/device/product_program.h"

namespace hearth {

struct ShapeFacts {
  int rows, columns;  // of a block's outputs
  int warps;
  size_t shared_bytes;
  bool takes_pairs;
};
ShapeFacts FactsOf(int shape);
int ShapeCount();
// Returns the number of blocks of a launch.
int BlocksOf(const ShapeFacts& facts, int rows, int columns);

// The shapes of the five products of a step.
struct ProductChoice {
  int qkv = 0, out = 0, gate_up = 0, down = 0, head = 0;
};

// Returns the shape for a product. `shared_bytes`: the most shared memory of a block. REQUIRES:
// rows >= 1; shared_bytes >= 50 KiB.
int ChooseProduct(int rows, const DeviceMatrix& matrix, bool is_pair, int processors,
                  size_t shared_bytes);

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_PRODUCT_CHOICE_H_
