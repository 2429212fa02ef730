// Block programs: GPU kernels, written as the code of one thread block. nvcc compiles a program for
// a GPU; g++ compiles it for the CPU, as loops over warps and lanes. The code between two barriers
// is a phase.
//
// A program is a struct whose members are its arguments, with:
//   static constexpr int kWarps;           // warps of a block
//   struct Shared;                         // the block's shared memory; trivial types
//   void Run(Shared*, BlockNumber) const;  // run by all threads of the block
//
// With these rules, both compilers produce the same program:
//   1. If a thread needs a value in a later phase, the value is in a PerThread.
//   2. Warp-wide operations (ShuffleXor) are inside FOR_WARPS and outside FOR_LANES.
//   3. A phase reads from shared memory only values written by earlier phases or by the same
//      thread.
//   4. BARRIER, CommitCopies, WaitCopies and WaitForEarlier are outside FOR_WARPS, in control flow
//      that is the same for all threads of the block.
//
// Thread safety: a host thread runs one block at a time. With HEARTH_WARPS_AS_THREADS each warp is
// a host thread, so ThreadSanitizer reports accesses that no barrier separates.
#ifndef HEARTH_WORKER_DEVICE_BLOCK_PROGRAM_H_
#define HEARTH_WORKER_DEVICE_BLOCK_PROGRAM_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "worker/kernels/functions.h"
#include "worker/kernels/fused_dot.h"

#if !defined(__CUDA_ARCH__)
#include "worker/device/late_copies.h"
#endif

namespace hearth {

// Number of a thread block, and number of thread blocks in the launch.
struct BlockNumber {
  int number, count;
};

#if defined(__CUDA_ARCH__)

#define FOR_WARPS(warp, warps) \
  for (int warp = threadIdx.x >> 5, once_##warp = 1; once_##warp; once_##warp = 0)
#define FOR_LANES(lane) \
  for (int lane = threadIdx.x & 31, once_##lane = 1; once_##lane; once_##lane = 0)
#define BARRIER() __syncthreads()
#define HEARTH_PRAGMA(text) _Pragma(#text)
#define HEARTH_UNROLL HEARTH_PRAGMA(unroll)
#define HEARTH_UNROLL_BY(times) HEARTH_PRAGMA(unroll times)

// N values for each thread; on a GPU, a local variable of the thread.
template <typename T, int N, int kWarps>
class PerThread {
 public:
  __device__ __forceinline__ T* At(int, int) { return values_; }

 private:
  T values_[N];
};

#else  // CPU

#if defined(HEARTH_WARPS_AS_THREADS)
void BlockBarrier();  // in emulated_device.cc
int ThisWarp();
#define FOR_WARPS(warp, warps) \
  for (int warp = ::hearth::ThisWarp(), once_##warp = 1; once_##warp; once_##warp = 0)
#define BARRIER() ::hearth::BlockBarrier()
#else
#define FOR_WARPS(warp, warps) for (int warp = 0; warp < (warps); ++warp)
#define BARRIER() (void)0
#endif
#define FOR_LANES(lane) for (int lane = 0; lane < 32; ++lane)
#define HEARTH_UNROLL
#define HEARTH_UNROLL_BY(times)

template <typename T, int N, int kWarps>
class PerThread {
 public:
  T* At(int warp, int lane) { return values_[warp][lane]; }

 private:
  T values_[kWarps][32][N];
};

#endif

// Starts an asynchronous copy of 16 bytes from global to shared memory. After WaitCopies the
// calling thread may read the bytes; after a barrier that follows, other threads may read them too.
HEARTH_HOST_DEVICE void Copy16(void* to, const void* from) {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
#else
  LateCopies::Add(to, from);
#endif
}
// Closes the current group of asynchronous copies (cp.async.commit_group).
HEARTH_HOST_DEVICE void CommitCopies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  LateCopies::Commit();
#endif
}
// Waits until at most the kLeft most recent groups of copies are in progress.
template <int kLeft>
HEARTH_HOST_DEVICE void WaitCopies() {
#if defined(__CUDA_ARCH__)
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
#else
  LateCopies::Wait(kLeft);
#endif
}

// Programmatic dependent launches: AllowNextLaunch lets the blocks of the next program start;
// WaitForEarlier waits until all earlier launches are done. If the device has no such launches,
// both functions do nothing.
// REQUIRES: every program calls WaitForEarlier first and AllowNextLaunch second; in the other
// order, waiting blocks of many later launches occupy the device. Before WaitForEarlier a program
// may read weights and the StepTable, but must not access memory that another program writes.
HEARTH_HOST_DEVICE void AllowNextLaunch() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
HEARTH_HOST_DEVICE void WaitForEarlier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Warp shuffle: each lane copies `values[at]` of lane `lane ^ mask` into its `to[to_at]`.
template <typename T, int N, int M, int kWarps>
HEARTH_HOST_DEVICE void ShuffleXor(PerThread<T, N, kWarps>* values, int at, int mask, int warp,
                                   PerThread<T, M, kWarps>* to, int to_at) {
#if defined(__CUDA_ARCH__)
  to->At(0, 0)[to_at] = __shfl_xor_sync(0xffffffffu, values->At(0, 0)[at], mask);
#else
  T all[32];
  for (int lane = 0; lane < 32; ++lane) all[lane] = values->At(warp, lane)[at];
  for (int lane = 0; lane < 32; ++lane) to->At(warp, lane)[to_at] = all[lane ^ mask];
#endif
}

// Rounds two floats to the nearest bfloat16, ties to even; `low` becomes the lower half.
HEARTH_HOST_DEVICE uint32_t Bf16Pair(float low, float high) {
#if defined(__CUDA_ARCH__)
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
#else
  return NarrowOne(low).bits | uint32_t{NarrowOne(high).bits} << 16;
#endif
}
HEARTH_HOST_DEVICE uint16_t Bf16Of(float value) {
  return static_cast<uint16_t>(Bf16Pair(value, 0));
}

// Hints to the compiler that an address read from a table points to global memory.
template <typename T>
HEARTH_HOST_DEVICE T* InGlobal(T* address) {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(address));
#endif
  return address;
}

template <int N>
struct alignas(4 * N) Floats {
  float v[N];
};
using Float4 = Floats<4>;
struct alignas(16) Word4 {
  uint32_t v[4];
};

// Loads N floats with one instruction.
template <int N>
HEARTH_HOST_DEVICE Floats<N> LoadFloats(const float* from) {
  return *reinterpret_cast<const Floats<N>*>(from);
}
HEARTH_HOST_DEVICE Float4 LoadFloat4(const float* from) { return LoadFloats<4>(from); }
// Loads N values of bfloat16 with one instruction and widens them.
template <int N>
HEARTH_HOST_DEVICE Floats<N> LoadFloats(const BFloat16* from) {
  struct alignas(2 * N) Narrow {
    uint16_t bits[N];
  };
  const Narrow narrow = *reinterpret_cast<const Narrow*>(from);
  Floats<N> wide;
  HEARTH_UNROLL
  for (int i = 0; i < N; ++i) wide.v[i] = exact::FloatOf(uint32_t{narrow.bits[i]} << 16);
  return wide;
}
HEARTH_HOST_DEVICE Word4 LoadWord4(const void* from) {
  return *reinterpret_cast<const Word4*>(from);
}
template <int N>
HEARTH_HOST_DEVICE void StoreFloats(float* to, const Floats<N>& values) {
  *reinterpret_cast<Floats<N>*>(to) = values;
}

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_BLOCK_PROGRAM_H_
