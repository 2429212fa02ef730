// How fast a product of few rows runs when each output is one ascending chain of m16n8k16: bytes of
// weights a second, for ways to bring weights and rows to the tensor cores.
//   //   product_probe [rows|tiles|integers]
// The same for Q8_0: chains of the float32 products of exact sums of 32 by m16n8k32.
// A warp computes 16 outputs of up to 8 * kTiles rows; nothing is shared between warps. Prints a
// line of JSON for each case, as probes.cu does, and first how many of the checked outputs differ
// from the chain on the CPU. Ends with 2 where there is no device.
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/gpu/fused_dot.h"

namespace hearth {
namespace {

constexpr int kStageInputs = 64, kOutputs = 16;           // of a stage
constexpr int kStageBytes = kOutputs * kStageInputs * 2;  // 2 KiB
constexpr int kBlockInputs = 32, kIntegerInputs = 128;    // of a scale; of a stage of integers
constexpr int kStageBlocks = kIntegerInputs / kBlockInputs;
constexpr int kIntegerBytes = kOutputs * kIntegerInputs + kStageBlocks * kOutputs * 2;  // 2,176
constexpr size_t kBufferBytes = size_t{1536} << 20;  // weights, far beyond the L2 cache
constexpr size_t kGraphBytes = size_t{1} << 30;      // read by one graph, at least 8 launches
constexpr int kTurns = 5;

// kRows: [outputs][inputs], 128 bytes of each of 16 rows by cp.async.
// kTiles: [outputs / 16][inputs / 64][2 KiB], one bulk copy a stage.
// kIntegers: Q8_0, [outputs / 16][inputs / 128][2 KiB of int8, then scales [4][16] in float16].
enum class Weights { kRows, kTiles, kIntegers };
// kDirect: [rows][inputs], loaded as a step begins; kAhead: a step earlier; kFragments: a step
// earlier, [inputs / 32][tiles][lane][16 bytes] as the instruction wants them.
enum class Rows { kDirect, kAhead, kFragments };

struct Arguments {
  const unsigned char* weights;
  const uint16_t* x;  // integers: [inputs / 64][tiles][lane][16 bytes], as kFragments
  const float* dx;    // integers: scales of x, [inputs / 32][8 * tiles]
  float* y;           // [rows][outputs]
  int rows, outputs, inputs;
};

// 16-byte pieces of a stage's rows change places so that eight rows lie in different banks.
__host__ __device__ inline int Piece(int row, int piece) { return row * 8 + (piece ^ (row & 7)); }

__device__ void Copy16(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}
__device__ void InitBarrier(uint32_t barrier) {
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(barrier));
}
template <int kBytes>
__device__ void BulkCopy(uint32_t to, const void* from, uint32_t barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "n"(kBytes)
               : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "n"(kBytes), "r"(barrier)
      : "memory");
}
__device__ void WaitBarrier(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{ .reg .pred done;\n"
      "again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again; }" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

template <Rows kFrom, int kTiles>
__device__ void LoadX(const Arguments& args, int step, uint32_t (&b)[kTiles * 8]) {
  const int lane = threadIdx.x;
  if constexpr (kFrom == Rows::kFragments) {
#pragma unroll
    for (int i = 0; i < kTiles * 2; ++i) {
      const uint4 v = reinterpret_cast<const uint4*>(args.x)[(step * 2 * kTiles + i) * 32 + lane];
      b[i * 4] = v.x, b[i * 4 + 1] = v.y, b[i * 4 + 2] = v.z, b[i * 4 + 3] = v.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kTiles * 8; ++i) {  // [k32][tile][k16 of it][half]
      const int row = i / 4 % kTiles * 8 + lane / 4;
      const int k = step * kStageInputs + i / 4 / kTiles * 32 + i % 4 * 8 + lane % 4 * 2;
      b[i] = row < args.rows ? *reinterpret_cast<const uint32_t*>(
                                   args.x + static_cast<size_t>(row) * args.inputs + k)
                             : 0;
    }
  }
}

template <int kTiles>
__device__ void MultiplyStage(uint32_t stage, const uint32_t (&b)[kTiles * 8],
                              float (&sums)[kTiles * 4]) {
  const int lane = threadIdx.x;
#pragma unroll
  for (int k16 = 0; k16 < kStageInputs / 16; ++k16) {
    uint32_t a[4];
    const uint32_t address = stage + Piece(lane % 16, k16 * 2 + lane / 16) * 16;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(address)
                 : "memory");
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint32_t* of_b = b + (k16 / 2 * kTiles + tile) * 4 + k16 % 2 * 2;
      float* d = sums + tile * 4;
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
          "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(of_b[0]), "r"(of_b[1]));
    }
  }
}

