#include "worker/device/emulated_device.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstdint>
#include <cstdlib>
#include <cstring>
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

class EmulatedDevice::Graph : public DeviceGraph {
 public:
  explicit Graph(const EmulatedDevice* on) : device(on) {}
  void Replay() override {
    for (const Recorded& one : launches) device->Run(one.program, one.arguments.data(), one.blocks);
  }
  const EmulatedDevice* const device;
  std::vector<Recorded> launches;
};

namespace {
std::atomic<size_t> limit_bytes{SIZE_MAX}, used_bytes{0};
}  // namespace

void EmulatedDevice::SetFull(bool full) { limit_bytes = full ? used_bytes.load() : SIZE_MAX; }

EmulatedDevice::EmulatedDevice(bool late) { LateCopies::SetLate(late); }

EmulatedDevice::~EmulatedDevice() {
  while (!memory_.empty()) Free(memory_.begin()->first);
}

void* EmulatedDevice::Allocate(size_t bytes) {
  if (used_bytes + bytes > limit_bytes) return nullptr;
  void* memory = Aligned(bytes);
  if (memory == nullptr) return nullptr;
  std::memset(memory, 0xff, bytes);
  memory_.emplace(memory, bytes);
  used_bytes += bytes;
  return memory;
}

void EmulatedDevice::Free(void* memory) {
  const auto known = memory_.find(memory);
  if (known == memory_.end()) return;
  used_bytes -= known->second;
  memory_.erase(known);
  std::free(memory);
}

void EmulatedDevice::CopyIn(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}
void EmulatedDevice::CopyOut(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}
void EmulatedDevice::Copy(CopyWay, void* to, const void* from, const CopyRuns& runs) {
  for (size_t i = 0; i < runs.count; ++i) {
    std::memcpy(static_cast<std::byte*>(to) + i * runs.to_stride,
                static_cast<const std::byte*>(from) + i * runs.from_stride, runs.bytes);
  }
}

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

void EmulatedDevice::Run(int program, const void* arguments, int blocks) const {
  if (error().empty()) EntryOf(ProgramList(), program).run(arguments, blocks, threads_, run_parts_);
}

}  // namespace hearth
