// The programs of ProgramList as kernels that the CUDA runtime can launch.
//
// Thread safety: pure functions.
#ifndef HEARTH_WORKER_DEVICE_CUDA_KERNELS_H_
#define HEARTH_WORKER_DEVICE_CUDA_KERNELS_H_

#include <cstddef>

namespace hearth {

struct CudaKernel {
  const void* function = nullptr;  // null for NoProgram
  unsigned threads = 0;            // threads of one block
  size_t shared_bytes = 0;
};

int CudaKernels();  // the number of programs in ProgramList
const CudaKernel& KernelNumber(int program);

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_CUDA_KERNELS_H_
