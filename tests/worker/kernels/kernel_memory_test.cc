#include "worker/kernels/base/kernel_memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

namespace hearth {
namespace {

bool IsAligned(const std::byte* at, size_t to) { return reinterpret_cast<uintptr_t>(at) % to == 0; }

// Tests sizes below, at and above multiples of a huge page; all bytes must be writable.
TEST(KernelMemory, AllocationIsAlignedAndWritable) {
  const size_t huge = kHugePageBytes;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{100}, huge / 8 * 7 - 1, huge / 8 * 7,
                             huge, huge + 1, 2 * huge - 1}) {
    const KernelBytes memory = AllocateKernelBytes(bytes);
    ASSERT_NE(memory, nullptr) << bytes;
    EXPECT_TRUE(IsAligned(memory.get(), bytes >= huge / 8 * 7 ? huge : kKernelAlignBytes)) << bytes;
    std::memset(memory.get(), 1, bytes);
  }
}

TEST(KernelMemory, PiecesAreDisjointAndOutliveArena) {
  std::vector<std::pair<std::shared_ptr<std::byte>, size_t>> pieces;
  {
    KernelArena arena;
    for (const size_t bytes : {size_t{1}, size_t{65}, kHugePageBytes, 15 * kHugePageBytes,
                               20 * kHugePageBytes + 3, size_t{64}, size_t{0}, size_t{7}}) {
      pieces.emplace_back(arena.Take(bytes), bytes);
      EXPECT_TRUE(IsAligned(pieces.back().first.get(), kKernelAlignBytes)) << bytes;
      std::memset(pieces.back().first.get(), static_cast<int>(pieces.size()), bytes);
    }
  }
  for (size_t i = 0; i < pieces.size(); ++i) {
    const std::byte* at = pieces[i].first.get();
    const size_t bytes = pieces[i].second;
    if (bytes == 0) continue;
    EXPECT_EQ(at[0], static_cast<std::byte>(i + 1));
    EXPECT_EQ(at[bytes - 1], static_cast<std::byte>(i + 1));
  }
}

}  // namespace
}  // namespace hearth
