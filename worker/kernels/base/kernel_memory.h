// Memory for the kernels: aligned to a cache line and, where it is large and the machine grants
// them, in huge pages: a step reads all weights once, and with pages of 4 KiB it would wait for
// address translation (decision 135).
//
// Thread safety: AllocateKernelBytes from any thread; a KernelArena by one at a time.
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

// Of undefined content. The part that fills whole huge pages is in huge pages; a rest of seven
// eighths of one or more gets a whole one.
KernelBytes AllocateKernelBytes(size_t bytes);

// Many pieces in common huge pages. A region lives while any of its pieces does; its rest is not
// touched when the next piece does not fit.
class KernelArena {
 public:
  std::shared_ptr<std::byte> Take(size_t bytes);

 private:
  static constexpr size_t kRegionBytes = 16 * kHugePageBytes;

  std::shared_ptr<std::byte> region_;
  size_t used_ = 0, room_ = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_BASE_KERNEL_MEMORY_H_
