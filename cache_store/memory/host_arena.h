// HostArena: the memory of the host tier, one mapping that is faulted in ahead of use and that
// workers on the same host may map too.
//
// The first touch of fresh memory is several times slower than a copy into it. So a thread of the
// arena makes memory resident ahead of use, slab by slab, and only resident memory is handed out;
// where none is free the caller uses other memory. Freed ranges are merged and used again (best
// fit). A shared arena is a segment (proto/segment_format.h) in anonymous shared memory: it is gone
// with the last process that maps it, only its maker can write to it, and it never shrinks, so a
// reader cannot fault on it. When the system has no more memory the thread tries again, ever less
// often; until then callers use other memory, which no worker can map.
// Thread safety: all methods from any thread. Ownership: allocations keep the arena alive.
// Invariants: 1. ranges handed out never overlap. 2. The generation of a range changes before the
// range is handed out again.
#ifndef HEARTH_CACHE_STORE_MEMORY_HOST_ARENA_H_
#define HEARTH_CACHE_STORE_MEMORY_HOST_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache_store/base/huge_pages.h"
#include "cache_store/base/range_allocator.h"
#include "cache_store/base/segment_file.h"
#include "proto/segment_format.h"

namespace hearth {

struct ArenaOptions {
  uint64_t capacity_bytes = 0;  // rounded up to whole slabs
  uint64_t ahead_bytes = 0;     // made resident and free, once less than half of it is
  uint64_t slab_bytes = uint64_t{32} << 20;
  bool shared = false;
  HugePages huge_pages = HugePages::kAuto;
  // Told, from any thread, of a request that the system did not grant: at most once of each.
  std::function<void(const std::string&)> warn;
  // The pause after a slab that could not be had, doubled each time up to kLongestRetry.
  absl::Duration retry = absl::Seconds(1);

  static constexpr absl::Duration kLongestRetry = absl::Minutes(1);

  // For tests, in place of the system: makes memory resident as madvise does; the folder of the
  // kernel's settings for huge pages.
  std::function<int(void*, size_t)> populate;
  std::string huge_page_settings = "/sys/kernel/mm/transparent_hugepage";
};

class HostArena : public std::enable_shared_from_this<HostArena> {
 public:
  // Smaller ones are not worth a granule.
  static constexpr size_t kSmallestBytes = kSegmentGranuleBytes;

  // kResourceExhausted when not even the addresses can be had.
  static absl::StatusOr<std::shared_ptr<HostArena>> Create(const ArenaOptions& options);
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  // Uninitialised memory, aligned to a granule. Null when it is too small to be worth it or nothing
  // resident is free: take other memory.
  std::shared_ptr<std::byte> Allocate(size_t bytes);
  // Where `memory` lies in the segment. None when it is not of this arena, or the arena is not
  // shared. REQUIRES: the caller keeps the allocation alive.
  std::optional<SegmentRange> RangeOf(const void* memory, size_t bytes) const;

  // Of a shared arena: the segment, open for reading and writing. -1 otherwise.
  int segment_fd() const { return file_ == nullptr ? -1 : file_->fd(); }
  const SegmentLayout& layout() const { return layout_; }

  struct Usage {
    uint64_t capacity_bytes = 0, resident_bytes = 0, used_bytes = 0;
    absl::Status growth;          // of the last slab that was tried
    uint64_t failed_growths = 0;  // slabs that could not be had when they were tried
    bool grows = false;           // more is being made resident
  };
  Usage usage() const ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until `ahead_bytes` are resident and free, or no more can be had for now.
  void WaitUntilAhead() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit HostArena(const ArenaOptions& options);
  absl::Status Map();
  void AskForHugePages();
  void Warn(const std::string& text) const;
  void Grow() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status MakeResident(uint64_t offset, uint64_t bytes);
  void Free(uint64_t offset, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether fewer are free, and more can be had.
  bool Lacks(uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool ShouldGrow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ArenaOptions options_;
  SegmentLayout layout_;
  std::unique_ptr<SegmentFile> file_;  // null when not shared
  std::byte* data_ = nullptr;

  mutable absl::Mutex mu_;
  RangeAllocator free_ ABSL_GUARDED_BY(mu_);
  uint64_t resident_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // the data's first bytes
  bool grows_ ABSL_GUARDED_BY(mu_) = true;            // until all of ahead_bytes is free
  absl::Status growth_ ABSL_GUARDED_BY(mu_);
  uint64_t failed_growths_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread grower_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_MEMORY_HOST_ARENA_H_
