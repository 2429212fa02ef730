// The programs of ProgramList as CUDA kernels. nvcc compiles only this file.
#include "worker/device/cuda_kernels.h"
#include "worker/device/program_list.h"

namespace hearth {
namespace {

template <class Program>
__global__ void __launch_bounds__(Program::kWarps * 32, 1)
    RunProgram(const __grid_constant__ Program program) {
  extern __shared__ __align__(128) unsigned char memory[];
  program.Run(reinterpret_cast<typename Program::Shared*>(memory),
              {static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x)});
}

template <class Program>
CudaKernel KernelOf() {
  if constexpr (std::is_same_v<Program, NoProgram>) {
    return {};
  } else {
    return {reinterpret_cast<const void*>(&RunProgram<Program>), Program::kWarps * 32,
            sizeof(typename Program::Shared)};
  }
}

template <class... Programs>
const CudaKernel& KernelIn(TypeList<Programs...>, int number) {
  static const CudaKernel kKernels[] = {KernelOf<Programs>()...};
  return kKernels[number];
}

}  // namespace

int CudaKernels() { return ProgramList::kCount; }
const CudaKernel& KernelNumber(int program) { return KernelIn(ProgramList(), program); }

}  // namespace hearth
