#include "worker/device/emulated_device.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#if defined(HEARTH_WARPS_AS_THREADS)
#include <pthread.h>
#endif

#include "worker/device/program_list.h"
#include "worker/kernels/float_mode.h"

namespace hearth {

#if defined(HEARTH_WARPS_AS_THREADS)
static thread_local int this_warp = 0;
static thread_local pthread_barrier_t* this_barrier = nullptr;
int ThisWarp() { return this_warp; }
void BlockBarrier() { pthread_barrier_wait(this_barrier); }
#endif

namespace {

constexpr size_t kAlignBytes = 256;

void* Aligned(size_t bytes) {
  return std::aligned_alloc(kAlignBytes, (bytes + kAlignBytes - 1) / kAlignBytes * kAlignBytes);
}

template <class Program>
void RunBlock(const Program& program, typename Program::Shared* shared, BlockNumber block) {
  program.Run(shared, block);
  LateCopies::End();
}

// Runs the thread blocks `first`, `first` + `step`, ... one after the other. With
// HEARTH_WARPS_AS_THREADS each warp is a host thread; otherwise the calling thread runs all warps.
template <class Program>
void RunInTurn(const Program& program, int blocks, int first, int step) {
  using Shared = typename Program::Shared;
  auto* const shared = static_cast<Shared*>(Aligned(sizeof(Shared)));
  const auto clear = [shared] {
    std::memset(static_cast<void*>(shared), 0xff, sizeof(typename Program::Shared));
  };
#if defined(HEARTH_WARPS_AS_THREADS)
  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, nullptr, Program::kWarps);
  std::vector<std::thread> warps;
  for (int warp = 0; warp < Program::kWarps; ++warp) {
    warps.emplace_back([&, warp] {
      const FloatMode mode;
      this_warp = warp;
      this_barrier = &barrier;
      for (int block = first; block < blocks; block += step) {
        BlockBarrier();
        if (warp == 0) clear();
        BlockBarrier();
        RunBlock(program, shared, {block, blocks});
      }
    });
  }
  for (std::thread& warp : warps) warp.join();
  pthread_barrier_destroy(&barrier);
#else
  const FloatMode mode;
  for (int block = first; block < blocks; block += step) {
    clear();
    RunBlock(program, shared, {block, blocks});
  }
#endif
  std::free(shared);
}

template <class Program>
void RunBlocks(const void* arguments, int blocks, int threads, const Device::RunParts& run) {
  if constexpr (std::is_same_v<Program, NoProgram>) {
    assert(false);  // no step launches NoProgram
  } else {
    Program program;
    std::memcpy(static_cast<void*>(&program), arguments, sizeof program);
    if (threads == 1) return RunInTurn(program, blocks, 0, 1);
    const int parts = std::min(4 * threads, blocks);
    run(parts, [&](int64_t part) { RunInTurn(program, blocks, static_cast<int>(part), parts); });
  }
}

struct Entry {
  void (*run)(const void* arguments, int blocks, int threads, const Device::RunParts& run);
  size_t bytes;
};

template <class... Programs>
Entry EntryOf(TypeList<Programs...>, int number) {
  static constexpr Entry kEntries[] = {{&RunBlocks<Programs>, sizeof(Programs)}...};
  assert(number >= 0 && static_cast<size_t>(number) < sizeof...(Programs));
  return kEntries[number];
}

}  // namespace

// The queue of transfers. Thread safety: any thread.
class EmulatedDevice::Transfers {
 public:
  void Add(CopyWay way, void* to, const void* from, const CopyRuns& runs) {
    const std::lock_guard<std::mutex> lock(mu_);
    Pending added = {static_cast<std::byte*>(to), static_cast<const std::byte*>(from), runs, 0};
    added.digest = DigestOf(added);
    pending_.push_back(added);
    ++counts_.transfers[static_cast<int>(way)];
    ++started_;
  }
  int started() const {
    const std::lock_guard<std::mutex> lock(mu_);
    return started_;
  }
  // Performs the transfers up to number `last`. Returns the first error; empty: none.
  std::string Perform(int last) {
    const std::lock_guard<std::mutex> lock(mu_);
    while (counts_.performed < last) {
      assert(!pending_.empty());
      const Pending one = pending_.front();
      pending_.pop_front();
      ++counts_.performed;
      if (fails_at_ == counts_.performed) SetError("a transfer: an injected failure");
      if (!error_.empty()) continue;
      if (DigestOf(one) != one.digest) SetError("a transfer: its source changed before it ended");
      for (size_t i = 0; i < one.runs.count; ++i) {
        std::memcpy(one.to + i * one.runs.to_stride, one.from + i * one.runs.from_stride,
                    one.runs.bytes);
      }
    }
    return error_;
  }
  void CheckFreed(const void* memory, size_t bytes) {
    const auto* const begin = static_cast<const std::byte*>(memory);
    const std::lock_guard<std::mutex> lock(mu_);
    for (const Pending& one : pending_) {
      const auto inside = [&](const std::byte* at) { return at >= begin && at < begin + bytes; };
      if (inside(one.to) || inside(one.from)) SetError("a transfer: its memory was freed");
    }
  }
  void CountCopy(CopyWay way) {
    const std::lock_guard<std::mutex> lock(mu_);
    ++counts_.copies[static_cast<int>(way)];
  }
  Counts counts() const {
    const std::lock_guard<std::mutex> lock(mu_);
    return counts_;
  }
  void FailAfter(int more) {
    const std::lock_guard<std::mutex> lock(mu_);
    fails_at_ = counts_.performed + more + 1;
  }