template <Weights kLayout, Rows kFrom, int kTiles, int kStages>
__global__ void __launch_bounds__(32) Product(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int lane = threadIdx.x, steps = args.inputs / kStageInputs, output0 = blockIdx.x * kOutputs;
  const uint32_t stages = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const uint32_t barriers = stages + kStages * kStageBytes;
  const auto load = [&](int step) {
    const uint32_t stage = stages + step % kStages * kStageBytes;
    if constexpr (kLayout == Weights::kRows) {
      if (step < steps) {
        const unsigned char* from =
            args.weights + (static_cast<size_t>(output0) * args.inputs + step * kStageInputs) * 2;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = i * 4 + lane / 8;
          Copy16(stage + Piece(row, lane % 8) * 16,
                 from + static_cast<size_t>(row) * args.inputs * 2 + lane % 8 * 16);
        }
      }
      asm volatile("cp.async.commit_group;");
    } else if (step < steps && lane == 0) {
      BulkCopy<kStageBytes>(
          stage, args.weights + (static_cast<size_t>(blockIdx.x) * steps + step) * kStageBytes,
          barriers + step % kStages * 8);
    }
  };
  asm volatile("griddepcontrol.launch_dependents;");
  if constexpr (kLayout == Weights::kTiles) {
    if (lane < kStages) InitBarrier(barriers + lane * 8);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncwarp();
  }
  for (int s = 0; s < kStages - 1; ++s) load(s);
  // Weights need nothing of the kernel before; rows do.
  asm volatile("griddepcontrol.wait;" ::: "memory");
  float sums[kTiles * 4] = {};
  uint32_t b[kTiles * 8], next[kTiles * 8];
  if constexpr (kFrom != Rows::kDirect) LoadX<kFrom, kTiles>(args, 0, b);
  for (int step = 0; step < steps; ++step) {
    if constexpr (kFrom == Rows::kDirect) {
      LoadX<kFrom, kTiles>(args, step, b);
    } else {
      LoadX<kFrom, kTiles>(args, min(step + 1, steps - 1), next);
    }
    if constexpr (kLayout == Weights::kRows) {
      asm volatile("cp.async.wait_group %0;" ::"n"(kStages - 2) : "memory");
      __syncwarp();
    } else {
      WaitBarrier(barriers + step % kStages * 8, step / kStages & 1);
    }
    MultiplyStage<kTiles>(stages + step % kStages * kStageBytes, b, sums);
    __syncwarp();
    load(step + kStages - 1);
    if constexpr (kFrom != Rows::kDirect) {
#pragma unroll
      for (int i = 0; i < kTiles * 8; ++i) b[i] = next[i];
    }
  }
  for (int i = 0; i < kTiles * 4; ++i) {
    const int row = i / 4 * 8 + lane % 4 * 2 + i % 2, output = output0 + lane / 4 + i / 2 % 2 * 8;
    if (row < args.rows) args.y[static_cast<size_t>(row) * args.outputs + output] = sums[i];
  }
}

