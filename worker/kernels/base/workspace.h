// Workspace: scratch memory of a kernel, kept for the next call.
//
// Thread safety: none while it grows; a call for no more than there was room for only reads. One
// kernel at a time. Grows, and shrinks only when it dies.
#ifndef HEARTH_WORKER_KERNELS_BASE_WORKSPACE_H_
#define HEARTH_WORKER_KERNELS_BASE_WORKSPACE_H_

#include <cstddef>

#include "worker/kernels/base/kernel_memory.h"

namespace hearth {

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

#endif  // HEARTH_WORKER_KERNELS_BASE_WORKSPACE_H_
