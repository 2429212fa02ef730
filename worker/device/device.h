// Device: interface of the forward pass to an accelerator (memory, copies, launches, graphs).
// Implementations: CudaDevice (cuda_device.h) and EmulatedDevice (emulated_device.h). Both run the
// programs of program_list.h.
//
// The device has two queues. Launches and copies run in one queue, in the order of the calls.
// Transfers run in the other queue, in the order of the calls. Events order the two queues.
//
// Thread safety: none; one thread at a time. A DeviceEvent may be used from any thread.
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

// A captured sequence of launches that can be run again. The device must outlive the graph.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  virtual void Replay() = 0;
};

// A point in a device's queue of transfers: it ends when all earlier transfers have ended.
//
// Thread safety: any thread. The device must outlive the event's methods.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Waits until the event has ended. Returns false if the device has failed: the bytes of the
  // transfers are then undefined.
  virtual bool Wait() = 0;
};

// Direction of a copy: to the device, from the device, or within the device.
enum class CopyWay { kIn, kOut, kWithin };

// A strided copy: `count` runs of `bytes` bytes. The strides, in bytes, are the distances between
// the beginnings of two consecutive runs.
struct CopyRuns {
  size_t bytes = 0, count = 1;
  size_t from_stride = 0, to_stride = 0;
};

// Functions that pin host memory: transfers from and to it run at the speed of the link, and do not
// delay the calling thread. `pin` returns false if the memory stays pageable. Any thread may call
// them, also after the device was destroyed. Empty: the device has none.
struct HostPinning {
  std::function<bool(void* memory, size_t bytes)> pin;
  std::function<void(void* memory)> unpin;
};

inline constexpr char kEmulatedDevice[] = "emulated";

class Device {
 public:
  virtual ~Device() = default;

  // Returns "emulated" or "cuda".
  virtual const char* kind() const = 0;
  // Returns the minimum number of thread blocks that run at the same time.
  virtual int processors() const = 0;
  // Returns the maximum shared memory of a thread block, in bytes.
  virtual size_t shared_bytes() const = 0;
  // Returns whether the matrix instructions for bfloat16 give the bits of FusedDot (fused_dot.h).
  virtual bool has_fused_dot() const = 0;
  // Returns whether the device can run WarpgroupProductProgram.
  virtual bool has_warpgroups() const { return false; }
  // Returns whether launches and StartCopyOut may return before they are executed.
  virtual bool is_asynchronous() const { return true; }
  // Returns the number of bytes of device memory that are free now.
  virtual size_t free_bytes() const = 0;
  virtual HostPinning pinning() const { return {}; }
  // Allocates device memory with undefined content, aligned to 256 bytes. Returns null if the
  // device has too little memory.
  virtual void* Allocate(size_t bytes) = 0;
  virtual void Free(void* memory) = 0;
  // Allocates host memory that the device reaches fast (pinned memory), aligned to 16 bytes.
  // Returns null if there is too little memory. FreeHost may be called from any thread.
  virtual void* AllocateHost(size_t bytes) = 0;
  virtual void FreeHost(void* memory) = 0;
  // Copies and launches are executed in the order of the calls. When CopyIn returns, the caller may
  // change `from`. When CopyOut or Copy returns, the copy is done.
  virtual void CopyIn(void* to, const void* from, size_t bytes) = 0;
  virtual void CopyOut(void* to, const void* from, size_t bytes) = 0;
  virtual void Copy(CopyWay way, void* to, const void* from, const CopyRuns& runs) = 0;
  // Starts a copy to memory of AllocateHost, in the order of the calls. The copy is done when Wait
  // returns.
  virtual void StartCopyOut(void* to, const void* from, size_t bytes) = 0;
  // Starts a transfer and returns. Before an event that is recorded later has ended, the memory at
  // `from` must not change, and neither memory may be freed. With pageable host memory the call may
  // wait for the copy.
  virtual void StartTransfer(CopyWay way, void* to, const void* from, const CopyRuns& runs) = 0;
  // Makes later transfers begin after all launches and copies so far have ended.
  virtual void MakeTransfersWait() = 0;
  // Returns an event that ends when all transfers so far have ended.
  virtual std::shared_ptr<DeviceEvent> RecordTransfers() = 0;
  // Makes later launches and copies begin after the event has ended. REQUIRES: no capture runs.
  virtual void MakeLaunchesWait(const DeviceEvent& event) = 0;
  // Runs `blocks` thread blocks of the program with number `program` in ProgramList, after all
  // earlier launches.
  virtual void Launch(int program, const void* arguments, int blocks) = 0;
  // If `overlap` is true and the device supports it, blocks of a later launch may start before the
  // previous launch has ended: they run up to their WaitForEarlier. Default: false.
  virtual void SetOverlap(bool) {}
  // Makes an emulated device use `threads` threads: run(parts, body) calls body(part) for each part
  // in [0, parts) on these threads, and returns when all calls have returned. A GPU ignores this
  // call.
  using RunParts =
      std::function<void(int64_t parts, const std::function<void(int64_t part)>& body)>;
  virtual void UseThreads(int /*threads*/, RunParts /*run*/) {}
  // Calls `launches` and returns the time in microseconds that they take on the device. If the
  // device cannot measure, returns a negative number without calling `launches`.
  virtual double Time(const std::function<void()>& /*launches*/) { return -1; }
  // Calls `launches` and records its launches without running them. Returns null if the device has
  // too little memory for the graph.
  virtual std::unique_ptr<DeviceGraph> Capture(const std::function<void()>& launches) = 0;
  // Waits until all launches have ended.
  virtual void Wait() = 0;

  // The error of the first failed call; empty if no call has failed.
  const std::string& error() const { return error_; }

 protected:
  friend class DeviceArena;
  void Fail(const std::string& error) {
    if (error_.empty()) error_ = error;
  }

 private:
  std::string error_;
};

// Allocates device memory; the arena's destructor frees this memory. If an allocation fails, the
// device's error() is set.
//
// Thread safety: none; one thread at a time uses the device and its arenas. The device must outlive
// the arena.
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

inline bool IsEmulated(const Device& device) {
  return std::string(device.kind()) == kEmulatedDevice;
}

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_DEVICE_H_