// Four blocks of 32 inputs: each the exact sum, as a float32 by one subtraction, then a link of the
// output's chain.
template <int kTiles>
__device__ void MultiplyIntegers(uint32_t stage, const unsigned char* scales,
                                 const uint32_t (&b)[kTiles * 8], const float2 (&dx)[kTiles * 4],
                                 float (&sums)[kTiles * 4]) {
  constexpr int kMagic = 0x4b400000;  // 1.5 * 2^23
  const int lane = threadIdx.x;
#pragma unroll
  for (int block = 0; block < kStageBlocks; ++block) {
    uint32_t a[4];
    const uint32_t address = stage + Piece(lane % 16, block * 2 + lane / 16) * 16;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(address)
                 : "memory");
    const __half* dw = reinterpret_cast<const __half*>(scales) + block * kOutputs + lane / 4;
    const float of_output[2] = {__half2float(dw[0]), __half2float(dw[8])};
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const uint32_t* of_b = b + (block / 2 * kTiles + tile) * 4 + block % 2 * 2;
      const float2 of_row = dx[block * kTiles + tile];
      int d[4];
      asm volatile(
          "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
          "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
          : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(of_b[0]), "r"(of_b[1]), "r"(kMagic));
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float sum = __fsub_rn(__int_as_float(d[i]), 12582912.0f);
        const float scale = __fmul_rn(i % 2 == 0 ? of_row.x : of_row.y, of_output[i / 2]);
        sums[tile * 4 + i] = __fmaf_rn(sum, scale, sums[tile * 4 + i]);
      }
    }
  }
}

template <int kTiles>
__device__ void LoadScaled(const Arguments& args, int step, uint32_t (&b)[kTiles * 8],
                           float2 (&dx)[kTiles * 4]) {
  LoadX<Rows::kFragments, kTiles>(args, step, b);
#pragma unroll
  for (int i = 0; i < kTiles * 4; ++i) {
    const int block = step * kStageBlocks + i / kTiles;
    const int row = i % kTiles * 8 + threadIdx.x % 4 * 2;
    dx[i] = *reinterpret_cast<const float2*>(args.dx + block * 8 * kTiles + row);
  }
}

template <int kTiles, int kStages>
__global__ void __launch_bounds__(32) IntegerProduct(const __grid_constant__ Arguments args) {
  extern __shared__ __align__(128) unsigned char shared[];
  const int lane = threadIdx.x, steps = args.inputs / kIntegerInputs;
  const uint32_t stages = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const uint32_t barriers = stages + kStages * kIntegerBytes;
  const auto load = [&](int step) {
    if (step < steps && lane == 0) {
      BulkCopy<kIntegerBytes>(
          stages + step % kStages * kIntegerBytes,
          args.weights + (static_cast<size_t>(blockIdx.x) * steps + step) * kIntegerBytes,
          barriers + step % kStages * 8);
    }
  };
  asm volatile("griddepcontrol.launch_dependents;");
  if (lane < kStages) InitBarrier(barriers + lane * 8);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncwarp();
  for (int s = 0; s < kStages - 1; ++s) load(s);
  asm volatile("griddepcontrol.wait;" ::: "memory");
  float sums[kTiles * 4] = {};
  uint32_t b[kTiles * 8], next[kTiles * 8];
  float2 dx[kTiles * 4], next_dx[kTiles * 4];
  LoadScaled<kTiles>(args, 0, b, dx);
  for (int step = 0; step < steps; ++step) {
    LoadScaled<kTiles>(args, min(step + 1, steps - 1), next, next_dx);
    WaitBarrier(barriers + step % kStages * 8, step / kStages & 1);
    const int at = step % kStages * kIntegerBytes;
    MultiplyIntegers<kTiles>(stages + at, shared + at + kOutputs * kIntegerInputs, b, dx, sums);
    __syncwarp();
    load(step + kStages - 1);
#pragma unroll
    for (int i = 0; i < kTiles * 8; ++i) b[i] = next[i];
#pragma unroll
    for (int i = 0; i < kTiles * 4; ++i) dx[i] = next_dx[i];
  }
  for (int i = 0; i < kTiles * 4; ++i) {
    const int row = i / 4 * 8 + lane % 4 * 2 + i % 2;
    const int output = blockIdx.x * kOutputs + lane / 4 + i / 2 % 2 * 8;
    if (row < args.rows) args.y[static_cast<size_t>(row) * args.outputs + output] = sums[i];
  }
}

