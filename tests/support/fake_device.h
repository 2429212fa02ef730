// FakeDevice: an accelerator whose memory is host memory, and which fails on command. Thread safe.
//
// A copy takes place when Wait is called, not when it is started, so a read before Wait sees the
// old bytes. This process and other processes can map the memory.
#ifndef HEARTH_TESTS_SUPPORT_FAKE_DEVICE_H_
#define HEARTH_TESTS_SUPPORT_FAKE_DEVICE_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cassert>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cache_store/base/device_memory.h"

namespace hearth {

class FakeDevice : public DeviceMemory {
 public:
  explicit FakeDevice(uint64_t bytes) : bytes_(bytes), fd_(memfd_create("fake-device", 0)) {
    assert(fd_ >= 0 && ftruncate(fd_, static_cast<off_t>(bytes)) == 0);
    memory_ = Map(fd_, bytes);
  }
  ~FakeDevice() override {
    munmap(memory_, bytes_);
    close(fd_);
  }

  std::string name() const override { return "fake:0"; }
  const std::byte* data() const override { return memory_; }
  uint64_t size_bytes() const override { return bytes_; }

  absl::Status StartCopyIn(uint64_t offset, absl::Span<const std::byte> from) override {
    absl::MutexLock lock(&mu_);
    if (!lost_.ok()) return lost_;
    begun_.push_back({memory_ + offset, from.data(), from.size()});
    return std::exchange(next_, absl::OkStatus());
  }
  absl::Status StartCopyOut(uint64_t offset, absl::Span<std::byte> to) override {
    absl::MutexLock lock(&mu_);
    if (!lost_.ok()) return lost_;
    begun_.push_back({to.data(), memory_ + offset, to.size()});
    return std::exchange(next_, absl::OkStatus());
  }
  absl::Status Wait() override {
    std::function<void()> meanwhile;
    {
      absl::MutexLock lock(&mu_);
      meanwhile = std::exchange(meanwhile_, nullptr);
    }
    if (meanwhile != nullptr) meanwhile();
    absl::MutexLock lock(&mu_);
    if (!lost_.ok()) return lost_;
    for (const Copy& copy : begun_) {
      std::memcpy(copy.to, copy.from, copy.bytes);
      if (std::exchange(flip_, false)) *copy.to ^= std::byte{1};
    }
    begun_.clear();
    return absl::OkStatus();
  }

  absl::StatusOr<DeviceMemoryHandle> Export() override {
    DeviceMemoryHandle handle;
    handle.device.fill(0xFA);
    const int process = getpid();
    std::memcpy(handle.memory.data(), &process, sizeof(process));
    std::memcpy(handle.memory.data() + 4, &fd_, sizeof(fd_));
    std::memcpy(handle.memory.data() + 8, &bytes_, sizeof(bytes_));
    return handle;
  }
  // Returns an importer. Its Copy calls `during` after it has read the bytes.
  static ImportDevice Importer(std::function<void()> during = [] {}) {
    return [during](const DeviceMemoryHandle& handle) {
      return std::make_unique<Imported>(handle, during);
    };
  }

  // Makes the next copy fail at its start.
  void FailOnce(absl::Status status) {
    absl::MutexLock lock(&mu_);
    next_ = std::move(status);
  }
  // Makes the next copy arrive with one bit changed.
  void FlipOnce() {
    absl::MutexLock lock(&mu_);
    flip_ = true;
  }
  // Makes the next call of Wait call `run` first, without holding a lock.
  void Meanwhile(std::function<void()> run) {
    absl::MutexLock lock(&mu_);
    meanwhile_ = std::move(run);
  }
  void Lose() {
    absl::MutexLock lock(&mu_);
    lost_ = absl::UnavailableError("the fake device fell off the bus");
    begun_.clear();
  }

 private:
  struct Copy {
    std::byte* to;
    const std::byte* from;
    size_t bytes;
  };
  class Imported : public ImportedMemory {
   public:
    Imported(const DeviceMemoryHandle& handle, std::function<void()> during)
        : during_(std::move(during)) {
      int process = 0, descriptor = 0;
      std::memcpy(&process, handle.memory.data(), sizeof(process));
      std::memcpy(&descriptor, handle.memory.data() + 4, sizeof(descriptor));
      std::memcpy(&bytes_, handle.memory.data() + 8, sizeof(bytes_));
      const std::string path = absl::StrCat("/proc/", process, "/fd/", descriptor);
      const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
      assert(fd >= 0);
      memory_ = Map(fd, bytes_);
      close(fd);
    }
    ~Imported() override { munmap(memory_, bytes_); }
    absl::StatusOr<std::vector<std::shared_ptr<const std::byte>>> Copy(
        absl::Span<const SegmentRange> ranges) override {
      std::vector<std::shared_ptr<const std::byte>> copies;
      for (const SegmentRange& range : ranges) {
        const std::shared_ptr<std::byte[]> copy(new std::byte[range.bytes]);
        std::memcpy(copy.get(), memory_ + range.offset, range.bytes);
        copies.emplace_back(copy, copy.get());
      }
      during_();
      return copies;
    }

   private:
    const std::function<void()> during_;
    uint64_t bytes_ = 0;
    std::byte* memory_ = nullptr;
  };
  static std::byte* Map(int fd, uint64_t bytes) {
    void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert(mapped != MAP_FAILED);
    return static_cast<std::byte*>(mapped);
  }

  const uint64_t bytes_;
  const int fd_;
  std::byte* memory_ = nullptr;
  absl::Mutex mu_;
  std::vector<Copy> begun_ ABSL_GUARDED_BY(mu_);
  absl::Status next_ ABSL_GUARDED_BY(mu_), lost_ ABSL_GUARDED_BY(mu_);
  bool flip_ ABSL_GUARDED_BY(mu_) = false;
  std::function<void()> meanwhile_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_FAKE_DEVICE_H_
