// The device's part of tensor_core_probe: computes tiles of outputs by one tensor-core instruction.
#ifndef HEARTH_BENCH_GPU_TENSOR_CORE_DEVICE_H_
#define HEARTH_BENCH_GPU_TENSOR_CORE_DEVICE_H_

#include <string>

namespace hearth {

// Shapes are m, n, k. "shared" and "registers" say where A is; B of wgmma is in shared memory.
enum class Instruction {
  kMma,               // m16n8k16, bfloat16, float32 sums
  kMmaSwapped,        // the same with A and B exchanged, so that D is transposed
  kWgmma8,            // m64n8k16, shared
  kWgmma64,           // m64n64k16, shared
  kWgmma256,          // m64n256k16, shared
  kWgmma8Registers,   // m64n8k16, registers
  kWgmma64Registers,  // m64n64k16, registers
  kMmaS8,             // m16n8k32, signed bytes, 32-bit integer sums
  kWgmmaS8,           // m64n64k32, the same, shared
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

// The order of the two distances in a wgmma descriptor. The probe tries both on small integers and
// uses the order whose products are right.
enum class DescriptorOrder { kInputsFirst, kRowsFirst };

struct TileProducts {
  const void* a;  // [tiles][kTileRows][row_bytes], host memory like all of these
  const void* b;  // [tiles][kTileColumns][row_bytes]
  const void* c;  // [tiles][kTileRows][kTileColumns], 4 bytes each
  void* d;        // as c
  int tiles;
  int row_bytes;   // a multiple of 32, which is one step of each instruction
  bool without_c;  // wgmma: the first step adds to nothing (scale-d = 0) instead of to c
  DescriptorOrder order = DescriptorOrder::kInputsFirst;
};

// Returns "" or why no device has these instructions. *device gets the device's name and driver.
std::string OpenDevice(std::string* device);

// Returns "" or the error. Not thread-safe.
std::string RunOnDevice(Instruction instruction, const TileProducts& products);

}  // namespace hearth

#endif  // HEARTH_BENCH_GPU_TENSOR_CORE_DEVICE_H_
