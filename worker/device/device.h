// Device: what the forward pass asks of an accelerator: memory, copies, launches, graphs.
// CudaDevice (cuda_device.h) and EmulatedDevice (emulated_device.h) implement it; both run the
// programs of program_list.h.
//
// Thread safety: none; one thread at a time.
// Ownership: memory lives until Free, or until the device ends.
// Errors: a call that fails ends all later ones; error() says which failed and why.
#ifndef HEARTH_WORKER_DEVICE_DEVICE_H_
#define HEARTH_WORKER_DEVICE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace hearth {

// Launches that were recorded once and can be repeated. The device must outlive it.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  virtual void Replay() = 0;
};

// Between host and device, or within the device.
enum class CopyWay { kIn, kOut, kWithin };

// `count` runs of `bytes`; each begins a stride behind the one before it.
struct CopyRuns {
  size_t bytes = 0, count = 1;
  size_t from_stride = 0, to_stride = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  // "emulated", "cuda".
  virtual const char* kind() const = 0;
  // How many blocks run at the same time, at least.
  virtual int processors() const = 0;
  // Most shared memory of a block.
  virtual size_t shared_bytes() const = 0;
  // Memory that is free now.
  virtual size_t free_bytes() const = 0;
  // Memory of undefined content, aligned to 256 bytes. Null where there is none left.
  virtual void* Allocate(size_t bytes) = 0;
  virtual void Free(void* memory) = 0;
  // Copies are ordered with launches. `from` of CopyIn may be changed, and `to` of CopyOut is
  // there, when the call returns. Copy is done when the call returns.
  virtual void CopyIn(void* to, const void* from, size_t bytes) = 0;
  virtual void CopyOut(void* to, const void* from, size_t bytes) = 0;
  virtual void Copy(CopyWay way, void* to, const void* from, const CopyRuns& runs) = 0;
  // Runs `blocks` blocks of a program of ProgramList after all launches before.
  virtual void Launch(int program, const void* arguments, int blocks) = 0;
  // Whether blocks of later launches may start while the launch before them ends, where the device
  // can: programs then overlap by what they do before WaitForEarlier. Off at first.
  virtual void SetOverlap(bool) {}
  // Gives an emulation threads: run(parts, body) calls body(part) for each part from 0 to parts - 1
  // on `threads` threads, and returns when all are done. Other devices ignore it.
  using RunParts =
      std::function<void(int64_t parts, const std::function<void(int64_t part)>& body)>;
  virtual void UseThreads(int /*threads*/, RunParts /*run*/) {}
  // Records what `launches` launches instead of running it.
  virtual std::unique_ptr<DeviceGraph> Capture(const std::function<void()>& launches) = 0;
  // Returns when all launches are done.
  virtual void Wait() = 0;

  // Empty as long as all went well.
  const std::string& error() const { return error_; }

 protected:
  friend class DeviceArena;
  void Fail(const std::string& error) {
    if (error_.empty()) error_ = error;
  }

 private:
  std::string error_;
};

// Memory that is freed when the arena ends. If the device has no memory left, the device fails.
//
// Thread safety: as the device, which must outlive it.
class DeviceArena {
 public:
  explicit DeviceArena(Device* device) : device_(device) {}
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;
  ~DeviceArena() {
    for (void* memory : taken_) device_->Free(memory);
  }

  template <typename T>
  T* Take(size_t count) {
    const size_t bytes = (count > 0 ? count : 1) * sizeof(T);
    void* memory = device_->Allocate(bytes);
    if (memory == nullptr) {
      device_->Fail("no memory for " + std::to_string(bytes) + " bytes");
    } else {
      taken_.push_back(memory);
    }
    return static_cast<T*>(memory);
  }

 private:
  Device* const device_;
  std::vector<void*> taken_;
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_DEVICE_H_
