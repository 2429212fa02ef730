// Device: what the forward pass asks of an accelerator: memory, copies, launches, graphs.
// CudaDevice (cuda_device.h) and EmulatedDevice (emulated_device.h) implement it; both run the
// programs of program_list.h.
//
// Thread safety: none; one thread at a time.
// Ownership: memory lives until Free, or until the device ends.
#ifndef HEARTH_WORKER_DEVICE_DEVICE_H_
#define HEARTH_WORKER_DEVICE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace hearth {

// Launches that were recorded once and can be repeated. The device must outlive it.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  virtual void Replay() = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  // How many blocks run at the same time, at least.
  virtual int processors() const = 0;
  // Most shared memory of a block.
  virtual size_t shared_bytes() const = 0;
  // Memory of undefined content, aligned to 256 bytes. Null where there is none left.
  virtual void* Allocate(size_t bytes) = 0;
  virtual void Free(void* memory) = 0;
  // Copies are ordered with launches. `from` of CopyIn may be changed, and `to` of CopyOut is
  // there, when the call returns.
  virtual void CopyIn(void* to, const void* from, size_t bytes) = 0;
  virtual void CopyOut(void* to, const void* from, size_t bytes) = 0;
  // Runs `blocks` blocks of a program of ProgramList after all launches before.
  virtual void Launch(int program, const void* arguments, int blocks) = 0;
  // Whether blocks of later launches may start while the launch before them ends, where the device
  // can: programs then overlap by what they do before WaitForEarlier. Off at first.
  virtual void SetOverlap(bool) {}
  // Records what `launches` launches instead of running it.
  virtual std::unique_ptr<DeviceGraph> Capture(const std::function<void()>& launches) = 0;
  // Returns when all launches are done.
  virtual void Wait() = 0;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_DEVICE_H_