// Scales from 2^-9 to 2^-6 in float16 where a stage of integers has them; all else stays.
__global__ void FillScales(uint16_t* values, size_t count) {
  constexpr int kStage = kIntegerBytes / 2, kIntegers = kOutputs * kIntegerInputs / 2;
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    if (i % kStage >= kIntegers) {
      values[i] = static_cast<uint16_t>(0x1800 + (values[i] & 0x7f) * 23);
    }
  }
}

__global__ void FillFloats(float* values, size_t count) {
  const size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) values[i] = static_cast<float>(i * 7919 % 4001 + 1) / 65536;
}

__global__ void FillBf16(uint16_t* values, size_t count) {
  const size_t stride = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += stride) {
    uint64_t z = i * 0x9e3779b97f4a7c15 + 1;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z ^= z >> 27;
    values[i] = static_cast<uint16_t>((z & 0x807f) | (119 + (z >> 20) % 8) << 7);  // 2^-8 to 2^-1
  }
}

bool Works(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return true;
  std::printf("{\"row\": \"%s\", \"why\": \"%s\"}\n", what, cudaGetErrorString(error));
  cudaGetLastError();
  return false;
}

using Kernel = void (*)(Arguments);

// A way to compute a product of up to 8 * tiles rows.
struct Variant {
  const char* name;
  Kernel kernel[3];  // of 1, 2 and 4 tiles
  int stages;
  Weights weights;
  Rows rows;
  bool early;  // programmatic dependent launch
};

template <Weights kLayout, Rows kFrom, int kStages>
Variant Make(const char* name, bool early = false) {
  return {name,
          {Product<kLayout, kFrom, 1, kStages>, Product<kLayout, kFrom, 2, kStages>,
           Product<kLayout, kFrom, 4, kStages>},
          kStages,
          kLayout,
          kFrom,
          early};
}

template <int kStages>
Variant MakeIntegers(const char* name, bool early = false) {
  return {name,
          {IntegerProduct<1, kStages>, IntegerProduct<2, kStages>, IntegerProduct<4, kStages>},
          kStages,
          Weights::kIntegers,
          Rows::kFragments,
          early};
}

std::vector<Variant> IntegerVariants() {
  return {
      MakeIntegers<6>("Q8_0, 6"),
      MakeIntegers<12>("Q8_0, 12"),
      MakeIntegers<24>("Q8_0, 24"),
      MakeIntegers<12>("Q8_0, 12, early", true),
  };
}

int BytesOfStage(const Variant& variant) {
  return variant.weights == Weights::kIntegers ? kIntegerBytes : kStageBytes;
}

// Of the weights of one product.
size_t BytesOf(const Variant& variant, int outputs, int inputs) {
  const size_t values = static_cast<size_t>(outputs) * inputs;
  return variant.weights == Weights::kIntegers ? values / kBlockInputs * (kBlockInputs + 2)
                                               : values * 2;
}

std::vector<Variant> RowVariants() {
  return {
      Make<Weights::kRows, Rows::kDirect, 12>("rows, x direct, 12"),
      Make<Weights::kRows, Rows::kAhead, 12>("rows, x ahead, 12"),
      Make<Weights::kRows, Rows::kFragments, 12>("rows, x fragments, 12"),
      Make<Weights::kRows, Rows::kFragments, 24>("rows, x fragments, 24"),
      Make<Weights::kRows, Rows::kFragments, 12>("rows, x fragments, 12, early", true),
  };
}

