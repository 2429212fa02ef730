#include "cache_store/host_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "cache_store/secret.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

namespace hearth {
namespace {

uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

absl::Status SystemError(const char* what) {
  return absl::ResourceExhaustedError(absl::StrCat("host arena: ", what, ": ", strerror(errno)));
}

}  // namespace

HostArena::HostArena(const ArenaOptions& options) : options_(options) {
  assert(options.slab_bytes > 0 && options.slab_bytes % kSegmentDataAlignment == 0);
  layout_.data_bytes = RoundUp(std::max<uint64_t>(options.capacity_bytes, 1), options.slab_bytes);
}

absl::StatusOr<std::shared_ptr<HostArena>> HostArena::Create(const ArenaOptions& options) {
  std::shared_ptr<HostArena> arena(new HostArena(options));
  const absl::Status mapped = options.shared ? arena->MapShared() : arena->Map();
  if (!mapped.ok()) return mapped;
  if (options.huge_pages) madvise(arena->data_, arena->layout_.data_bytes, MADV_HUGEPAGE);
  ASAN_POISON_MEMORY_REGION(arena->data_, arena->layout_.data_bytes);
  arena->grower_ = std::thread([raw = arena.get()] { raw->Grow(); });
  return arena;
}

HostArena::~HostArena() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  if (grower_.joinable()) grower_.join();
  if (data_ != nullptr) ASAN_UNPOISON_MEMORY_REGION(data_, layout_.data_bytes);
  if (mapping_ != nullptr) munmap(mapping_, layout_.file_bytes());
  if (fd_ >= 0) close(fd_);
}

absl::Status HostArena::Map() {
  void* mapping = mmap(nullptr, layout_.file_bytes(), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return SystemError("mmap");
  mapping_ = static_cast<std::byte*>(mapping);
  data_ = mapping_ + layout_.data_offset();
  return absl::OkStatus();
}

absl::Status HostArena::MapShared() {
  const absl::StatusOr<std::string> random = MakeSecret();
  if (!random.ok()) return random.status();
  std::memcpy(layout_.id.data(), random->data(), layout_.id.size());
  fd_ = memfd_create("hearth-host-tier", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd_ < 0) return SystemError("no shared memory: memfd_create");
  if (ftruncate(fd_, static_cast<off_t>(layout_.file_bytes())) != 0) {
    return SystemError("ftruncate");
  }
  void* mapping = mmap(nullptr, layout_.file_bytes(), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_NORESERVE, fd_, 0);
  if (mapping == MAP_FAILED) return SystemError("mmap");
  mapping_ = static_cast<std::byte*>(mapping);
  data_ = mapping_ + layout_.data_offset();
  const std::string header = EncodeSegmentHeader(layout_);
  std::memcpy(mapping_, header.data(), header.size());
  generations_ = reinterpret_cast<SegmentGeneration*>(mapping_ + kSegmentHeaderBytes);
  // From here on only this mapping writes, and whoever maps the file may rely on its size.
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  if (fcntl(fd_, F_ADD_SEALS, seals) != 0) {
    return SystemError("no shared memory: a kernel before 5.1 cannot seal it");
  }
  return absl::OkStatus();
}

bool HostArena::ShouldGrow() const {
  return growth_.ok() && free_.free_bytes() < options_.ahead_bytes &&
         resident_bytes_ < layout_.data_bytes;
}

// The grower's life: one slab after the other, for as long as less is free than is to be ahead.
void HostArena::Grow() {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || ShouldGrow();
  };
  for (;;) {
    uint64_t offset = 0;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&has_work));
      if (stopping_) return;
      offset = resident_bytes_;
    }
    absl::Status grown = MakeResident(offset, options_.slab_bytes);
    absl::MutexLock lock(&mu_);
    if (!grown.ok()) {
      growth_ = std::move(grown);
      continue;
    }
    resident_bytes_ += options_.slab_bytes;
    free_.Give(offset, options_.slab_bytes);
  }
}

absl::Status HostArena::MakeResident(uint64_t offset, uint64_t bytes) {
  std::byte* const begin = data_ + offset;
  if (madvise(begin, bytes, MADV_POPULATE_WRITE) == 0) return absl::OkStatus();
  if (errno != EINVAL) return SystemError("no more memory can be made resident");
  ASAN_UNPOISON_MEMORY_REGION(begin, bytes);
  // A kernel before 5.14: touch the pages.
  for (uint64_t at = 0; at < bytes; at += kSegmentGranuleBytes) {
    *reinterpret_cast<volatile std::byte*>(begin + at) = std::byte{0};
  }
  ASAN_POISON_MEMORY_REGION(begin, bytes);
  return absl::OkStatus();
}

std::shared_ptr<std::byte> HostArena::Allocate(size_t bytes) {
  if (bytes < kSmallestBytes) return nullptr;
  const uint64_t rounded = RoundUp(bytes, kSegmentGranuleBytes);
  uint64_t offset = 0;
  {
    absl::MutexLock lock(&mu_);
    const std::optional<uint64_t> taken = free_.Take(rounded);
    if (!taken.has_value()) return nullptr;
    offset = *taken;
  }
  ASAN_UNPOISON_MEMORY_REGION(data_ + offset, bytes);
  return std::shared_ptr<std::byte>(
      data_ + offset,
      [arena = shared_from_this(), offset, rounded](std::byte*) { arena->Free(offset, rounded); });
}

void HostArena::Free(uint64_t offset, uint64_t bytes) {
  ASAN_POISON_MEMORY_REGION(data_ + offset, bytes);
  if (generations_ != nullptr) {
    // Before anyone can be given the range, and so before any write to it.
    generations_[offset / kSegmentGranuleBytes].fetch_add(1, std::memory_order_seq_cst);
  }
  absl::MutexLock lock(&mu_);
  free_.Give(offset, bytes);
}

std::optional<SegmentRange> HostArena::RangeOf(const void* memory, size_t bytes) const {
  const auto* at = static_cast<const std::byte*>(memory);
  if (generations_ == nullptr || at < data_ || at >= data_ + layout_.data_bytes) {
    return std::nullopt;
  }
  SegmentRange range;
  range.offset = static_cast<uint64_t>(at - data_);
  range.bytes = bytes;
  if (range.offset % kSegmentGranuleBytes != 0) return std::nullopt;  // no slice of its own
  range.generation =
      generations_[range.offset / kSegmentGranuleBytes].load(std::memory_order_acquire);
  return range;
}

HostArena::Usage HostArena::usage() const {
  absl::MutexLock lock(&mu_);
  Usage usage;
  usage.capacity_bytes = layout_.data_bytes;
  usage.resident_bytes = resident_bytes_;
  usage.used_bytes = resident_bytes_ - free_.free_bytes();
  usage.growth = growth_;
  return usage;
}

void HostArena::WaitUntilAhead() {
  const auto ahead = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !ShouldGrow(); };
  absl::MutexLock lock(&mu_);
  mu_.Await(absl::Condition(&ahead));
}

}  // namespace hearth
