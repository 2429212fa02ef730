// LateDevice: an emulated device with two queues, as a GPU has. Launches and copies run only when
// the host waits for them, so a result that is read too early is NaN or old. Transfers run only
// when the host or a launch waits for their event, after the launches that MakeTransfersWait named.
// So a missing wait gives wrong bits. If host memory changes before its transfer to the device, or
// if memory of a transfer is freed, the device fails.
//
// Thread safety: none; one thread at a time. A DeviceEvent may be used from any thread: it runs the
// launches that its transfers wait for.
#ifndef HEARTH_TESTS_SUPPORT_LATE_DEVICE_H_
#define HEARTH_TESTS_SUPPORT_LATE_DEVICE_H_

#include <atomic>
#include <cstddef>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "worker/device/emulated_device.h"

namespace hearth {

class LateDevice : public EmulatedDevice {
 public:
  bool is_asynchronous() const override { return is_late; }
  void* Allocate(size_t bytes) override {
    const Lock lock(mu_);
    void* const memory = EmulatedDevice::Allocate(bytes);
    if (memory != nullptr) sizes_[memory] = bytes;
    return memory;
  }
  void Free(void* memory) override {
    const Lock lock(mu_);
    RunAll();
    const auto* const begin = static_cast<const std::byte*>(memory);
    const auto is_inside = [&](const void* at) {
      return at >= begin && at < begin + sizes_[memory];
    };
    for (const Transfer& one : transfers_) {
      if (is_inside(one.to) || is_inside(one.from)) Fail("a transfer: its memory was freed");
    }
    EmulatedDevice::Free(memory);
  }
  void CopyIn(void* to, const void* from, size_t bytes) override {
    const auto* const begin = static_cast<const std::byte*>(from);
    Enqueue([this, to, copy = std::vector<std::byte>(begin, begin + bytes)] {
      EmulatedDevice::CopyIn(to, copy.data(), copy.size());
    });
  }
  void CopyOut(void* to, const void* from, size_t bytes) override {
    const Lock lock(mu_);
    RunAll();
    EmulatedDevice::CopyOut(to, from, bytes);
  }
  void Copy(CopyWay way, void* to, const void* from, const CopyRuns& runs) override {
    const Lock lock(mu_);
    RunAll();
    EmulatedDevice::Copy(way, to, from, runs);
  }
  void StartCopyOut(void* to, const void* from, size_t bytes) override {
    copied_bytes += bytes;
    std::memset(to, 0xff, bytes);
    Enqueue([this, to, from, bytes] { EmulatedDevice::CopyOut(to, from, bytes); });
  }
  void StartTransfer(CopyWay way, void* to, const void* from, const CopyRuns& runs) override {
    const Lock lock(mu_);
    transfers_.push_back({way, to, from, runs, transfers_after_, {}});
    if (way == CopyWay::kIn) transfers_.back().source = SourceOf(transfers_.back());
  }
  void MakeTransfersWait() override {
    const Lock lock(mu_);
    transfers_after_ = work_ended_ + work_.size();
  }
  std::shared_ptr<DeviceEvent> RecordTransfers() override {
    const Lock lock(mu_);
    return std::make_shared<Event>(this, transfers_ended_ + transfers_.size());
  }
  void MakeLaunchesWait(const DeviceEvent& event) override {
    Enqueue([this, number = static_cast<const Event&>(event).number] { RunTransfers(number); });
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
    const Lock lock(mu_);
    RunAll();
    if (fails) Fail("the programs' end: an illegal memory access was encountered");
  }

  // Whether launches or copies have been started and not waited for.
  bool is_running() {
    const Lock lock(mu_);
    return !work_.empty();
  }

  bool is_late = true;                    // returned by is_asynchronous()
  std::atomic<bool> fails{false};         // the device fails when the host waits next
  std::atomic<uint64_t> copied_bytes{0};  // bytes of StartCopyOut
  std::function<void()> on_event_wait;    // called before a thread waits for transfers; may be null

 private:
  using Lock = std::lock_guard<std::recursive_mutex>;

  class Graph : public DeviceGraph {
   public:
    Graph(LateDevice* device, std::shared_ptr<DeviceGraph> graph)
        : device_(device), graph_(std::move(graph)) {}
    void Replay() override {
      device_->Enqueue([graph = graph_] { graph->Replay(); });
    }

   private:
    LateDevice* const device_;
    const std::shared_ptr<DeviceGraph> graph_;
  };
  struct Event : DeviceEvent {
    Event(LateDevice* of, size_t transfers) : device(of), number(transfers) {}
    bool Wait() override {
      if (device->on_event_wait != nullptr) device->on_event_wait();
      const Lock lock(device->mu_);
      device->RunTransfers(number);
      return device->error().empty();
    }
    LateDevice* const device;
    const size_t number;  // of transfers that the event waits for
  };
  struct Transfer {
    CopyWay way;
    void* to;
    const void* from;
    CopyRuns runs;
    size_t after;  // number of launches and copies that run first
    std::vector<std::byte> source;
  };

  static std::vector<std::byte> SourceOf(const Transfer& one) {
    std::vector<std::byte> bytes;
    for (size_t i = 0; i < one.runs.count; ++i) {
      const auto* const run = static_cast<const std::byte*>(one.from) + i * one.runs.from_stride;
      bytes.insert(bytes.end(), run, run + one.runs.bytes);
    }
    return bytes;
  }
  void Enqueue(std::function<void()> work) {
    const Lock lock(mu_);
    work_.push_back(std::move(work));
  }
  // Runs the first `count` launches and copies.
  void RunWork(size_t count) {
    while (work_ended_ < count) {
      const std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      work();
      ++work_ended_;
    }
  }
  void RunAll() { RunWork(work_ended_ + work_.size()); }
  // Runs the first `count` transfers.
  void RunTransfers(size_t count) {
    while (transfers_ended_ < count) {
      const Transfer one = std::move(transfers_.front());
      transfers_.pop_front();
      RunWork(one.after);
      if (one.way == CopyWay::kIn && SourceOf(one) != one.source)
        Fail("a transfer: its source changed before it ended");
      EmulatedDevice::StartTransfer(one.way, one.to, one.from, one.runs);
      if (!EmulatedDevice::RecordTransfers()->Wait()) Fail("a transfer failed");
      ++transfers_ended_;
    }
  }

  std::recursive_mutex mu_;
  std::deque<std::function<void()>> work_;
  std::deque<Transfer> transfers_;
  size_t work_ended_ = 0, transfers_ended_ = 0;
  size_t transfers_after_ = 0;  // `after` of new transfers
  std::map<void*, size_t> sizes_;
  bool captures_ = false;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_LATE_DEVICE_H_
