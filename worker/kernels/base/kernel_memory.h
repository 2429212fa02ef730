// Memory for the kernels, aligned to a cache line. Large allocations use huge pages if the machine
// grants them: a step reads all weights once, so with pages of 4 KiB address translation would slow
// it down.
//
// Thread safety: AllocateKernelBytes may be called from any thread. A KernelArena or a Workspace is
// for one thread at a time.
// Errors: throws std::bad_alloc.
#ifndef HEARTH_WORKER_KERNELS_BASE_KERNEL_MEMORY_H_
#define HEARTH_WORKER_KERNELS_BASE_KERNEL_MEMORY_H_

#include <cstddef>
#include <cstdlib>
#include <memory>

namespace hearth {

inline constexpr size_t kKernelAlignBytes = 64;  // size of a cache line and of the widest vector
inline constexpr size_t kHugePageBytes = size_t{2} << 20;

struct FreeKernelBytes {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};
using KernelBytes = std::unique_ptr<std::byte, FreeKernelBytes>;

// Returns memory with undefined content. Each complete 2 MiB of `bytes` is requested as a huge
// page; a remainder of at least 7/8 of a huge page is rounded up to one more huge page.
KernelBytes AllocateKernelBytes(size_t bytes);

// Allocates many small pieces from shared regions of huge pages. A region is freed with its last
// piece. If the next piece does not fit in the region, a new region begins.
class KernelArena {
 public:
  std::shared_ptr<std::byte> Take(size_t bytes);

 private:
  static constexpr size_t kRegionBytes = 16 * kHugePageBytes;

  std::shared_ptr<std::byte> region_;
  size_t used_ = 0, room_ = 0;
};

// Scratch buffer of a kernel, reused by the next call. One kernel uses it at a time. It grows when
// a kernel needs more floats, and never shrinks.
class Workspace {
 public:
  // Returns a buffer of `count` floats, aligned to a cache line, with undefined content. The
  // pointer is valid until a call that asks for more floats than any call before.
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
  size_t room_ = 0;  // capacity in floats
};

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_BASE_KERNEL_MEMORY_H_