std::vector<Variant> TileVariants() {
  return {
      Make<Weights::kTiles, Rows::kAhead, 12>("tiles, x ahead, 12"),
      Make<Weights::kTiles, Rows::kFragments, 6>("tiles, x fragments, 6"),
      Make<Weights::kTiles, Rows::kFragments, 12>("tiles, x fragments, 12"),
      Make<Weights::kTiles, Rows::kFragments, 24>("tiles, x fragments, 24"),
      Make<Weights::kTiles, Rows::kFragments, 12>("tiles, x fragments, 12, early", true),
  };
}

int TilesIndex(int rows) { return rows <= 8 ? 0 : rows <= 16 ? 1 : 2; }

// Every kernel on `stream`; `early` lets it begin before the one before it ends.
cudaError_t Launch(const Variant& variant, const Arguments& args, cudaStream_t stream) {
  const Kernel kernel = variant.kernel[TilesIndex(args.rows)];
  const int shared = variant.stages * (BytesOfStage(variant) + 8);
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(args.outputs / kOutputs));
  config.blockDim = dim3(32);
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = variant.early ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, args);
}

struct Shape {
  const char* name;
  int outputs, inputs;
};
constexpr Shape kShapes[] = {
    {"270M gate/up", 4096, 640}, {"270M down", 640, 2048},     {"1B down", 1152, 6912},
    {"4B qkv", 4096, 2560},      {"4B out", 2560, 2048},       {"4B gate/up", 20480, 2560},
    {"4B down", 2560, 10240},    {"4B head", 262144, 2560},    {"27B qkv", 8192, 5376},
    {"27B out", 5376, 4096},     {"27B gate/up", 43008, 5376}, {"27B down", 5376, 21504},
};

struct Memory {
  unsigned char* weights;
  uint16_t* x;
  float* dx;
  float* y;
};

// Where value k of a row lies, in values, for each layout of x.
size_t PlaceOfX(const Variant& variant, int rows, int inputs, int row, int k) {
  if (variant.rows != Rows::kFragments) return static_cast<size_t>(row) * inputs + k;
  const int tiles = 1 << TilesIndex(rows), lane = row % 8 * 4 + k % 8 / 2;
  return ((static_cast<size_t>(k / 32) * tiles + row / 8) * 32 + lane) * 8 + k % 32 / 8 * 2 + k % 2;
}

size_t PlaceOfWeight(const Variant& variant, int inputs, int output, int k) {
  if (variant.weights == Weights::kRows) return static_cast<size_t>(output) * inputs + k;
  const size_t stage =
      static_cast<size_t>(output / kOutputs) * (inputs / kStageInputs) + k / kStageInputs;
  return stage * (kStageBytes / 2) + Piece(output % kOutputs, k % kStageInputs / 8) * 8 + k % 8;
}

// What the CPU computes of weights w, rows x and their scales, for one output of a row.
float ExpectedOf(const Variant& variant, int rows, int inputs, const std::vector<uint16_t>& w,
                 const std::vector<uint16_t>& x, const std::vector<float>& dx, int row,
                 int output) {
  if (variant.weights != Weights::kIntegers) {
    std::vector<uint16_t> a(static_cast<size_t>(inputs)), b(static_cast<size_t>(inputs));
    for (int k = 0; k < inputs; ++k) {
      a[k] = w[PlaceOfWeight(variant, inputs, output, k)];
      b[k] = x[PlaceOfX(variant, rows, inputs, row, k)];
    }
    return FusedChain(a.data(), b.data(), 0, inputs);
  }
  const auto* bytes = reinterpret_cast<const signed char*>(w.data());
  const auto* of_x = reinterpret_cast<const signed char*>(x.data());
  const int tiles = 1 << TilesIndex(rows);
  float y = 0;
  for (int block = 0; block < inputs / kBlockInputs; ++block) {
    const size_t stage = (static_cast<size_t>(output / kOutputs) * (inputs / kIntegerInputs) +
                          block / kStageBlocks) *
                         kIntegerBytes;
    int sum = 0;
    for (int k = block * kBlockInputs; k < (block + 1) * kBlockInputs; ++k) {
      const int at = k % kIntegerInputs, lane = row % 8 * 4 + k % 16 / 4;
      const size_t fragment = (static_cast<size_t>(k / 64) * tiles + row / 8) * 32 + lane;
      const int of_w = bytes[stage + Piece(output % kOutputs, at / 16) * 16 + at % 16];
      sum += of_w * of_x[fragment * 16 + k % 64 / 16 * 4 + k % 4];
    }
    const size_t scale = stage + kOutputs * kIntegerInputs +
                         (block % kStageBlocks * kOutputs + output % kOutputs) * 2;
    __half_raw raw;
    raw.x = w[scale / 2];
    const float dw = __half2float(__half(raw));
    y = std::fma(static_cast<float>(sum), dx[block * 8 * tiles + row] * dw, y);
  }
  return y;
}

