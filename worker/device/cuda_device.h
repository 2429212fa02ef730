// CudaDevice: implements Device on an NVIDIA GPU with the CUDA runtime.
//
// Thread safety: none; calls may come from different threads, but only one at a time.
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
  // `number`: the GPU's index in CUDA. If the GPU does not exist, or if this build has no kernels
  // for its compute capability, error() says so.
  explicit CudaDevice(int number = 0);
  ~CudaDevice() override;

  const char* kind() const override { return "cuda"; }
  int processors() const override { return processors_; }
  size_t shared_bytes() const override { return shared_bytes_; }
  // Measured on compute capability 9.0. On later GPUs ProbeFusedDot decides.
  bool has_fused_dot() const override { return major_ >= 9; }
  bool has_warpgroups() const override { return major_ == 9; }
  size_t free_bytes() const override;
  HostPinning pinning() const override;
  void* Allocate(size_t bytes) override;
  void Free(void* memory) override;
  void* AllocateHost(size_t bytes) override;
  void FreeHost(void* memory) override;
  void CopyIn(void* to, const void* from, size_t bytes) override;
  void CopyOut(void* to, const void* from, size_t bytes) override;
  void Copy(CopyWay way, void* to, const void* from, const CopyRuns& runs) override;
  void StartCopyOut(void* to, const void* from, size_t bytes) override;
  void StartTransfer(CopyWay way, void* to, const void* from, const CopyRuns& runs) override;
  void MakeTransfersWait() override;
  std::shared_ptr<DeviceEvent> RecordTransfers() override;
  void MakeLaunchesWait(const DeviceEvent& event) override;
  void Launch(int program, const void* arguments, int blocks) override;
  // Enables programmatic dependent launches; no effect on GPUs before sm_90.
  void SetOverlap(bool overlap) override { overlap_ = overlap && major_ >= 9; }
  double Time(const std::function<void()>& launches) override;
  std::unique_ptr<DeviceGraph> Capture(const std::function<void()>& launches) override;
  void Wait() override;

  // Returns whether the program fits in the GPU's shared memory and registers.
  bool CanRun(int program) const;
  // The cudaStream_t of launches and copies.
  void* stream() const { return stream_; }
  // For measurements: registers of a thread, bytes of local memory (register spills), bytes of
  // shared memory and threads of a block.
  struct Facts {
    int registers, local_bytes, shared_bytes, threads;
  };
  Facts FactsOfProgram(int program) const;

 private:
  class Graph;
  class Event;
  // Makes the GPU current in the calling thread. Returns false if this call or an earlier one
  // failed.
  bool Use();
  bool Check(int code, const char* what);
  void CopyOn(void* stream, CopyWay way, void* to, const void* from, const CopyRuns& runs);
  bool FindKernels();

  // Bytes of the pinned ring buffer; the tables of a step need about 100 KB.
  static constexpr size_t kRingBytes = size_t{4} << 20;

  const int number_;
  bool overlap_ = false;
  int major_ = 0;  // compute capability
  int processors_ = 1;
  size_t shared_bytes_ = 0;
  void *stream_ = nullptr, *transfers_ = nullptr;  // cudaStream_t of each queue
  std::unique_ptr<Event> launched_;                // recorded by MakeTransfersWait
  std::byte* ring_ = nullptr;                      // pinned memory of kRingBytes
  size_t ring_used_ = 0;
  std::vector<bool> takes_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_CUDA_DEVICE_H_
