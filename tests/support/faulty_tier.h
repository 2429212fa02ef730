// A tier that fails on command, in front of a real tier.
//
// Fault model, each enabled for the next `count` operations of its kind:
//   read error       the operation fails, the tier is unchanged
//   read exhausted   the operation fails for lack of file descriptors or memory
//   bit flip         a read returns the bytes with one bit changed
//   truncation       a read returns all but the last byte
//   wrong key        a read returns another slice's bytes (the last one read)
//   lost write       a write returns OK but stores nothing
//   full             a write fails with kResourceExhausted
//   write error      a write fails, the tier is unchanged
// The store must serve no wrong byte, lose no other restore point, and keep working.
// Thread safe.
#ifndef HEARTH_TESTS_SUPPORT_FAULTY_TIER_H_
#define HEARTH_TESTS_SUPPORT_FAULTY_TIER_H_

#include <map>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "cache_store/base/tier.h"

namespace hearth {

enum class Fault {
  kReadError,
  kReadExhausted,
  kBitFlip,
  kTruncation,
  kWrongKey,
  kLostWrite,
  kFull,
  kWriteError
};

// The armed faults. The test and the tier share this object; it must outlive the tier.
class Faults {
 public:
  void Arm(Fault fault, int count) {
    absl::MutexLock lock(&mu_);
    armed_[fault] = count;
  }
  bool Take(Fault fault) {
    absl::MutexLock lock(&mu_);
    int& left = armed_[fault];
    return left > 0 && left-- > 0;
  }
  SliceView SwapLast(SliceView view) {
    absl::MutexLock lock(&mu_);
    std::swap(last_, view);
    return view;
  }

 private:
  absl::Mutex mu_;
  std::map<Fault, int> armed_ ABSL_GUARDED_BY(mu_);
  SliceView last_ ABSL_GUARDED_BY(mu_);
};

class FaultyTier : public SliceTier {
 public:
  FaultyTier(SliceTier* tier, Faults* faults) : tier_(tier), faults_(faults) {}

  absl::StatusOr<std::optional<SliceView>> Read(const StoredSlice& slice) override {
    absl::StatusOr<std::optional<SliceView>> read = tier_->Read(slice);
    if (!read.ok() || !read->has_value()) return read;
    if (faults_->Take(Fault::kReadError)) return absl::UnavailableError("disk on fire");
    if (faults_->Take(Fault::kReadExhausted)) return absl::ResourceExhaustedError("no more files");
    SliceView view = **read;
    const SliceView last = faults_->SwapLast(view);
    if (faults_->Take(Fault::kBitFlip)) {
      view = CopySlice(view.bytes);
      const_cast<std::byte&>(view.bytes[view.bytes.size() / 2]) ^= std::byte{0x10};
    }
    if (faults_->Take(Fault::kTruncation)) view.bytes.remove_suffix(1);
    if (last.owner != nullptr && faults_->Take(Fault::kWrongKey)) view = last;
    return view;
  }
  // If one write fails, the whole call fails. A lost write loses only its slice.
  absl::Status WriteAll(absl::Span<const SliceWrite> slices) override {
    std::vector<SliceWrite> kept;
    for (const SliceWrite& write : slices) {
      if (faults_->Take(Fault::kFull)) return absl::ResourceExhaustedError("no space left");
      if (faults_->Take(Fault::kWriteError)) return absl::UnavailableError("disk on fire");
      if (!faults_->Take(Fault::kLostWrite)) kept.push_back(write);
    }
    return tier_->WriteAll(kept);
  }
  absl::Status EraseObjects(absl::Span<const uint64_t> objects) override {
    return tier_->EraseObjects(objects);
  }

 private:
  SliceTier* const tier_;
  Faults* const faults_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_FAULTY_TIER_H_