// Some outputs beside the CPU's; of bfloat16 they agree where the device's step is FusedDot.
void Check(const Variant& variant, int rows, const Memory& memory) {
  constexpr int kOutputsChecked = 4096, kInputs = 2560, kSamples = 512;
  const size_t weights = BytesOf(variant, kOutputsChecked, kInputs);
  std::vector<uint16_t> w(weights / 2), x(static_cast<size_t>(32) * kInputs);
  std::vector<float> dx(static_cast<size_t>(32) * kInputs / kBlockInputs);
  std::vector<float> y(static_cast<size_t>(rows) * kOutputsChecked);
  const Arguments args = {memory.weights, memory.x,        memory.dx, memory.y,
                          rows,           kOutputsChecked, kInputs};
  const std::string row = std::string("differing, ") + variant.name + ", " + std::to_string(rows);
  if (!Works(cudaMemset(memory.y, 0xa5, y.size() * sizeof(float)), row.c_str()) ||
      !Works(Launch(variant, args, nullptr), row.c_str()) ||
      !Works(cudaMemcpy(w.data(), memory.weights, weights, cudaMemcpyDeviceToHost), row.c_str()) ||
      !Works(cudaMemcpy(x.data(), memory.x, x.size() * 2, cudaMemcpyDeviceToHost), row.c_str()) ||
      !Works(cudaMemcpy(dx.data(), memory.dx, dx.size() * sizeof(float), cudaMemcpyDeviceToHost),
             row.c_str()) ||
      !Works(cudaMemcpy(y.data(), memory.y, y.size() * sizeof(float), cudaMemcpyDeviceToHost),
             row.c_str())) {
    return;
  }
  int differing = 0;
  for (int i = 0; i < kSamples; ++i) {
    const int r = i % rows, output = i * 1009 % kOutputsChecked;
    const float expected = ExpectedOf(variant, rows, kInputs, w, x, dx, r, output);
    differing +=
        BitsOfFloat(expected) != BitsOfFloat(y[static_cast<size_t>(r) * kOutputsChecked + output]);
  }
  std::printf("{\"row\": \"%s\", \"unit\": \"of %d\", \"values\": [%d]}\n", row.c_str(), kSamples,
              differing);
}

