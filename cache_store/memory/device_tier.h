// DeviceTier: the gpu tier, which has copies of whole objects in a pool of device memory, for
// workers that compute on the same device.
//
// Each copied object is also in RAM or on disk, so losing the device loses no data. The store
// decides which objects are copied; a new copy evicts the least recently used copies. Thread
// safety: all methods from any thread, but only one CopyIn at a time. Ownership: a DeviceRef keeps
// its range and the device memory alive, even after the tier is destroyed.
//
// Invariants:
//  1. Find() returns only copies that were read back from the device and matched their digests.
//  2. A range is reused only after its last DeviceRef is destroyed and its generation has changed.
//  3. After the device is lost, Find() finds nothing.
#ifndef HEARTH_CACHE_STORE_MEMORY_DEVICE_TIER_H_
#define HEARTH_CACHE_STORE_MEMORY_DEVICE_TIER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "cache_store/base/device_memory.h"
#include "cache_store/base/segment_file.h"
#include "cache_store/base/tier.h"

namespace hearth {

class DeviceTier {
 public:
  // Called once, without a lock, when the device is lost.
  using OnLost = std::function<void(const absl::Status&)>;

  // `shared`: other processes of this host may map the memory and read copies for which they hold a
  // lease.
  DeviceTier(std::shared_ptr<DeviceMemory> memory, OnLost on_lost, bool shared = false);

  // Returns the shared segment; null if the memory is not shared, or cannot be shared.
  const SegmentFile* segment() const;
  // Returns the descriptor with which other processes map the device memory. REQUIRES: segment() is
  // not null.
  int memory_fd() const;

  // Returns the object's copy, and marks it as just used. Null if the object has no copy.
  DeviceRef Find(uint64_t object) ABSL_LOCKS_EXCLUDED(mu_);
  bool Has(uint64_t object) const ABSL_LOCKS_EXCLUDED(mu_);

  // Copies an object's slices (in layer order) to the device. Find() does not return the copy
  // before MakeVisible(). kResourceExhausted: no free range. kDataLoss: the bytes read back from
  // the device differ. REQUIRES: the host's bytes match the digests.
  absl::StatusOr<DeviceRef> CopyIn(absl::Span<const SliceWrite> slices) ABSL_LOCKS_EXCLUDED(mu_);
  void MakeVisible(uint64_t object, DeviceRef copy) ABSL_LOCKS_EXCLUDED(mu_);
  // Removes the copies of these objects. Existing DeviceRefs stay valid.
  void Erase(absl::Span<const uint64_t> objects) ABSL_LOCKS_EXCLUDED(mu_);

  struct Usage {
    uint64_t capacity_bytes = 0, bytes = 0, evicted_objects = 0;
    // unread_bytes: bytes of copies that were removed without being read
    uint64_t written_bytes = 0, unread_bytes = 0;
    std::vector<uint64_t> objects;
  };
  Usage usage() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Pool;
  struct Entry {
    uint64_t object = 0;
    DeviceRef copy;
    bool read = false;
  };
  DeviceRef Reserve(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  bool MakeRoom(uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Removes an entry and returns the next one. The range is freed with its last DeviceRef.
  std::list<Entry>::iterator Forget(std::list<Entry>::iterator entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Verify(const DeviceCopy& copy, absl::Span<const SliceWrite> slices);
  absl::Status Noted(absl::Status status) ABSL_LOCKS_EXCLUDED(mu_);

  const std::shared_ptr<Pool> pool_;
  const OnLost on_lost_;
  std::vector<std::byte> read_back_;  // buffer in which CopyIn() compares the copied bytes

  mutable absl::Mutex mu_;                       // lock order: mu_ before Pool::mu
  std::list<Entry> order_ ABSL_GUARDED_BY(mu_);  // copies, most recently used first
  absl::flat_hash_map<uint64_t, std::list<Entry>::iterator> entries_ ABSL_GUARDED_BY(mu_);
  uint64_t bytes_ ABSL_GUARDED_BY(mu_) = 0;  // total bytes of the copies
  uint64_t evicted_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t written_bytes_ ABSL_GUARDED_BY(mu_) = 0, unread_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status lost_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_MEMORY_DEVICE_TIER_H_
