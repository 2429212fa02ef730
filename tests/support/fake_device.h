// An accelerator whose memory is the host's, and which breaks on command. Thread safe.
//
// A copy happens when Wait is called, not before: whoever looks too early sees what was there.
#ifndef HEARTH_TESTS_SUPPORT_FAKE_DEVICE_H_
#define HEARTH_TESTS_SUPPORT_FAKE_DEVICE_H_

#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "cache_store/device_memory.h"

namespace hearth {

class FakeDevice : public DeviceMemory {
 public:
  explicit FakeDevice(uint64_t bytes) : memory_(bytes) {}

  std::string name() const override { return "fake:0"; }
  const std::byte* data() const override { return memory_.data(); }
  uint64_t size_bytes() const override { return memory_.size(); }

  absl::Status StartCopyIn(uint64_t offset, absl::Span<const std::byte> from) override {
    absl::MutexLock lock(&mu_);
    if (!lost_.ok()) return lost_;
    begun_.push_back({memory_.data() + offset, from.data(), from.size()});
    return std::exchange(next_, absl::OkStatus());
  }
  absl::Status StartCopyOut(uint64_t offset, absl::Span<std::byte> to) override {
    absl::MutexLock lock(&mu_);
    if (!lost_.ok()) return lost_;
    begun_.push_back({to.data(), memory_.data() + offset, to.size()});
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

  // The next copy fails to begin.
  void FailOnce(absl::Status status) {
    absl::MutexLock lock(&mu_);
    next_ = std::move(status);
  }
  // The next copy arrives with one bit changed.
  void FlipOnce() {
    absl::MutexLock lock(&mu_);
    flip_ = true;
  }
  // The next Wait runs this first, under no lock.
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
  std::vector<std::byte> memory_;
  absl::Mutex mu_;
  std::vector<Copy> begun_ ABSL_GUARDED_BY(mu_);
  absl::Status next_ ABSL_GUARDED_BY(mu_), lost_ ABSL_GUARDED_BY(mu_);
  bool flip_ ABSL_GUARDED_BY(mu_) = false;
  std::function<void()> meanwhile_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_FAKE_DEVICE_H_
