// CudaDevice: a Device on an NVIDIA GPU by the CUDA runtime.
//
// Thread safety: none; one thread at a time, which need not be the same each time.
#ifndef HEARTH_WORKER_DEVICE_CUDA_DEVICE_H_
#define HEARTH_WORKER_DEVICE_CUDA_DEVICE_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/device/device.h"

namespace hearth {

class CudaDevice : public Device {
 public:
  // `number`: of the GPU. error() says if there is no such GPU, or no kernels for it.
  explicit CudaDevice(int number = 0);
  ~CudaDevice() override;

  const char* kind() const override { return "cuda"; }
  int processors() const override { return processors_; }
  size_t shared_bytes() const override { return shared_bytes_; }
  size_t free_bytes() const override;
  void* Allocate(size_t bytes) override;
  void Free(void* memory) override;
  void CopyIn(void* to, const void* from, size_t bytes) override;
  void CopyOut(void* to, const void* from, size_t bytes) override;
  void Copy(CopyWay way, void* to, const void* from, const CopyRuns& runs) override;
  void Launch(int program, const void* arguments, int blocks) override;
  // By programmatic dependent launches; GPUs before sm_90 have none.
  void SetOverlap(bool overlap) override { overlap_ = overlap && has_overlap_; }
  std::unique_ptr<DeviceGraph> Capture(const std::function<void()>& launches) override;
  void Wait() override;

  // Whether the GPU has the shared memory and the registers that a program wants.
  bool CanRun(int program) const;
  // The cudaStream_t of all calls.
  void* stream() const { return stream_; }
  // Registers, bytes of local memory (spills) and of shared memory of a program: for measurements.
  struct Facts {
    int registers, local_bytes, shared_bytes, threads;
  };
  Facts FactsOfProgram(int program) const;

 private:
  class Graph;
  // Makes the GPU that of the calling thread. False once a call has failed.
  bool Use();
  bool Check(int code, const char* what);
  bool FindKernels();

  static constexpr size_t kRingBytes = size_t{4} << 20;  // steps' tables: some 100 KB each

  const int number_;
  bool overlap_ = false, has_overlap_ = false;
  int processors_ = 1;
  size_t shared_bytes_ = 0;
  void* stream_ = nullptr;
  std::byte* ring_ = nullptr;  // pinned
  size_t ring_used_ = 0;
  std::vector<bool> takes_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_CUDA_DEVICE_H_
