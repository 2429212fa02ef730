// Memory for the kernels, aligned to a cache line. Large allocations are in huge pages if the
// machine grants them: a step reads all weights once, and with pages of 4 KiB it would wait for
// address translation.
//
// Thread safety: AllocateKernelBytes may be called from any thread; a KernelArena and a Workspace
// serve one thread at a time.
// Errors: std::bad_alloc.
#ifndef HEARTH_WORKER_KERNELS_BASE_KERNEL_MEMORY_H_
#define HEARTH_WORKER_KERNELS_BASE_KERNEL_MEMORY_H_

#include <cstddef>
#include <cstdlib>
#include <memory>

namespace hearth {

inline constexpr size_t kKernelAlignBytes = 64;  // a cache line, and the widest vector
inline constexpr size_t kHugePageBytes = size_t{2} << 20;

struct FreeKernelBytes {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using KernelBytes = std::unique_ptr<std::byte, FreeKernelBytes>;

// Returns memory with undefined content. Whole huge pages of the size are requested as huge pages;
// a remainder of at least 7/8 of a huge page gets a huge page of its own.
KernelBytes AllocateKernelBytes(size_t bytes);

// Cuts many pieces out of shared huge pages. A region lives until its last piece is freed. If the
// next piece does not fit, the rest of the region stays unused.
class KernelArena {
 public:
  std::shared_ptr<std::byte> Take(size_t bytes);

 private:
  static constexpr size_t kRegionBytes = 16 * kHugePageBytes;

  std::shared_ptr<std::byte> region_;
  size_t used_ = 0, room_ = 0;
};

// Scratch memory of a kernel, kept for the next call. One kernel uses it at a time. A call that
// needs no more room than is there changes nothing. It grows, and never shrinks.
class Workspace {
 public:
  // Returns room for `count` floats, aligned to a cache line, with undefined content. The pointer
  // is valid until a call that asks for more floats.
  float* Floats(size_t count) {
    if (count > room_) {
      bytes_.reset();
      room_ = 0;
      bytes_ = AllocateKernelBytes(count * sizeof(float));
      room_ = count;
    }
    return reinterpret_cast<float*>(bytes_.get());
  }

 private:
  KernelBytes bytes_;
  size_t room_ = 0;  // in floats
};

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_BASE_KERNEL_MEMORY_H_
