#include "worker/prefix/object_memory.h"

#include <algorithm>
#include <atomic>
#include <cassert>
#include <cstdlib>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "proto/restore_rule.h"

namespace hearth {
namespace {

// A cache line, and the alignment of the widest vector loads.
constexpr size_t kAlignment = 64;
// Smaller blocks are not kept: the allocator reuses them itself.
constexpr size_t kMinRecycledBytes = size_t{64} << 10;
// Pinned blocks are whole pages, because a page cannot be pinned twice.
constexpr size_t kPageBytes = 4096;
// Length of a typical prompt. Its KV takes 28 MiB in the 270M model.
constexpr uint32_t kPrefixTokens = 2048;
// A free block is reused for a smaller request if at most 1/8 of the block is wasted.
constexpr size_t kMaxWasteFraction = 8;

// Keeps freed blocks for reuse: first use of fresh memory runs at 0.2 to 1.3 GB/s, slower than the
// copies of a restore.
class BlockRecycler {
 public:
  // Returns a block of at least `*bytes` bytes, and sets `*bytes` to its size.
  void* Take(size_t* bytes) ABSL_LOCKS_EXCLUDED(mu_) {
    {
      absl::MutexLock lock(&mu_);
      auto it = free_.lower_bound(*bytes);
      if (it != free_.end() && it->first - *bytes <= it->first / kMaxWasteFraction) {
        void* block = it->second;
        *bytes = it->first;
        assert(free_bytes_ >= it->first);
        free_bytes_ -= it->first;
        free_.erase(it);
        return block;
      }
    }
    const AllocateBlock allocate = allocate_.load();
    const bool pins = pins_ && *bytes >= kMinRecycledBytes;
    if (pins) *bytes = (*bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
    const size_t alignment = pins ? kPageBytes : kAlignment;
    void* block = allocate(alignment, *bytes);
    if (block == nullptr) {  // retry after freeing recycled blocks
      FreeDownTo(0);
      block = allocate(alignment, *bytes);
    }
    if (block == nullptr) std::abort();
    if (pins) Pin(block, *bytes);
    return block;
  }

  void Give(void* block, size_t bytes) ABSL_LOCKS_EXCLUDED(mu_) {
    if (bytes < kMinRecycledBytes) return std::free(block);
    std::vector<Dropped> dropped;  // freed after the lock
    absl::MutexLock lock(&mu_);
    free_.emplace(bytes, block);
    assert(bytes % kAlignment == 0);
    free_bytes_ += bytes;
    DropDownTo(limit_bytes_, &dropped);
  }

  size_t free_bytes() const ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    return free_bytes_;
  }

  void SetLimit(size_t bytes) ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<Dropped> dropped;  // freed after the lock
    absl::MutexLock lock(&mu_);
    limit_bytes_ = bytes;
    DropDownTo(limit_bytes_, &dropped);
  }

  bool SetPinning(std::function<bool(void*, size_t)> pin, std::function<void(void*)> unpin)
      ABSL_LOCKS_EXCLUDED(mu_) {
    void* const trial = std::aligned_alloc(kPageBytes, kPageBytes);
    const bool works = trial != nullptr && pin != nullptr && pin(trial, kPageBytes);
    if (works) unpin(trial);
    std::free(trial);
    if (!works) return false;
    absl::MutexLock lock(&mu_);
    pin_ = std::move(pin);
    unpin_ = std::move(unpin);
    pins_ = true;
    return true;
  }

  void Replace(AllocateBlock allocate) {
    allocate_ = allocate == nullptr ? std::aligned_alloc : allocate;
  }

 private:
  // A block that is freed by the destructor. Unpinning takes longer than a lock may be held.
  struct Dropped {
    Dropped(void* of, std::function<void(void*)> unpinned)
        : block(of), unpin(std::move(unpinned)) {}
    Dropped(Dropped&& other) noexcept
        : block(std::exchange(other.block, nullptr)), unpin(std::move(other.unpin)) {}
    Dropped& operator=(Dropped&&) = delete;
    ~Dropped() {
      if (block != nullptr && unpin != nullptr) unpin(block);
      std::free(block);
    }
    void* block;
    std::function<void(void*)> unpin;  // null: the block is not pinned
  };

  void Pin(void* block, size_t bytes) ABSL_LOCKS_EXCLUDED(mu_) {
    std::function<bool(void*, size_t)> pin;
    {
      absl::MutexLock lock(&mu_);
      pin = pin_;
    }
    if (!pin(block, bytes)) return;
    absl::MutexLock lock(&mu_);
    pinned_.insert(block);
  }
  void FreeDownTo(size_t bytes) ABSL_LOCKS_EXCLUDED(mu_) {
    std::vector<Dropped> dropped;  // freed after the lock
    absl::MutexLock lock(&mu_);
    DropDownTo(bytes, &dropped);
  }
  // Removes the largest blocks first: their sizes are needed rarely, and few frees suffice.
  void DropDownTo(size_t bytes, std::vector<Dropped>* dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    mu_.AssertHeld();
    while (free_bytes_ > bytes) {
      assert(!free_.empty());
      auto last = std::prev(free_.end());
      assert(free_bytes_ >= last->first);
      free_bytes_ -= last->first;
      const bool is_pinned = pinned_.erase(last->second) > 0;
      dropped->emplace_back(last->second, is_pinned ? unpin_ : nullptr);
      free_.erase(last);
    }
  }

  std::atomic<AllocateBlock> allocate_{std::aligned_alloc};
  std::atomic<bool> pins_{false};
  mutable absl::Mutex mu_;
  std::multimap<size_t, void*> free_ ABSL_GUARDED_BY(mu_);
  size_t free_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  size_t limit_bytes_ ABSL_GUARDED_BY(mu_) = kLeastRecycledLimit;
  std::function<bool(void*, size_t)> pin_ ABSL_GUARDED_BY(mu_);
  std::function<void(void*)> unpin_ ABSL_GUARDED_BY(mu_);
  std::set<void*> pinned_ ABSL_GUARDED_BY(mu_);
};

BlockRecycler& Recycler() {
  static BlockRecycler* const recycler = new BlockRecycler;  // never destroyed
  return *recycler;
}

}  // namespace

std::shared_ptr<std::byte[]> AllocateAligned(size_t bytes) {
  size_t block_bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (block_bytes == 0) block_bytes = kAlignment;
  auto* block = static_cast<std::byte*>(Recycler().Take(&block_bytes));
  assert(reinterpret_cast<uintptr_t>(block) % kAlignment == 0);
  return std::shared_ptr<std::byte[]>(
      block, [block_bytes](std::byte* memory) { Recycler().Give(memory, block_bytes); });
}

size_t RecycledBytes() { return Recycler().free_bytes(); }
void SetRecycledLimit(size_t bytes) { Recycler().SetLimit(bytes); }
bool PinObjectMemory(std::function<bool(void* memory, size_t bytes)> pin,
                     std::function<void(void* memory)> unpin) {
  return Recycler().SetPinning(std::move(pin), std::move(unpin));
}
void ReplaceBlockAllocation(AllocateBlock allocate) { Recycler().Replace(allocate); }

size_t RecycledLimitOf(const KvLayout& layout, uint32_t places, uint64_t kv_budget_bytes) {
  const uint64_t prefixes = places * NeededBytes(layout, kPrefixTokens);
  const uint64_t most = std::min<uint64_t>(kv_budget_bytes / 4, kMaxRecycledLimit);
  return std::max<size_t>(kLeastRecycledLimit, std::min(prefixes, most));
}

}  // namespace hearth
