// Device: the forward pass's interface to an accelerator: memory, copies, launches, graphs.
// CudaDevice (cuda_device.h) and EmulatedDevice (emulated_device.h) implement it; both run the
// programs of program_list.h.
//
// Thread safety: none; one thread at a time.
// Ownership: memory lives until Free, or until the device is destroyed.
// Errors: after a call has failed, all later calls do nothing; error() says which call failed and
// why.
#ifndef HEARTH_WORKER_DEVICE_DEVICE_H_
#define HEARTH_WORKER_DEVICE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace hearth {

// Recorded launches that can be repeated. The device must outlive the graph.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  virtual void Replay() = 0;
};

// Direction of a copy: to the device, from the device, or within the device.
enum class CopyWay { kIn, kOut, kWithin };

// `count` runs of `bytes` bytes; each run begins one stride (in bytes) after the previous one.
struct CopyRuns {
  size_t bytes = 0, count = 1;
  size_t from_stride = 0, to_stride = 0;
};

class Device {
 public:
  virtual ~Device() = default;

  // "emulated" or "cuda".
  virtual const char* kind() const = 0;
  // The number of blocks that run at the same time, at least.
  virtual int processors() const = 0;
  // The most shared memory of a block, in bytes.
  virtual size_t shared_bytes() const = 0;
  // The bytes of memory that are free now.
  virtual size_t free_bytes() const = 0;
  // Returns memory with undefined content, aligned to 256 bytes; null if there is none left.
  virtual void* Allocate(size_t bytes) = 0;
  virtual void Free(void* memory) = 0;
  // Copies are ordered with launches. When CopyIn returns, the caller may change `from`; when
  // CopyOut or Copy returns, the copy is done.
  virtual void CopyIn(void* to, const void* from, size_t bytes) = 0;
  virtual void CopyOut(void* to, const void* from, size_t bytes) = 0;
  virtual void Copy(CopyWay way, void* to, const void* from, const CopyRuns& runs) = 0;
  // Runs `blocks` blocks of a program of ProgramList after all earlier launches.
  virtual void Launch(int program, const void* arguments, int blocks) = 0;
  // Sets whether blocks of later launches may start before the previous launch has ended, if the
  // device can do that: programs then overlap in their code before WaitForEarlier. Initially off.
  virtual void SetOverlap(bool) {}
  // Gives an emulation threads: run(parts, body) calls body(part) for each part in [0, parts) on
  // `threads` threads, and returns when all calls have returned. Other devices ignore this call.
  using RunParts =
      std::function<void(int64_t parts, const std::function<void(int64_t part)>& body)>;
  virtual void UseThreads(int /*threads*/, RunParts /*run*/) {}
  // Records the launches that `launches` makes, instead of running them.
  virtual std::unique_ptr<DeviceGraph> Capture(const std::function<void()>& launches) = 0;
  // Waits until all launches are done.
  virtual void Wait() = 0;

  // Empty if no call has failed.
  const std::string& error() const { return error_; }

 protected:
  friend class DeviceArena;
  void Fail(const std::string& error) {
    if (error_.empty()) error_ = error;
  }

 private:
  std::string error_;
};

// Allocates memory that is freed with the arena. If the device has no memory left, the device
// fails.
//
// Thread safety: as the device, which must outlive the arena.
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