// A graph of launches, each on other weights, as the layers of a model follow one another.
void Time(const Variant& variant, const Shape& shape, int rows, const Memory& memory,
          cudaStream_t stream) {
  const size_t bytes = BytesOf(variant, shape.outputs, shape.inputs);
  const int launches =
      static_cast<int>(std::min<size_t>(64, std::max<size_t>(2, kGraphBytes / bytes)));
  const std::string row =
      std::string(shape.name) + ", " + std::to_string(rows) + ", " + variant.name;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  cudaEvent_t begin, end;
  cudaError_t error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  for (int i = 0; i < launches && error == cudaSuccess; ++i) {
    const size_t stage = static_cast<size_t>(BytesOfStage(variant));
    const size_t at = i * bytes % (kBufferBytes - bytes + 1) / stage * stage;
    error = Launch(
        variant,
        {memory.weights + at, memory.x, memory.dx, memory.y, rows, shape.outputs, shape.inputs},
        stream);
  }
  const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
  if (!Works(error, row.c_str()) || !Works(ended, row.c_str()) ||
      !Works(cudaGraphInstantiate(&ready, graph, 0), row.c_str())) {
    return;
  }
  cudaEventCreate(&begin), cudaEventCreate(&end);
  std::string values, micros;
  for (int turn = -1; turn < kTurns && error == cudaSuccess; ++turn) {
    cudaEventRecord(begin, stream);
    error = cudaGraphLaunch(ready, stream);
    cudaEventRecord(end, stream);
    if (error == cudaSuccess) error = cudaEventSynchronize(end);
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    if (turn < 0) continue;
    values += (turn == 0 ? "" : ", ") + std::to_string(bytes * launches / 1e6 / ms);
    micros += (turn == 0 ? "" : ", ") + std::to_string(ms * 1e3 / launches);
  }
  if (Works(error, row.c_str())) {
    std::printf("{\"row\": \"%s\", \"unit\": \"GB/s\", \"values\": [%s], \"us\": [%s]}\n",
                row.c_str(), values.c_str(), micros.c_str());
  }
  cudaEventDestroy(begin), cudaEventDestroy(end);
  cudaGraphExecDestroy(ready), cudaGraphDestroy(graph);
}

void RunVariants(const std::vector<Variant>& variants, const Memory& memory, cudaStream_t stream) {
  for (const Variant& variant : variants) {
    for (const int rows : {1, 8, 16, 32}) Check(variant, rows, memory);
  }
  for (const int rows : {1, 8, 32}) {
    for (const Shape& shape : kShapes) {
      for (const Variant& variant : variants) Time(variant, shape, rows, memory, stream);
    }
  }
}

int Main(const std::string& way) {
  if (!way.empty() && way != "rows" && way != "tiles" && way != "integers") {
    std::fprintf(stderr, "usage: product_probe [rows|tiles|integers]\n");
    return 2;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error != cudaSuccess || devices == 0) {
    std::fprintf(stderr, "no CUDA device: %s\n", cudaGetErrorString(error));
    return 2;
  }
  Memory memory = {};
  cudaStream_t stream;
  constexpr size_t kRowValues = size_t{32} * 21504, kScales = kRowValues / kBlockInputs;
  constexpr size_t kResults = size_t{32} * 262144;
  if (!Works(cudaMalloc(&memory.weights, kBufferBytes), "memory") ||
      !Works(cudaMalloc(&memory.x, kRowValues * 2), "memory") ||
      !Works(cudaMalloc(&memory.dx, kScales * sizeof(float)), "memory") ||
      !Works(cudaMalloc(&memory.y, kResults * sizeof(float)), "memory") ||
      !Works(cudaStreamCreate(&stream), "stream")) {
    return 1;
  }
  FillBf16<<<1024, 256>>>(reinterpret_cast<uint16_t*>(memory.weights), kBufferBytes / 2);
  FillBf16<<<1024, 256>>>(memory.x, kRowValues);
  if (!Works(cudaDeviceSynchronize(), "fill")) return 1;
  FillFloats<<<(kScales + 255) / 256, 256>>>(memory.dx, kScales);
  if (way.empty() || way == "rows") RunVariants(RowVariants(), memory, stream);
  if (way.empty() || way == "tiles") RunVariants(TileVariants(), memory, stream);
  if (!way.empty() && way != "integers") return 0;
  FillScales<<<1024, 256>>>(reinterpret_cast<uint16_t*>(memory.weights), kBufferBytes / 2);
  if (!Works(cudaDeviceSynchronize(), "scales")) return 1;
  RunVariants(IntegerVariants(), memory, stream);
  return 0;
}

}  // namespace
}  // namespace hearth

int main(int argc, char** argv) { return hearth::Main(argc > 1 ? argv[1] : ""); }
