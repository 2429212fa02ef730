// The GPU part of tensor_core_probe: computes tiles of outputs with one tensor-core instruction.
#ifndef HEARTH_BENCH_GPU_TENSOR_CORE_DEVICE_H_
#define HEARTH_BENCH_GPU_TENSOR_CORE_DEVICE_H_

#include <string>

namespace hearth {

// Tensor-core instructions. The comments give the shape m, n, k, and where matrix A is stored:
// shared memory or registers. Matrix B of wgmma is in shared memory.
enum class Instruction {
  kMma,               // m16n8k16, bfloat16, float32 sums
  kMmaSwapped,        // m16n8k16 with A and B exchanged, so that the result is transposed
  kWgmma8,            // m64n8k16, shared
  kWgmma64,           // m64n64k16, shared
  kWgmma256,          // m64n256k16, shared
  kWgmma8Registers,   // m64n8k16, registers
  kWgmma64Registers,  // m64n64k16, registers
  kMmaS8,             // m16n8k32, signed bytes, 32-bit integer sums
  kWgmmaS8,           // m64n64k32, signed bytes, 32-bit integer sums, shared
};
inline const char* NameOf(Instruction instruction) {
  constexpr const char* kNames[] = {"mma m16n8k16",
                                    "mma m16n8k16, A and B exchanged",
                                    "wgmma m64n8k16",
                                    "wgmma m64n64k16",
                                    "wgmma m64n256k16",
                                    "wgmma m64n8k16, A in registers",
                                    "wgmma m64n64k16, A in registers",
                                    "mma m16n8k32 of int8",
                                    "wgmma m64n64k32 of int8"};
  return kNames[static_cast<int>(instruction)];
}

// Which of two distances comes first in a wgmma descriptor. The probe multiplies small integers in
// both ways and uses the order that gives the right products.
enum class DescriptorOrder { kInputsFirst, kRowsFirst };

struct TileProducts {
  const void* a;  // [tiles][kTileRows][row_bytes]; all pointers are to host memory
  const void* b;  // [tiles][kTileColumns][row_bytes]
  const void* c;  // [tiles][kTileRows][kTileColumns], 4 bytes each
  void* d;        // results, with the shape of c
  int tiles;
  int row_bytes;   // a multiple of 32 bytes; each step of an instruction reads 32
  bool without_c;  // for wgmma: the first step does not add c (scale-d = 0)
  DescriptorOrder order = DescriptorOrder::kInputsFirst;
};

// Opens the device. Returns "", or why there is no device with these instructions. Stores the
// device's name and driver version in `*device`.
std::string OpenDevice(std::string* device);

// Computes the products on the device. Returns "" or the error. Not thread-safe.
std::string RunOnDevice(Instruction instruction, const TileProducts& products);

}  // namespace hearth

#endif  // HEARTH_BENCH_GPU_TENSOR_CORE_DEVICE_H_
