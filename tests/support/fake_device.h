// FakeDevice: an accelerator whose memory is host memory, and which fails on command. Thread safe.
//
// A copy takes place when Wait is called, not when it is started, so a read before Wait sees the
// old bytes. Processes that receive the memory's file descriptor can map it, read only.
#ifndef HEARTH_TESTS_SUPPORT_FAKE_DEVICE_H_
#define HEARTH_TESTS_SUPPORT_FAKE_DEVICE_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cassert>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "cache_store/base/device_memory.h"

namespace hearth {

class FakeDevice : public DeviceMemory {
 public:
  static constexpr char kName[] = "fake-device";  // of the memory, in /proc/self/maps
  explicit FakeDevice(uint64_t bytes) : bytes_(bytes), fd_(memfd_create(kName, MFD_CLOEXEC)) {
    assert(fd_ >= 0 && ftruncate(fd_, static_cast<off_t>(bytes)) == 0);
    memory_ = Map(fd_, bytes, PROT_READ | PROT_WRITE);
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

  absl::StatusOr<ExportedMemory> Export() override {
    ExportedMemory exported{{}, fd_};
    exported.handle.device.fill(0xFA);
    exported.handle.bytes = bytes_;
    return exported;
  }
  static absl::StatusOr<std::unique_ptr<ImportedMemory>> Import(const DeviceMemoryHandle& handle,
                                                                int fd) {
    struct stat status;
    if (handle.device.front() != 0xFA) return absl::FailedPreconditionError("another device");
    if (fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) ||
        static_cast<uint64_t>(status.st_size) < handle.bytes) {
      return absl::InternalError("the descriptor is not memory of this size");
    }
    return std::make_unique<Imported>(Map(fd, handle.bytes, PROT_READ), handle.bytes);
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
    Imported(std::byte* memory, uint64_t bytes) : memory_(memory), bytes_(bytes) {}
    ~Imported() override { munmap(memory_, bytes_); }
    const std::byte* data() const override { return memory_; }

   private:
    std::byte* const memory_;
    const uint64_t bytes_;
  };
  static std::byte* Map(int fd, uint64_t bytes, int protection) {
    void* const mapped = mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
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
