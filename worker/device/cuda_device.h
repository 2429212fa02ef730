// CudaDevice: a Device on an NVIDIA GPU, by the CUDA runtime.
//
// Thread safety: none; one thread at a time, not necessarily the same thread.
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
  // `number`: the GPU's number. If the GPU does not exist, or this build has no kernels for it,
  // error() says so.
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
  // Uses programmatic dependent launches; no effect on GPUs before sm_90.
  void SetOverlap(bool overlap) override { overlap_ = overlap && has_overlap_; }
  std::unique_ptr<DeviceGraph> Capture(const std::function<void()>& launches) override;
  void Wait() override;

  // Returns whether the GPU has the shared memory and the registers for a program.
  bool CanRun(int program) const;
  // The cudaStream_t of all calls.
  void* stream() const { return stream_; }
  // Registers, bytes of local memory (spills), bytes of shared memory and threads of a program: for
  // measurements.
  struct Facts {
    int registers, local_bytes, shared_bytes, threads;
  };
  Facts FactsOfProgram(int program) const;

 private:
  class Graph;
  // Selects the GPU in the calling thread. Returns false if an earlier call failed.
  bool Use();
  bool Check(int code, const char* what);
  bool FindKernels();

  static constexpr size_t kRingBytes = size_t{4} << 20;  // the tables of a step take some 100 KB

  const int number_;
  bool overlap_ = false, has_overlap_ = false;
  int processors_ = 1;
  size_t shared_bytes_ = 0;
  void* stream_ = nullptr;
  std::byte* ring_ = nullptr;  // pinned, kRingBytes
  size_t ring_used_ = 0;
  std::vector<bool> takes_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_CUDA_DEVICE_H_
