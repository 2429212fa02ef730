// CudaDevice: a Device on an NVIDIA GPU by the CUDA runtime.
//
// Thread safety: none; one thread at a time.
// Errors: a call of CUDA that fails ends all later ones; error() says which failed and why.
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
  CudaDevice();
  ~CudaDevice() override;

  int processors() const override { return processors_; }
  size_t shared_bytes() const override { return shared_bytes_; }
  void* Allocate(size_t bytes) override;
  void Free(void* memory) override;
  void CopyIn(void* to, const void* from, size_t bytes) override;
  void CopyOut(void* to, const void* from, size_t bytes) override;
  void Launch(int program, const void* arguments, int blocks) override;
  // By programmatic dependent launches; GPUs before sm_90 have none.
  void SetOverlap(bool overlap) override { overlap_ = overlap && has_overlap_; }
  std::unique_ptr<DeviceGraph> Capture(const std::function<void()>& launches) override;
  void Wait() override;

  // Empty as long as all went well.
  const std::string& error() const { return error_; }
  // Whether the GPU has the shared memory and the registers that a program wants.
  bool Takes(int program) const;
  // The cudaStream_t of all calls.
  void* stream() const { return stream_; }
  // Registers, bytes of local memory (spills) and of shared memory of a program: for measurements.
  struct Facts {
    int registers, local_bytes, shared_bytes, threads;
  };
  Facts FactsOfProgram(int program) const;

 private:
  class Graph;
  bool Check(int code, const char* what);

  static constexpr size_t kRingBytes = size_t{4} << 20;  // steps' tables: some 100 KB each

  bool overlap_ = false, has_overlap_ = false;
  int processors_ = 1;
  size_t shared_bytes_ = 0;
  void* stream_ = nullptr;
  std::byte* ring_ = nullptr;  // pinned
  size_t ring_used_ = 0;
  std::string error_;
  std::vector<bool> takes_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_CUDA_DEVICE_H_
