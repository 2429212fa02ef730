// ProductChoice: selects the tile shape of ProductProgram for a matrix and a number of rows. The
// selection affects only the speed; results are bit-identical.
//
// Thread safety: pure functions.
#ifndef HEARTH_WORKER_DEVICE_PRODUCT_CHOICE_H_
#define HEARTH_WORKER_DEVICE_PRODUCT_CHOICE_H_

#include <array>
#include <cstddef>

#include "worker/device/program_list.h"

namespace hearth {

struct ShapeFacts {
  int rows, columns;  // rows and columns of the outputs that one thread block computes
  size_t shared_bytes;
  bool takes_pairs;
};
ShapeFacts FactsOf(ProductKind kind, int tiling);
// Returns the number of thread blocks of a launch.
int BlocksOf(const ShapeFacts& facts, int rows, int columns);

// The five matrix products of a step, and the number of the tiling of each (index in the tilings of
// a ProductKind).
enum StepProduct { kQkv, kOut, kGateUp, kDown, kHead };
inline constexpr int kStepProducts = 5;
using ProductChoice = std::array<int, kStepProducts>;

// Returns the number of the tiling for a product, without measurements.
int ChooseTiling(ProductKind kind, int rows, const DeviceMatrix& matrix, bool is_pair,
                 int processors, size_t shared_bytes);

// Returns the number of the shape for a matrix product (index in ProductTilings). `shared_bytes`:
// maximum shared memory of a thread block. REQUIRES: rows >= 1; shared_bytes >= 50 KiB.
int ChooseProduct(int rows, const DeviceMatrix& matrix, bool is_pair, int processors,
                  size_t shared_bytes);

// Products in bfloat16: returns the number of the tiling (index in Bf16Tilings) for `rows` rows.
int ChooseBf16Product(int rows);

inline ShapeFacts FactsOf(int shape) { return FactsOf(ProductKind::kFloat, shape); }
inline ShapeFacts Bf16FactsOf(int tiling) { return FactsOf(ProductKind::kBf16, tiling); }
inline int ShapeCount() { return TilingCount(ProductKind::kFloat); }

// Integer products: returns the number of the tiling (index in IntegerTilings) for `rows` rows and
// a matrix with `columns` columns, and the rows and columns of its thread blocks.
int ChooseIntegerProduct(int rows, int columns, int processors);
inline ShapeFacts IntegerFactsOf(int tiling) { return FactsOf(ProductKind::kInteger, tiling); }

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_PRODUCT_CHOICE_H_
