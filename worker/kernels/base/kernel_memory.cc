#include "worker/kernels/base/kernel_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace hearth {
namespace {

size_t RoundUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// Returns the bytes at the beginning of the allocation to request as huge pages; this may be more
// than `bytes`.
size_t HugeBytes(size_t bytes) {
  const size_t rest = bytes % kHugePageBytes;
  return rest >= kHugePageBytes / 8 * 7 ? bytes - rest + kHugePageBytes : bytes - rest;
}

}  // namespace

KernelBytes AllocateKernelBytes(size_t bytes) {
  const size_t huge = HugeBytes(bytes);
  void* memory = nullptr;
  if (posix_memalign(&memory, huge > 0 ? kHugePageBytes : kKernelAlignBytes,
                     std::max({bytes, huge, size_t{1}})) != 0) {
    throw std::bad_alloc();
  }
  // madvise is only a hint: without huge pages the kernels are slower.
  if (huge > 0) (void)madvise(memory, huge, MADV_HUGEPAGE);
  return KernelBytes(static_cast<std::byte*>(memory));
}

std::shared_ptr<std::byte> KernelArena::Take(size_t bytes) {
  if (bytes > room_ - used_) {
    room_ = std::max(kRegionBytes, RoundUp(bytes, kHugePageBytes));
    used_ = 0;
    region_ = AllocateKernelBytes(room_);
  }
  std::shared_ptr<std::byte> piece(region_, region_.get() + used_);
  used_ = std::min(room_, used_ + RoundUp(bytes, kKernelAlignBytes));
  return piece;
}

}  // namespace hearth
