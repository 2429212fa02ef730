// LateDevice: an emulated device that runs launches and copies only when the host waits for them,
// so a result that is read too early is NaN or old.
//
// Thread safety: none; one thread at a time.
#ifndef HEARTH_TESTS_SUPPORT_LATE_DEVICE_H_
#define HEARTH_TESTS_SUPPORT_LATE_DEVICE_H_

#include <atomic>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "worker/device/emulated_device.h"

namespace hearth {

class LateDevice : public EmulatedDevice {
 public:
  bool is_asynchronous() const override { return is_late; }
  void Free(void* memory) override {
    RunAll();
    EmulatedDevice::Free(memory);
  }
  void CopyIn(void* to, const void* from, size_t bytes) override {
    const auto* const begin = static_cast<const std::byte*>(from);
    work_.push_back([this, to, copy = std::vector<std::byte>(begin, begin + bytes)] {
      EmulatedDevice::CopyIn(to, copy.data(), copy.size());
    });
  }
  void CopyOut(void* to, const void* from, size_t bytes) override {
    RunAll();
    EmulatedDevice::CopyOut(to, from, bytes);
  }
  void Copy(CopyWay way, void* to, const void* from, const CopyRuns& runs) override {
    RunAll();
    EmulatedDevice::Copy(way, to, from, runs);
  }
  void StartCopyOut(void* to, const void* from, size_t bytes) override {
    copied_bytes += bytes;
    std::memset(to, 0xff, bytes);
    work_.push_back([this, to, from, bytes] { EmulatedDevice::CopyOut(to, from, bytes); });
  }
  void MakeTransfersWait() override { RunAll(); }
  std::shared_ptr<DeviceEvent> RecordTransfers() override {
    return std::make_shared<Event>(this, EmulatedDevice::RecordTransfers());
  }
  void MakeLaunchesWait(const DeviceEvent& event) override {
    EmulatedDevice::MakeLaunchesWait(*static_cast<const Event&>(event).inner);
  }
  void Launch(int program, const void* arguments, int blocks) override {
    const auto launch = [&] { EmulatedDevice::Launch(program, arguments, blocks); };
    if (captures_) return launch();
    Graph(this, EmulatedDevice::Capture(launch)).Replay();
  }
  std::unique_ptr<DeviceGraph> Capture(const std::function<void()>& launches) override {
    captures_ = true;
    auto graph = std::make_unique<Graph>(this, EmulatedDevice::Capture(launches));
    captures_ = false;
    return graph;
  }
  void Wait() override {
    RunAll();
    if (fails) Fail("the programs' end: an illegal memory access was encountered");
    EmulatedDevice::Wait();
  }

  // Whether launches or copies have been started and not waited for.
  bool is_running() const { return !work_.empty(); }

  bool is_late = true;                    // returned by is_asynchronous()
  std::atomic<bool> fails{false};         // the device fails when the host waits next
  std::atomic<uint64_t> copied_bytes{0};  // bytes of StartCopyOut
  std::function<void()> on_event_wait;    // called before a thread waits for transfers; may be null

 private:
  struct Event : DeviceEvent {
    Event(LateDevice* of, std::shared_ptr<DeviceEvent> transfers)
        : device(of), inner(std::move(transfers)) {}
    bool Wait() override {
      if (device->on_event_wait != nullptr) device->on_event_wait();
      return inner->Wait();
    }
    LateDevice* const device;
    const std::shared_ptr<DeviceEvent> inner;
  };
  class Graph : public DeviceGraph {
   public:
    Graph(LateDevice* device, std::shared_ptr<DeviceGraph> graph)
        : device_(device), graph_(std::move(graph)) {}
    void Replay() override {
      device_->work_.push_back([graph = graph_] { graph->Replay(); });
    }

   private:
    LateDevice* const device_;
    const std::shared_ptr<DeviceGraph> graph_;
  };

  void RunAll() {
    for (; !work_.empty(); work_.pop_front()) work_.front()();
  }

  std::deque<std::function<void()>> work_;
  bool captures_ = false;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_LATE_DEVICE_H_
