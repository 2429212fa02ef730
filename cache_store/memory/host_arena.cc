#include "cache_store/memory/host_arena.h"

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

uint64_t RoundUp(uint64_t value, uint64_t unit) { return (value + unit - 1) / unit * unit; }

absl::Status MemoryError(const char* what) {
  return absl::ResourceExhaustedError(absl::StrCat("host arena: ", what, ": ", strerror(errno)));
}

// Returns the error if the address space does not suffice, with the needed bytes and the remedy.
absl::Status NoRoomFor(const SegmentLayout& layout, const absl::Status& why) {
  rlimit limit{};
  const bool is_limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  return absl::Status(
      why.code(),
      absl::StrCat(
          why.message(),
          "; --host-bytes (--store-host-bytes for an embedded store) and incoming publishes need ",
          layout.data_bytes, " bytes of address space",
          is_limited ? absl::StrCat(", and ulimit -v allows ", limit.rlim_cur) : "",
          ": lower the flag, or raise ulimit -v"));
}

}  // namespace

HostArena::HostArena(const ArenaOptions& options) : options_(options) {
  assert(options.slab_bytes > 0 && options.slab_bytes % kSegmentDataAlignment == 0);
  layout_.data_bytes = RoundUp(std::max<uint64_t>(options.capacity_bytes, 1), options.slab_bytes);
}

absl::StatusOr<std::shared_ptr<HostArena>> HostArena::Create(const ArenaOptions& options) {
  std::shared_ptr<HostArena> arena(new HostArena(options));
  const absl::Status mapped = arena->Map();
  if (!mapped.ok()) return mapped;
  assert(arena->data_ != nullptr && (arena->file_ != nullptr) == options.shared);
  assert(arena->layout_.data_bytes % options.slab_bytes == 0);  // Grow() adds whole slabs
  if (options.huge_pages != HugePages::kOff) arena->RequestHugePages();
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
  if (data_ != nullptr && file_ == nullptr) munmap(data_, layout_.data_bytes);
}

absl::Status HostArena::Map() {
  if (options_.shared) {
    absl::StatusOr<std::unique_ptr<SegmentFile>> file = SegmentFile::Create(layout_);
    if (!file.ok()) return NoRoomFor(layout_, file.status());
    file_ = *std::move(file);
    layout_ = file_->layout();
    data_ = file_->data();
    return absl::OkStatus();
  }
  void* mapping = mmap(nullptr, layout_.data_bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) return NoRoomFor(layout_, MemoryError("mmap"));
  data_ = static_cast<std::byte*>(mapping);
  return absl::OkStatus();
}

void HostArena::Warn(const std::string& text) const {
  if (options_.warn) options_.warn(text);
}

// Asks the kernel for huge pages, and reads the kernel's settings: if they forbid huge pages,
// madvise succeeds but has no effect.
void HostArena::RequestHugePages() {
  const bool asked = madvise(data_, layout_.data_bytes, MADV_HUGEPAGE) == 0;
  if (options_.huge_pages != HugePages::kOn) return;
  if (!asked) {
    Warn(absl::StrCat("no huge pages for the RAM tier: madvise: ", strerror(errno),
                      "; `--huge-pages auto` avoids this warning"));
    return;
  }
  const std::string path =
      absl::StrCat(options_.huge_page_settings, options_.shared ? "/shmem_enabled" : "/enabled");
  std::ifstream file(path);
  const std::string setting((std::istreambuf_iterator<char>(file)), {});
  if (!absl::StrContains(setting, "[never]") && !absl::StrContains(setting, "[deny]")) return;
  Warn(absl::StrCat("no huge pages for the RAM tier: the kernel's ", path, " forbids them; `echo ",
                    options_.shared ? "advise" : "madvise", " > ", path,
                    "` as root and a restart allow them; `--huge-pages auto` avoids this warning"));
}

bool HostArena::Lacks(uint64_t bytes) const {
  mu_.AssertHeld();
  return free_.free_bytes() < bytes && resident_bytes_ < layout_.data_bytes;
}

bool HostArena::ShouldGrow() const { return grows_ || Lacks(options_.ahead_bytes / 2); }

