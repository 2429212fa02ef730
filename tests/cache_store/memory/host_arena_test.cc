#include "cache_store/memory/host_arena.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

ArenaOptions Small(bool shared) {
  ArenaOptions options;
  options.capacity_bytes = 16 * kMiB;
  options.ahead_bytes = 16 * kMiB;
  options.slab_bytes = 2 * kMiB;
  options.shared = shared;
  return options;
}

std::shared_ptr<HostArena> WholeArena(bool shared) {
  auto arena = HostArena::Create(Small(shared));
  EXPECT_TRUE(arena.ok()) << arena.status();
  (*arena)->WaitUntilAhead();
  return *arena;
}

TEST(HostArena, GrowthStopsAtAheadBytes) {
  ArenaOptions options = Small(false);
  options.ahead_bytes = 3 * kMiB;
  auto arena = *HostArena::Create(options);
  arena->WaitUntilAhead();
  EXPECT_EQ(arena->usage().resident_bytes, 4 * kMiB);
  EXPECT_EQ(arena->usage().used_bytes, 0u);
  const auto held = arena->Allocate(2 * kMiB);
  ASSERT_NE(held, nullptr);
  arena->WaitUntilAhead();
  EXPECT_EQ(arena->usage().resident_bytes, 6 * kMiB);
  EXPECT_EQ(arena->usage().used_bytes, 2 * kMiB);
}

TEST(HostArena, ArenaGrowsWhenHalfIsUsed) {
  absl::Notification goes_on;
  ArenaOptions options = Small(false);
  options.ahead_bytes = 4 * kMiB;
  options.populate = [&, slabs = 0](void*, size_t) mutable {
    if (++slabs > 2) goes_on.WaitForNotification();
    return 0;
  };
  auto arena = *HostArena::Create(options);
  arena->WaitUntilAhead();
  const auto half = arena->Allocate(2 * kMiB);
  EXPECT_FALSE(arena->usage().grows);
  const auto more = arena->Allocate(kMiB);
  EXPECT_TRUE(arena->usage().grows);
  EXPECT_EQ(arena->usage().resident_bytes, 4 * kMiB);
  goes_on.Notify();
  arena->WaitUntilAhead();
  EXPECT_EQ(arena->usage().resident_bytes, 8 * kMiB);
}

TEST(HostArena, AllocationWithoutFreeMemoryReturnsNull) {
  ArenaOptions options = Small(false);
  options.ahead_bytes = 0;
  auto arena = *HostArena::Create(options);
  EXPECT_EQ(arena->Allocate(kMiB), nullptr);
  EXPECT_EQ(WholeArena(false)->Allocate(HostArena::kSmallestBytes - 1), nullptr);
  EXPECT_EQ(WholeArena(false)->Allocate(17 * kMiB), nullptr);
}

TEST(HostArena, AdjacentFreeRangesMerge) {
  const auto arena = WholeArena(false);
  std::vector<std::shared_ptr<std::byte>> held;
  for (int i = 0; i < 16; ++i) held.push_back(arena->Allocate(kMiB));
  EXPECT_EQ(arena->Allocate(kMiB), nullptr);
  for (const int i : {3, 5, 4, 0, 15, 1}) held[i] = nullptr;
  EXPECT_EQ(arena->usage().used_bytes, 10 * kMiB);
  EXPECT_NE(held[3] = arena->Allocate(3 * kMiB), nullptr);
  EXPECT_NE(held[0] = arena->Allocate(2 * kMiB), nullptr);
  EXPECT_EQ(arena->Allocate(2 * kMiB), nullptr);
  held.clear();
  EXPECT_NE(arena->Allocate(16 * kMiB), nullptr);
}

// Each allocation keeps its bytes while other allocations are made and freed.
TEST(HostArena, AllocationsNeverOverlap) {
  const auto arena = WholeArena(true);
  std::mt19937 random(7);
  struct Held {
    std::shared_ptr<std::byte> memory;
    size_t bytes;
    uint8_t fill;
  };
  std::vector<Held> held;
  int taken = 0;
  for (int step = 0; step < 3000; ++step) {
    if (held.empty() || random() % 2 == 0) {
      const size_t bytes = HostArena::kSmallestBytes + random() % 300'000;
      auto memory = arena->Allocate(bytes);
      if (memory != nullptr) {
        ++taken;
        EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % kSegmentGranuleBytes, 0u);
        held.push_back({std::move(memory), bytes, static_cast<uint8_t>(random())});
        std::memset(held.back().memory.get(), held.back().fill, bytes);
        continue;
      }
    }
    const size_t at = random() % held.size();
    const std::byte* memory = held[at].memory.get();
    ASSERT_EQ(memory[0], static_cast<std::byte>(held[at].fill)) << step;
    ASSERT_EQ(std::memcmp(memory, memory + 1, held[at].bytes - 1), 0) << step << ": not all alike";
    std::swap(held[at], held.back());
    held.pop_back();
  }
  EXPECT_GT(taken, 1000);
  held.clear();
  EXPECT_EQ(arena->usage().used_bytes, 0u);
}

TEST(HostArena, ReusedRangeChangesGeneration) {
  const auto arena = WholeArena(true);
  auto first = arena->Allocate(16 * kMiB);
  const auto before = arena->RangeOf(first.get(), 16 * kMiB);
  ASSERT_TRUE(before.has_value());
  first = nullptr;
  const auto second = arena->Allocate(16 * kMiB);
  const auto after = arena->RangeOf(second.get(), 16 * kMiB);
  ASSERT_TRUE(after.has_value());
  EXPECT_EQ(after->offset, before->offset);
  EXPECT_NE(after->generation, before->generation);
}

