#include "worker/prefix/prefix_cache.h"

#include <cstring>
#include <vector>

#include "gtest/gtest.h"

namespace hearth {
namespace {

TEST(AllocateAlignedTest, EveryBlockIsAlignedAndWritableToItsEnd) {
  for (size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{65}, size_t{4097}, size_t{1} << 20,
                       (size_t{1} << 20) + 1}) {
    SCOPED_TRACE(bytes);
    std::shared_ptr<std::byte[]> block = AllocateAligned(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(block.get()) % 64, 0u);
    std::memset(block.get(), 1, bytes);
  }
}

TEST(AllocateAlignedTest, LivingBlocksNeverOverlap) {
  std::vector<std::shared_ptr<std::byte[]>> blocks;
  constexpr size_t kBytes = 100000;
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 8; ++i) {
      blocks.push_back(AllocateAligned(kBytes));
      std::memset(blocks.back().get(), static_cast<int>(blocks.size()), kBytes);
    }
    for (size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_EQ(static_cast<size_t>(blocks[i][0]), i + 1);
      EXPECT_EQ(static_cast<size_t>(blocks[i][kBytes - 1]), i + 1);
    }
    blocks.resize(4);  // the others are handed on
  }
}

TEST(AllocateAlignedTest, ALargeBlockIsUsedAgainInsteadOfTouchingFreshMemory) {
  constexpr size_t kBytes = 3 << 20;
  std::byte* address = nullptr;
  {
    std::shared_ptr<std::byte[]> block = AllocateAligned(kBytes);
    address = block.get();
  }
  EXPECT_EQ(AllocateAligned(kBytes - 1000).get(), address);
  EXPECT_NE(AllocateAligned(kBytes / 2).get(), address);  // half of it would be wasted
}

}  // namespace
}  // namespace hearth
