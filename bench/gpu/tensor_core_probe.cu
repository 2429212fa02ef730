// Kernels of tensor_core_probe. Each computes tiles of 64 x 256 outputs with repeated steps of one
// instruction. The kernels are simple, not fast.
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <type_traits>

#include "bench/gpu/tensor_core_cases.h"
#include "bench/gpu/tensor_core_device.h"

namespace hearth {
namespace {

constexpr int kStepBytes = 32;  // bytes of a row per step: 16 bfloat16 values or 32 int8 values

// --- mma.sync: a warp for 16 x 8 outputs ---

__device__ void Mma(const uint32_t* a, const uint32_t* b, float* d) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ void Mma(const uint32_t* a, const uint32_t* b, int* d) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Loads the registers of A for rows `row0` to `row0` + 15, for mma or for one warp of wgmma. Each
// lane gets four bytes of row lane / 4 and of row lane / 4 + 8, at byte offsets lane % 4 * 4 and
// lane % 4 * 4 + 16. The offsets are the same for int8 and bfloat16.
__device__ void LoadA(const unsigned char* rows, int row0, int row_bytes, int at, uint32_t* a) {
  const int lane = threadIdx.x % 32;
  for (int r = 0; r < 4; ++r) {
    const int row = row0 + lane / 4 + r % 2 * 8;
    a[r] = *reinterpret_cast<const uint32_t*>(rows + static_cast<size_t>(row) * row_bytes + at +
                                              r / 2 * 16 + lane % 4 * 4);
  }
}

struct KernelArguments {
  const unsigned char *a, *b;
  const void* c;
  void* d;
  int row_bytes;
  int without_c;
  DescriptorOrder order;
};

// Grid: (tiles, rows / 16, columns / 8). If `kSwapped` is true, A and B are exchanged.
template <typename Sum, bool kSwapped>
__global__ void __launch_bounds__(32) MmaTiles(KernelArguments args) {
  const int lane = threadIdx.x, row0 = blockIdx.y * 16, column0 = blockIdx.z * 8;
  const size_t tile = blockIdx.x;
  const unsigned char* a = args.a + tile * kTileRows * args.row_bytes;
  const unsigned char* b = args.b + tile * kTileColumns * args.row_bytes;
  if (kSwapped) {
    const unsigned char* other = a;
    a = b;
    b = other;
  }
  size_t places[4];
  Sum sums[4];
  for (int i = 0; i < 4; ++i) {
    const int row = row0 + lane / 4 + i / 2 * 8, column = column0 + lane % 4 * 2 + i % 2;
    places[i] = tile * kTileOutputs +
                (kSwapped ? column * kTileColumns + row : row * kTileColumns + column);
    sums[i] = static_cast<const Sum*>(args.c)[places[i]];
  }
  for (int at = 0; at < args.row_bytes; at += kStepBytes) {
    uint32_t of_a[4], of_b[2];
    LoadA(a, row0, args.row_bytes, at, of_a);
    for (int r = 0; r < 2; ++r) {
      const size_t row = static_cast<size_t>(column0 + lane / 4) * args.row_bytes;
      of_b[r] = *reinterpret_cast<const uint32_t*>(b + row + at + r * 16 + lane % 4 * 4);
    }
    Mma(of_a, of_b, sums);
  }
  for (int i = 0; i < 4; ++i) static_cast<Sum*>(args.d)[places[i]] = sums[i];
}

// --- wgmma: a warpgroup for 64 x kColumns outputs ---

// Operand lists of an asm statement: TEN(t) expands to %t0 to %t9; FOUR and SIXTEEN expand to the
// registers of d.
#define TEN(t)                                                                                     \
  "%" #t "0, %" #t "1, %" #t "2, %" #t "3, %" #t "4, %" #t "5, %" #t "6, %" #t "7, %" #t "8, %" #t \
  "9"
#define FOUR(kind, i) kind(d[i]), kind(d[(i) + 1]), kind(d[(i) + 2]), kind(d[(i) + 3])
#define SIXTEEN(kind, i) \
  FOUR(kind, i), FOUR(kind, (i) + 4), FOUR(kind, (i) + 8), FOUR(kind, (i) + 12)
#define FIRST_32 TEN() ", " TEN(1) ", " TEN(2) ", %30, %31"
#define FIRST_128                                                                               \
  TEN()                                                                                         \
  ", " TEN(1) ", " TEN(2) ", " TEN(3) ", " TEN(4) ", " TEN(5) ", " TEN(6) ", " TEN(7) ", " TEN( \
      8) ", " TEN(9) ", " TEN(10) ", " TEN(11) ", %120, %121, %122, %123, %124, %125, %126, %127"
// Issues a wgmma instruction. If `add` is 0, the sums start at zero.
#define WGMMA(shape, types, sums, sources, add, modifiers) \
  "{ .reg .pred p; setp.ne.b32 p, " add                    \
  ", 0;\n"                                                 \
  "wgmma.mma_async.sync.aligned." shape types " {" sums "}, " sources ", p" modifiers "; }\n"
#define BF16 "f32.bf16.bf16"

template <int kColumns>
struct Wgmma;

template <>
struct Wgmma<8> {
  static __device__ void Step(float* d, uint64_t a, uint64_t b, int add) {
    asm volatile(WGMMA("m64n8k16.", BF16, "%0, %1, %2, %3", "%4, %5", "%6", ", 1, 1, 0, 0")
                 : FOUR("+f", 0)
                 : "l"(a), "l"(b), "r"(add));
  }
  static __device__ void Step(float* d, const uint32_t* a, uint64_t b, int add) {
    asm volatile(
        WGMMA("m64n8k16.", BF16, "%0, %1, %2, %3", "{%4, %5, %6, %7}, %8", "%9", ", 1, 1, 0")
        : FOUR("+f", 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
  }
};

template <>
struct Wgmma<64> {
  static __device__ void Step(float* d, uint64_t a, uint64_t b, int add) {
    asm volatile(WGMMA("m64n64k16.", BF16, FIRST_32, "%32, %33", "%34", ", 1, 1, 0, 0")
                 : SIXTEEN("+f", 0), SIXTEEN("+f", 16)
                 : "l"(a), "l"(b), "r"(add));
  }
  static __device__ void Step(float* d, const uint32_t* a, uint64_t b, int add) {
    asm volatile(
        WGMMA("m64n64k16.", BF16, FIRST_32, "{%32, %33, %34, %35}, %36", "%37", ", 1, 1, 0")
        : SIXTEEN("+f", 0), SIXTEEN("+f", 16)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
  }
  static __device__ void Step(int* d, uint64_t a, uint64_t b, int add) {
    asm volatile(WGMMA("m64n64k32.", "s32.s8.s8", FIRST_32, "%32, %33", "%34", "")
                 : SIXTEEN("+r", 0), SIXTEEN("+r", 16)
                 : "l"(a), "l"(b), "r"(add));
  }
};

template <>
struct Wgmma<256> {
  static __device__ void Step(float* d, uint64_t a, uint64_t b, int add) {
    asm volatile(WGMMA("m64n256k16.", BF16, FIRST_128, "%128, %129", "%130", ", 1, 1, 0, 0")
                 : SIXTEEN("+f", 0), SIXTEEN("+f", 16), SIXTEEN("+f", 32), SIXTEEN("+f", 48),
                   SIXTEEN("+f", 64), SIXTEEN("+f", 80), SIXTEEN("+f", 96), SIXTEEN("+f", 112)
                 : "l"(a), "l"(b), "r"(add));
  }
};

// Returns the offset of a byte in shared memory, in wgmma's layout without a swizzle. A core matrix
// of 8 rows x 16 bytes is 128 contiguous bytes. The core matrices of the same 8 rows follow each
// other along the inputs; after them come those of the next 8 rows.
__device__ int CorePlace(int row, int byte, int chunk_bytes) {
  return (row / 8 * (chunk_bytes / 16) + byte / 16) * 128 + row % 8 * 16 + byte % 16;
}

__device__ void StoreRows(const unsigned char* from, int rows, int row_bytes, int at,
                          int chunk_bytes, unsigned char* to) {
  const int pieces = chunk_bytes / 16;
  for (int i = threadIdx.x; i < rows * pieces; i += blockDim.x) {
    const int row = i / pieces, byte = i % pieces * 16;
    *reinterpret_cast<uint4*>(to + CorePlace(row, byte, chunk_bytes)) =
        *reinterpret_cast<const uint4*>(from + static_cast<size_t>(row) * row_bytes + at + byte);
  }
}

// Returns a wgmma descriptor without a swizzle: address, distance between core matrices along the
// inputs, and distance between groups of 8 rows, each divided by 16.
__device__ uint64_t Descriptor(const unsigned char* at, int chunk_bytes, DescriptorOrder order) {
  const uint64_t address = __cvta_generic_to_shared(at) & 0x3ffff;
  const uint64_t along_inputs = 128, along_rows = chunk_bytes / 16 * 128;
  const bool inputs_first = order == DescriptorOrder::kInputsFirst;
  const uint64_t leading = inputs_first ? along_inputs : along_rows;
  const uint64_t stride = inputs_first ? along_rows : along_inputs;
  return address >> 4 | (leading >> 4) << 16 | (stride >> 4) << 32;
}

template <typename T, int kCount>
// keeps the compiler from moving accesses to registers that wgmma writes
__device__ void Fence(T* registers) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (std::is_same_v<T, float>) {
      asm volatile("" : "+f"(registers[i])::"memory");
    } else {
      asm volatile("" : "+r"(registers[i])::"memory");
    }
  }
}

// Grid: (tiles, columns / kColumns); 128 threads. The steps of a chunk (kChunk bytes of each row)
// are issued without waiting between them, as in the inner loop of a matrix product.
template <typename Sum, int kColumns, bool kARegisters, int kChunk>
__global__ void __launch_bounds__(128) WgmmaTiles(KernelArguments args) {
  constexpr int kSteps = kChunk / kStepBytes;
  __shared__ alignas(128) unsigned char shared_a[kTileRows * kChunk];
  __shared__ alignas(128) unsigned char shared_b[kColumns * kChunk];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, column0 = blockIdx.y * kColumns;
  const size_t tile = blockIdx.x;
  const unsigned char* a = args.a + tile * kTileRows * args.row_bytes;
  const unsigned char* b = args.b + (tile * kTileColumns + column0) * args.row_bytes;
  constexpr int kSums = kColumns / 2;
  Sum sums[kSums];
  const auto place = [&](int i) {
    const int row = warp * 16 + lane / 4 + i / 2 % 2 * 8;
    return tile * kTileOutputs + row * kTileColumns + column0 + i / 4 * 8 + lane % 4 * 2 + i % 2;
  };
#pragma unroll
  for (int i = 0; i < kSums; ++i) sums[i] = static_cast<const Sum*>(args.c)[place(i)];
  for (int at = 0; at < args.row_bytes; at += kChunk) {
    __syncthreads();
    StoreRows(a, kTileRows, args.row_bytes, at, kChunk, shared_a);
    StoreRows(b, kColumns, args.row_bytes, at, kChunk, shared_b);
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    uint32_t of_a[kSteps][4];
    if constexpr (kARegisters) {
#pragma unroll
      for (int s = 0; s < kSteps; ++s) {
        LoadA(a, warp * 16, args.row_bytes, at + s * kStepBytes, of_a[s]);
      }
    }
    Fence<Sum, kSums>(sums);
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int add = at + s > 0 || !args.without_c;
      const uint64_t from_b = Descriptor(shared_b + s * 256, kChunk, args.order);
      if constexpr (kARegisters) {
        Wgmma<kColumns>::Step(sums, of_a[s], from_b, add);
      } else {
        Wgmma<kColumns>::Step(sums, Descriptor(shared_a + s * 256, kChunk, args.order), from_b,
                              add);
      }
    }
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    Fence<Sum, kSums>(sums);
  }
#pragma unroll
  for (int i = 0; i < kSums; ++i) static_cast<Sum*>(args.d)[place(i)] = sums[i];
}

template <typename Sum, int kColumns, bool kARegisters>
void LaunchWgmma(const KernelArguments& args, unsigned tiles) {
  constexpr int kChunk = 4 * kStepBytes;
  const dim3 grid(tiles, kTileColumns / kColumns);
  if (args.row_bytes % kChunk == 0) {
    WgmmaTiles<Sum, kColumns, kARegisters, kChunk><<<grid, 128>>>(args);
  } else {
    WgmmaTiles<Sum, kColumns, kARegisters, kStepBytes><<<grid, 128>>>(args);
  }
}

void Launch(Instruction instruction, const KernelArguments& args, unsigned tiles) {
  const dim3 mma(tiles, kTileRows / 16, kTileColumns / 8);
  const dim3 swapped(tiles, kTileColumns / 16, kTileRows / 8);
  switch (instruction) {
    case Instruction::kMma:
      return MmaTiles<float, false><<<mma, 32>>>(args);
    case Instruction::kMmaSwapped:
      return MmaTiles<float, true><<<swapped, 32>>>(args);
    case Instruction::kWgmma8:
      return LaunchWgmma<float, 8, false>(args, tiles);
    case Instruction::kWgmma64:
      return LaunchWgmma<float, 64, false>(args, tiles);
    case Instruction::kWgmma256:
      return LaunchWgmma<float, 256, false>(args, tiles);
    case Instruction::kWgmma8Registers:
      return LaunchWgmma<float, 8, true>(args, tiles);
    case Instruction::kWgmma64Registers:
      return LaunchWgmma<float, 64, true>(args, tiles);
    case Instruction::kMmaS8:
      return MmaTiles<int, false><<<mma, 32>>>(args);
    case Instruction::kWgmmaS8:
      return LaunchWgmma<int, 64, false>(args, tiles);
  }
}

// Owns device memory, and frees it in the destructor.
class DeviceBytes {
 public:
  DeviceBytes() = default;
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  ~DeviceBytes() { cudaFree(data_); }
  cudaError_t Take(size_t bytes, const void* from) {
    cudaError_t error = cudaMalloc(&data_, bytes);
    if (error == cudaSuccess && from != nullptr) {
      error = cudaMemcpy(data_, from, bytes, cudaMemcpyHostToDevice);
    }
    return error;
  }
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

}  // namespace

std::string OpenDevice(std::string* device) {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    return std::string("no CUDA device: ") + cudaGetErrorString(error);
  }
  cudaDeviceProp properties;
  error = cudaGetDeviceProperties(&properties, 0);
  if (error != cudaSuccess) return cudaGetErrorString(error);
  int driver = 0;
  cudaDriverGetVersion(&driver);
  char text[400];
  std::snprintf(text, sizeof(text), "%s, compute capability %d.%d, %d multiprocessors, CUDA %d",
                properties.name, properties.major, properties.minor, properties.multiProcessorCount,
                driver);
  *device = text;
  if (properties.major != 9) return *device + ": wgmma needs compute capability 9.0";
  return "";
}

std::string RunOnDevice(Instruction instruction, const TileProducts& products) {
  const size_t rows = static_cast<size_t>(products.tiles) * products.row_bytes;
  const size_t sums = static_cast<size_t>(products.tiles) * kTileOutputs * sizeof(float);
  DeviceBytes a, b, c, d;
  cudaError_t error = a.Take(rows * kTileRows, products.a);
  if (error == cudaSuccess) error = b.Take(rows * kTileColumns, products.b);
  if (error == cudaSuccess) error = c.Take(sums, products.c);
  if (error == cudaSuccess) error = d.Take(sums, nullptr);
  // a pattern that is never a result
  if (error == cudaSuccess) error = cudaMemset(d.data(), 0xa5, sums);
  if (error == cudaSuccess) {
    Launch(
        instruction,
        {static_cast<const unsigned char*>(a.data()), static_cast<const unsigned char*>(b.data()),
         c.data(), d.data(), products.row_bytes, products.without_c, products.order},
        static_cast<unsigned>(products.tiles));
    error = cudaGetLastError();
  }
  if (error == cudaSuccess) error = cudaDeviceSynchronize();
  if (error == cudaSuccess) error = cudaMemcpy(products.d, d.data(), sums, cudaMemcpyDeviceToHost);
  return error == cudaSuccess ? "" : cudaGetErrorString(error);
}

}  // namespace hearth
