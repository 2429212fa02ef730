// HostArena: allocates the memory of the RAM tier. It is one memory mapping, which workers on the
// same host may map.
//
// The first write to new memory is several times slower than a later copy into it. So a thread
// makes memory resident ahead of use, slab by slab. Only resident memory is allocated; if none is
// free, the caller uses other memory. Freed ranges are merged and reused (best fit). A shared arena
// is an anonymous shared memory segment (proto/segment_format.h): it is freed when the last process
// unmaps it, only its creator can write to it, and it never shrinks. If the system refuses more
// memory, the thread tries again after increasing pauses; until then callers use other memory,
// which workers cannot map. Thread safety: all methods from any thread. Ownership: allocations keep
// the arena alive. Invariants: (1) allocated ranges never overlap; (2) the generation of a range
// changes before the range is allocated again.
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
  uint64_t capacity_bytes = 0;  // size of the arena; rounded up to whole slabs
  uint64_t ahead_bytes =
      0;  // bytes of resident, free memory to keep ready; refilled when less than half is left
  uint64_t slab_bytes = uint64_t{32} << 20;
  bool shared = false;
  HugePages huge_pages = HugePages::kAuto;
  // Called with a warning, from any thread: at most once if the system refuses memory, and at most
  // once if it refuses huge pages.
  std::function<void(const std::string&)> warn;
  // Pause after the system refused a slab; doubles with each refusal, up to kLongestRetry.
  absl::Duration retry = absl::Seconds(1);

  static constexpr absl::Duration kLongestRetry = absl::Minutes(1);

  // For tests. `populate` replaces madvise, which makes memory resident. `huge_page_settings` is
  // the folder of the kernel's settings for huge pages.
  std::function<int(void*, size_t)> populate;
  std::string huge_page_settings = "/sys/kernel/mm/transparent_hugepage";
};

class HostArena : public std::enable_shared_from_this<HostArena> {
 public:
  // Smallest allocation: smaller ones are not worth a granule.
  static constexpr size_t kSmallestBytes = kSegmentGranuleBytes;

  // Creates an arena. kResourceExhausted: too little address space.
  static absl::StatusOr<std::shared_ptr<HostArena>> Create(const ArenaOptions& options);
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  // Returns uninitialised memory, aligned to a granule. Returns null if `bytes` is too small or no
  // resident memory is free; the caller then uses other memory.
  std::shared_ptr<std::byte> Allocate(size_t bytes);
  // Returns the position of `memory` in the shared segment; nullopt if the memory is not from this
  // arena, or the arena is not shared. REQUIRES: the caller keeps the allocation alive.
  std::optional<SegmentRange> RangeOf(const void* memory, size_t bytes) const;

  // Returns the descriptor of a shared arena's segment, open for reading and writing; -1 if the
  // arena is not shared.
  int segment_fd() const { return file_ == nullptr ? -1 : file_->fd(); }
  const SegmentLayout& layout() const { return layout_; }

  struct Usage {
    uint64_t capacity_bytes = 0, resident_bytes = 0, used_bytes = 0;
    absl::Status growth;          // result of the last attempt to make a slab resident
    uint64_t failed_growths = 0;  // number of slabs that the system refused
    bool grows = false;           // whether memory is being made resident
  };
  Usage usage() const ABSL_LOCKS_EXCLUDED(mu_);
  // Waits until `ahead_bytes` are resident and free, or the system refuses more memory.
  void WaitUntilAhead() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  explicit HostArena(const ArenaOptions& options);
  absl::Status Map();
  void RequestHugePages();
  void Warn(const std::string& text) const;
  void Grow() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status MakeResident(uint64_t offset, uint64_t bytes);
  void Free(uint64_t offset, uint64_t bytes) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns whether less than `bytes` are free and the arena can still grow.
  bool Lacks(uint64_t bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool ShouldGrow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ArenaOptions options_;
  SegmentLayout layout_;
  std::unique_ptr<SegmentFile> file_;  // null: the arena is not shared
  std::byte* data_ = nullptr;

  mutable absl::Mutex mu_;
  RangeAllocator free_ ABSL_GUARDED_BY(mu_);
  // number of resident bytes, counted from the begin of the data
  uint64_t resident_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // whether memory is being made resident; true until ahead_bytes are free
  bool grows_ ABSL_GUARDED_BY(mu_) = true;
  absl::Status growth_ ABSL_GUARDED_BY(mu_);
  uint64_t failed_growths_ ABSL_GUARDED_BY(mu_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread grower_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_MEMORY_HOST_ARENA_H_