 private:
  struct Pending {
    std::byte* to;
    const std::byte* from;
    CopyRuns runs;
    uint64_t digest;  // of the source, when the transfer was started
  };
  // FNV-1a over the bytes of the source.
  static uint64_t DigestOf(const Pending& one) {
    uint64_t digest = 14695981039346656037u;
    for (size_t i = 0; i < one.runs.count; ++i) {
      const std::byte* const run = one.from + i * one.runs.from_stride;
      for (size_t at = 0; at < one.runs.bytes; ++at) {
        digest = (digest ^ static_cast<uint64_t>(run[at])) * 1099511628211u;
      }
    }
    return digest;
  }
  void SetError(const char* error) {
    if (error_.empty()) error_ = error;
  }

  mutable std::mutex mu_;
  std::deque<Pending> pending_;
  int started_ = 0, fails_at_ = 0;
  Counts counts_;
  std::string error_;
};

class EmulatedDevice::Event : public DeviceEvent {
 public:
  explicit Event(std::shared_ptr<Transfers> of)
      : transfers(std::move(of)), number(transfers->started()) {}
  bool Wait() override { return transfers->Perform(number).empty(); }
  const std::shared_ptr<Transfers> transfers;
  const int number;
};

class EmulatedDevice::Graph : public DeviceGraph {
 public:
  explicit Graph(EmulatedDevice* on) : device(on) {}
  void Replay() override {
    for (const Recorded& one : launches) device->Run(one.program, one.arguments.data(), one.blocks);
  }
  EmulatedDevice* const device;
  std::vector<Recorded> launches;
};

namespace {
std::atomic<size_t> limit_bytes{SIZE_MAX}, used_bytes{0};
}  // namespace

void EmulatedDevice::SetFull(bool full) { limit_bytes = full ? used_bytes.load() : SIZE_MAX; }

EmulatedDevice::EmulatedDevice(bool late) : transfers_(std::make_shared<Transfers>()) {
  LateCopies::SetLate(late);
}

EmulatedDevice::~EmulatedDevice() {
  for (const auto& [memory, allocation] : memory_) used_bytes -= allocation.bytes;
}

void* EmulatedDevice::Allocate(size_t bytes) {
  if (used_bytes + bytes > limit_bytes) return nullptr;
  void* memory = Aligned(bytes);
  if (memory == nullptr) return nullptr;
  std::memset(memory, 0xff, bytes);
  memory_.emplace(memory, Allocation{std::unique_ptr<void, Release>(memory), bytes});
  used_bytes += bytes;
  return memory;
}

void EmulatedDevice::Free(void* memory) {
  const auto at = memory_.find(memory);
  if (at == memory_.end()) return;
  transfers_->CheckFreed(memory, at->second.bytes);
  used_bytes -= at->second.bytes;
  memory_.erase(at);
}

void EmulatedDevice::CopyIn(void* to, const void* from, size_t bytes) {
  Arrive();
  std::memcpy(to, from, bytes);
}
void EmulatedDevice::CopyOut(void* to, const void* from, size_t bytes) {
  Arrive();
  std::memcpy(to, from, bytes);
}
void EmulatedDevice::Copy(CopyWay way, void* to, const void* from, const CopyRuns& runs) {
  Arrive();
  transfers_->CountCopy(way);
  for (size_t i = 0; i < runs.count; ++i) {
    std::memcpy(static_cast<std::byte*>(to) + i * runs.to_stride,
                static_cast<const std::byte*>(from) + i * runs.from_stride, runs.bytes);
  }
}

void EmulatedDevice::StartTransfer(CopyWay way, void* to, const void* from, const CopyRuns& runs) {
  if (error().empty()) transfers_->Add(way, to, from, runs);
}

std::shared_ptr<DeviceEvent> EmulatedDevice::RecordTransfers() {
  return std::make_shared<Event>(transfers_);
}

void EmulatedDevice::MakeLaunchesWait(const DeviceEvent& event) {
  assert(recording_ == nullptr);
  awaited_ = std::max(awaited_, static_cast<const Event&>(event).number);
}

void EmulatedDevice::Arrive() {
  if (const std::string error = transfers_->Perform(awaited_); !error.empty()) Fail(error);
}

EmulatedDevice::Counts EmulatedDevice::counts() const { return transfers_->counts(); }
void EmulatedDevice::FailTransferAfter(int more) { transfers_->FailAfter(more); }

void EmulatedDevice::Launch(int program, const void* arguments, int blocks) {
  assert(blocks >= 1);
  if (recording_ == nullptr) return Run(program, arguments, blocks);
  const auto* bytes = static_cast<const std::byte*>(arguments);
  recording_->push_back({program, {bytes, bytes + EntryOf(ProgramList(), program).bytes}, blocks});
}

std::unique_ptr<DeviceGraph> EmulatedDevice::Capture(const std::function<void()>& launches) {
  auto graph = std::make_unique<Graph>(this);
  assert(recording_ == nullptr);  // captures do not nest
  recording_ = &graph->launches;
  launches();
  recording_ = nullptr;
  return graph;
}

void EmulatedDevice::Run(int program, const void* arguments, int blocks) {
  Arrive();
  if (error().empty()) EntryOf(ProgramList(), program).run(arguments, blocks, threads_, run_parts_);
}

}  // namespace hearth
