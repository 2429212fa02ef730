#include "worker/model/invariant/block_memory.h"

#include <cstring>
#include <new>

#include "worker/kernels/base/kernel_memory.h"

namespace hearth {
namespace {

class OnHost : public BlockMemory {
 public:
  std::byte* Allocate(size_t bytes) override { return AllocateKernelBytes(bytes).release(); }
  void Free(std::byte* memory) override { FreeKernelBytes()(memory); }
  void Copy(CopyWay, std::byte* to, const std::byte* from, const CopyRuns& runs) override {
    for (size_t i = 0; i < runs.count; ++i) {
      std::memcpy(to + i * runs.to_stride, from + i * runs.from_stride, runs.bytes);
    }
  }
};

class Pinned : public OnHost {
 public:
  explicit Pinned(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  std::byte* Allocate(size_t bytes) override {
    void* memory = device_->AllocateHost(bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<std::byte*>(memory);
  }
  void Free(std::byte* memory) override { device_->FreeHost(memory); }

 private:
  const std::shared_ptr<Device> device_;
};

class OnDevice : public BlockMemory {
 public:
  explicit OnDevice(std::shared_ptr<Device> device) : device_(std::move(device)) {}
  std::shared_ptr<Device> device() const override { return device_; }
  std::byte* Allocate(size_t bytes) override {
    void* memory = device_->Allocate(bytes);
    if (memory == nullptr) {
      ThrowIfFailed();
      throw std::bad_alloc();
    }
    return static_cast<std::byte*>(memory);
  }
  void Free(std::byte* memory) override { device_->Free(memory); }
  void Copy(CopyWay way, std::byte* to, const std::byte* from, const CopyRuns& runs) override {
    device_->Copy(way, to, from, runs);
    ThrowIfFailed();
  }

 private:
  void ThrowIfFailed() const {
    if (!device_->error().empty()) throw DeviceError("device: " + device_->error());
  }

  const std::shared_ptr<Device> device_;
};

}  // namespace

std::shared_ptr<BlockMemory> HostMemory() { return std::make_shared<OnHost>(); }
std::shared_ptr<BlockMemory> PinnedMemory(std::shared_ptr<Device> device) {
  return std::make_shared<Pinned>(std::move(device));
}
std::shared_ptr<BlockMemory> DeviceMemory(std::shared_ptr<Device> device) {
  return std::make_shared<OnDevice>(std::move(device));
}

}  // namespace hearth