TEST(HostArena, UnsharedArenaHasNoSegmentRange) {
  const auto arena = WholeArena(false);
  const auto memory = arena->Allocate(kMiB);
  EXPECT_FALSE(arena->RangeOf(memory.get(), kMiB).has_value());
  EXPECT_EQ(arena->segment_fd(), -1);
  const auto shared = WholeArena(true);
  EXPECT_FALSE(shared->RangeOf(memory.get(), kMiB).has_value());  // memory of another arena
}

TEST(HostArena, MappedSegmentIsReadOnly) {
  const auto arena = WholeArena(true);
  const int fd = arena->segment_fd();
  const size_t bytes = arena->layout().file_bytes();
  EXPECT_EQ(mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), MAP_FAILED);
  EXPECT_NE(ftruncate(fd, 4096), 0);
  EXPECT_LT(pwrite(fd, "x", 1, 0), 0);
  EXPECT_NE(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  void* reader = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  ASSERT_NE(reader, MAP_FAILED);
  const auto memory = arena->Allocate(kMiB);
  std::memset(memory.get(), 42, kMiB);
  const auto range = *arena->RangeOf(memory.get(), kMiB);
  const char* seen =
      static_cast<const char*>(reader) + arena->layout().data_offset() + range.offset;
  EXPECT_EQ(std::memcmp(seen, memory.get(), kMiB), 0);
  munmap(reader, bytes);
}

// Refuses memory, like a container at its limit, `refusals` times.
struct ScarceMemory {
  std::atomic<int> refusals{0}, refused{0};

  void PutUnder(ArenaOptions* options) {
    options->retry = absl::ZeroDuration();
    options->populate = [this](void* memory, size_t bytes) {
      if (refusals.load() == 0) return madvise(memory, bytes, MADV_POPULATE_WRITE);
      --refusals;
      ++refused;
      errno = ENOMEM;
      return -1;
    };
  }
};

TEST(HostArena, GrowthResumesWhenMemoryReturns) {
  std::atomic<int> warnings{0};
  ScarceMemory memory;
  memory.refusals = 3;
  ArenaOptions options = Small(true);
  options.warn = [&](const std::string& text) {
    ++warnings;
    EXPECT_THAT(text, ::testing::HasSubstr("lower --host-bytes"));
  };
  memory.PutUnder(&options);
  const auto arena = *HostArena::Create(options);
  while (arena->usage().resident_bytes < 16 * kMiB) std::this_thread::yield();
  arena->WaitUntilAhead();
  EXPECT_EQ(memory.refused.load(), 3);
  EXPECT_EQ(arena->usage().failed_growths, 3u);
  EXPECT_TRUE(arena->usage().growth.ok());
  EXPECT_EQ(warnings.load(), 1) << "once, however often";
  EXPECT_NE(arena->Allocate(16 * kMiB), nullptr);
}

TEST(HostArena, DestructorInterruptsRetryWait) {
  ScarceMemory memory;
  memory.refusals = 1'000'000;
  ArenaOptions options = Small(false);
  memory.PutUnder(&options);
  options.retry = absl::Hours(1);
  auto arena = *HostArena::Create(options);
  while (memory.refused.load() == 0) std::this_thread::yield();
  arena->WaitUntilAhead();
  EXPECT_EQ(arena->Allocate(kMiB), nullptr);
  arena = nullptr;
  EXPECT_EQ(memory.refused.load(), 1);
}

TEST(HostArena, ForbiddenHugePagesWarn) {
  const TestFolder kernel;
  HugePages wish = HugePages::kOn;
  const auto warnings = [&](bool shared, const char* file, const char* setting) {
    std::ofstream(kernel.path() + "/" + file) << setting;
    std::vector<std::string> texts;
    ArenaOptions options = Small(shared);
    options.huge_page_settings = kernel.path();
    options.huge_pages = wish;
    options.warn = [&](const std::string& text) { texts.push_back(text); };
    HostArena::Create(options).value()->WaitUntilAhead();
    return texts;
  };
  const char* const never = "always within_size advise [never] deny force\n";
  const char* const advise = "always within_size [advise] never deny force\n";
  EXPECT_THAT(warnings(true, "shmem_enabled", advise), ::testing::IsEmpty());
  EXPECT_THAT(warnings(false, "enabled", "always [madvise] never\n"), ::testing::IsEmpty());
  EXPECT_THAT(warnings(true, "shmem_enabled", never),
              ::testing::ElementsAre(::testing::HasSubstr("echo advise > " + kernel.path())));
  EXPECT_THAT(warnings(false, "shmem_enabled", never), ::testing::IsEmpty()) << "not its own";
  EXPECT_THAT(warnings(false, "enabled", "always madvise [never]\n"),
              ::testing::ElementsAre(::testing::HasSubstr("`echo madvise > ")));
  for (const HugePages other : {HugePages::kAuto, HugePages::kOff}) {
    wish = other;
    EXPECT_THAT(warnings(true, "shmem_enabled", never), ::testing::IsEmpty());
  }
}

TEST(HostArena, AllocationsOutliveArena) {
  auto arena = WholeArena(true);
  const auto memory = arena->Allocate(kMiB);
  arena = nullptr;
  std::memset(memory.get(), 1, kMiB);
}

}  // namespace
}  // namespace hearth
