// EmulatedDevice: runs device programs on the CPU, for tests and for machines without a GPU. Newly
// allocated memory and the shared memory of each block are filled with NaN.
//
// A transfer is performed as late as its events allow: when a caller waits for an event, or before
// the first launch or copy that must wait for it. So a missing wait gives wrong bits. If the source
// of a transfer has changed by then, or if its device memory was freed, the device fails.
//
// Thread safety: none; one thread at a time. A DeviceEvent may be used from any thread.
#ifndef HEARTH_WORKER_DEVICE_EMULATED_DEVICE_H_
#define HEARTH_WORKER_DEVICE_EMULATED_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/device/device.h"

namespace hearth {

class EmulatedDevice : public Device {
 public:
  // If `late`, an asynchronous copy is performed when the program waits for it; else when it
  // starts.
  explicit EmulatedDevice(bool late = false);
  ~EmulatedDevice() override;

  // For tests: if `full`, all emulated devices together get no more memory than they use now.
  static void SetFull(bool full);

  const char* kind() const override { return "emulated"; }
  int processors() const override { return 3; }
  size_t shared_bytes() const override { return size_t{256} << 10; }
  bool has_fused_dot() const override { return true; }
  bool has_warpgroups() const override { return true; }
  bool is_asynchronous() const override { return false; }
  size_t free_bytes() const override { return SIZE_MAX; }  // the real value is unknown
  void* Allocate(size_t bytes) override;
  void Free(void* memory) override;
  void* AllocateHost(size_t bytes) override { return std::malloc(bytes); }
  void FreeHost(void* memory) override { std::free(memory); }
  void CopyIn(void* to, const void* from, size_t bytes) override;
  void CopyOut(void* to, const void* from, size_t bytes) override;
  void Copy(CopyWay way, void* to, const void* from, const CopyRuns& runs) override;
  void StartTransfer(CopyWay way, void* to, const void* from, const CopyRuns& runs) override;
  void MakeTransfersWait() override {}  // launches and copies have ended when their call returns
  std::shared_ptr<DeviceEvent> RecordTransfers() override;
  void MakeLaunchesWait(const DeviceEvent& event) override;
  void StartCopyOut(void* to, const void* from, size_t bytes) override { CopyOut(to, from, bytes); }
  void Launch(int program, const void* arguments, int blocks) override;
  // The `threads` threads divide the blocks of a launch among themselves.
  void UseThreads(int threads, RunParts run) override {
    threads_ = threads;
    run_parts_ = std::move(run);
  }
  std::unique_ptr<DeviceGraph> Capture(const std::function<void()>& launches) override;
  void Wait() override { Arrive(); }

  // For tests. Number of copies and transfers by CopyWay, without CopyIn and CopyOut of the step;
  // number of transfers that were performed.
  struct Counts {
    int copies[3] = {}, transfers[3] = {}, performed = 0;
  };
  Counts counts() const;
  // Makes the device fail when it performs the transfer after `more` further transfers.
  void FailTransferAfter(int more);

 private:
  struct Recorded {
    int program;
    std::vector<std::byte> arguments;
    int blocks;
  };
  class Graph;
  class Transfers;
  class Event;
  struct Release {
    void operator()(void* memory) const { std::free(memory); }
  };

  struct Allocation {
    std::unique_ptr<void, Release> memory;
    size_t bytes;
  };

  void Run(int program, const void* arguments, int blocks);
  // Performs the transfers that later launches and copies wait for.
  void Arrive();

  int threads_ = 1;
  RunParts run_parts_;  // calls parts on `threads_` threads; unused if threads_ is 1
  std::map<void*, Allocation> memory_;
  std::vector<Recorded>* recording_ = nullptr;
  const std::shared_ptr<Transfers> transfers_;
  int awaited_ = 0;  // number of the last transfer that launches wait for
};

}  // namespace hearth

#endif  // HEARTH_WORKER_DEVICE_EMULATED_DEVICE_H_
