// Random weights for product tests, and the expected products.
#ifndef HEARTH_TESTS_WORKER_MODEL_WEIGHTS_KIT_H_
#define HEARTH_TESTS_WORKER_MODEL_WEIGHTS_KIT_H_

#include <cstddef>
#include <cstring>
#include <vector>

#include "tests/worker/kernels/kernel_kit.h"
#include "worker/kernels/packed_weights.h"
#include "worker/kernels/quantized/weight_blocks.h"
#include "worker/kernels/reference.h"

namespace hearth {

struct ProductShape {
  int64_t outputs, inputs;
};

inline std::vector<std::byte> StoredBlocks(const ProductShape& shape, ElementType type,
                                           Numbers* numbers) {
  std::vector<std::byte> stored(static_cast<size_t>(shape.outputs) * RowBytes(type, shape.inputs));
  for (std::byte& byte : stored) byte = static_cast<std::byte>(numbers->Next());
  const BlockHalves halves = HalvesOf(type);
  const size_t bytes = FormOf(type).bytes;
  for (size_t block = 0; block < stored.size(); block += bytes) {
    // scales of both signs, below 1 in magnitude
    for (int64_t half = 0; half < halves.count; ++half) {
      const uint16_t bits = numbers->Next() & 0xbbff;
      std::memcpy(stored.data() + block + halves.at + 2 * half, &bits, sizeof bits);
    }
  }
  return stored;
}

// Returns random weights of any type in the layout of a checkpoint: [outputs][inputs]. Some float16
// values are subnormal. Quantized blocks are random bits with finite scales.
inline std::vector<std::byte> StoredWeights(const ProductShape& shape, ElementType type,
                                            Numbers* numbers) {
  if (IsOfBlocks(type)) return StoredBlocks(shape, type, numbers);
  const int64_t count = shape.outputs * shape.inputs;
  std::vector<std::byte> stored(static_cast<size_t>(count) * ElementBytes(type));
  for (int64_t i = 0; i < count; ++i) {
    const float value = numbers->Value() / 8;
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    std::byte* at = stored.data() + static_cast<size_t>(i) * ElementBytes(type);
    if (type == ElementType::kFloat32) {
      std::memcpy(at, &bits, 4);
    } else {
      // A finite float16: random bits, except that the exponent is not all ones.
      const uint16_t half = type == ElementType::kBFloat16 ? static_cast<uint16_t>(bits >> 16)
                                                           : numbers->Next() & 0xbbff;
      std::memcpy(at, &half, 2);
    }
  }
  return stored;
}

inline PackedWeights MakeWeights(const ProductShape& shape, ElementType type, Numbers* numbers,
                                 Arithmetic arithmetic = Arithmetic::kFloat32) {
  const std::vector<std::byte> stored = StoredWeights(shape, type, numbers);
  return PackedWeights::Pack({{stored.data(), shape.outputs, type}}, type, shape.inputs,
                             InThisThread, nullptr, arithmetic);
}

inline std::vector<float> ReferenceRows(const FencedRows& x, int64_t rows,
                                        const PackedWeights& weights) {
  std::vector<float> y(static_cast<size_t>(rows * weights.outputs()));
  for (int64_t row = 0; row < rows; ++row) {
    reference::ProductRow(x.Row(row), weights, 0, weights.outputs(),
                          y.data() + row * weights.outputs());
  }
  return y;
}

}  // namespace hearth

#endif  // HEARTH_TESTS_WORKER_MODEL_WEIGHTS_KIT_H_