// Function of the growth thread. When less than half of ahead_bytes is free, it makes slabs
// resident until all of ahead_bytes is free. It waits until half is used, because a caller that
// just took memory is filling it, and clearing pages at the same time would slow the caller.
void HostArena::Grow() {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping_ || ShouldGrow();
  };
  const auto is_stopping = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stopping_; };
  absl::Duration retry = options_.retry;
  bool warned = false;
  for (;;) {
    uint64_t offset = 0;
    {
      absl::MutexLock lock(&mu_);
      if (!Lacks(options_.ahead_bytes)) grows_ = false;
      mu_.Await(absl::Condition(&has_work));
      if (stopping_) return;
      grows_ = true;
      offset = resident_bytes_;
    }
    absl::Status grown = MakeResident(offset, options_.slab_bytes);
    if (!grown.ok() && !std::exchange(warned, true)) {
      Warn(absl::StrCat(grown.message(), "; ", offset, " of ", layout_.data_bytes,
                        " bytes are resident, and further entries go to memory that no worker can "
                        "map; lower --host-bytes or raise the container's memory"));
    }
    absl::MutexLock lock(&mu_);
    growth_ = grown;
    if (!grown.ok()) {
      ++failed_growths_;
      mu_.AwaitWithTimeout(absl::Condition(&is_stopping), retry);
      retry = std::min(2 * retry, ArenaOptions::kLongestRetry);
      continue;
    }
    retry = options_.retry;
    resident_bytes_ += options_.slab_bytes;
    assert(resident_bytes_ <= layout_.data_bytes);
    free_.Free(offset, options_.slab_bytes);
  }
}

absl::Status HostArena::MakeResident(uint64_t offset, uint64_t bytes) {
  assert(offset + bytes <= layout_.data_bytes);
  std::byte* const begin = data_ + offset;
  const int populated = options_.populate ? options_.populate(begin, bytes)
                                          : madvise(begin, bytes, MADV_POPULATE_WRITE);
  if (populated == 0) return absl::OkStatus();
  if (errno != EINVAL) return MemoryError("no more memory can be made resident");
  ASAN_UNPOISON_MEMORY_REGION(begin, bytes);
  // Linux before 5.14 cannot populate memory by madvise, so touch each page.
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
    const std::optional<uint64_t> taken = free_.Allocate(rounded);
    if (!taken.has_value()) return nullptr;
    offset = *taken;
  }
  // Free() and RangeOf() find the range's generation by this offset.
  assert(offset % kSegmentGranuleBytes == 0 && offset + rounded <= layout_.data_bytes);
  ASAN_UNPOISON_MEMORY_REGION(data_ + offset, bytes);
  return std::shared_ptr<std::byte>(
      data_ + offset,
      [arena = shared_from_this(), offset, rounded](std::byte*) { arena->Free(offset, rounded); });
}

void HostArena::Free(uint64_t offset, uint64_t bytes) {
  assert(offset % kSegmentGranuleBytes == 0 && bytes % kSegmentGranuleBytes == 0);
  ASAN_POISON_MEMORY_REGION(data_ + offset, bytes);
  // Change the range's generation before the range can be allocated again and written.
  if (file_ != nullptr) file_->generation(offset).fetch_add(1, std::memory_order_seq_cst);
  absl::MutexLock lock(&mu_);
  assert(offset + bytes <= resident_bytes_);
  free_.Free(offset, bytes);
}

std::optional<SegmentRange> HostArena::RangeOf(const void* memory, size_t bytes) const {
  const auto* at = static_cast<const std::byte*>(memory);
  if (file_ == nullptr || at < data_ || at >= data_ + layout_.data_bytes) {
    return std::nullopt;
  }
  SegmentRange range;
  range.offset = static_cast<uint64_t>(at - data_);
  range.bytes = bytes;
  assert(bytes <= layout_.data_bytes - range.offset);
  // the memory is not the beginning of an allocation
  if (range.offset % kSegmentGranuleBytes != 0) return std::nullopt;
  range.generation = file_->generation(range.offset).load(std::memory_order_acquire);
  return range;
}

HostArena::Usage HostArena::usage() const {
  absl::MutexLock lock(&mu_);
  Usage usage;
  usage.capacity_bytes = layout_.data_bytes;
  usage.resident_bytes = resident_bytes_;
  assert(resident_bytes_ >= free_.free_bytes());
  usage.used_bytes = resident_bytes_ - free_.free_bytes();
  usage.growth = growth_;
  usage.failed_growths = failed_growths_;
  usage.grows = ShouldGrow();
  return usage;
}

void HostArena::WaitUntilAhead() {
  const auto ahead = [this]()
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !growth_.ok() || !grows_; };
  absl::MutexLock lock(&mu_);
  if (Lacks(options_.ahead_bytes)) grows_ = true;
  mu_.Await(absl::Condition(&ahead));
}

}  // namespace hearth
