// Memory for the kernels: aligned to a cache line and, where it is large and the machine grants
// them, in huge pages: a step reads all weights once, and with pages of 4 KiB it would wait for
// address translation.
//
// Thread safety: AllocateKernelBytes from any thread; a KernelArena and a Workspace by one at a
// time.
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

// Scratch memory of a kernel, kept for the next call: one kernel at a time. A call for no more than
// there was room for only reads. Grows, and shrinks only when it dies.
class Workspace {
 public:
  // Room for `count` floats, aligned to a cache line, of undefined content; valid until a call
  // for more.
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
  size_t room_ = 0;  // floats
};

}  // namespace hearth

#endif  // HEARTH_WORKER_KERNELS_BASE_KERNEL_MEMORY_H_
