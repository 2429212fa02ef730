#include "worker/prefix/object_memory.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "gtest/gtest.h"

namespace hearth {
namespace {

TEST(AllocateAlignedTest, BlocksAreAlignedAndWritable) {
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
    blocks.resize(4);  // frees the other blocks, which are kept for reuse
  }
}

TEST(AllocateAlignedTest, FreedLargeBlockIsReused) {
  constexpr size_t kBytes = 3 << 20;
  SetRecycledLimit(0);  // frees the blocks that earlier tests of this process left
  SetRecycledLimit(kLeastRecycledLimit);
  std::byte* address = nullptr;
  {
    std::shared_ptr<std::byte[]> block = AllocateAligned(kBytes);
    address = block.get();
  }
  EXPECT_EQ(AllocateAligned(kBytes - 1000).get(), address);
  EXPECT_NE(AllocateAligned(kBytes / 2).get(), address);  // its block would be half unused
}

TEST(ObjectMemoryTest, RecycledBytesStayWithinLimit) {
  constexpr size_t kBytes = 1 << 20, kBlocks = 6;
  const auto let_go = [] {
    std::vector<std::shared_ptr<std::byte[]>> blocks;
    while (blocks.size() < kBlocks) blocks.push_back(AllocateAligned(kBytes));
  };
  SetRecycledLimit(0);
  EXPECT_EQ(RecycledBytes(), 0u);
  SetRecycledLimit(4 * kBytes + 1);
  let_go();
  EXPECT_EQ(RecycledBytes(), 4 * kBytes);
  SetRecycledLimit(kBlocks * kBytes);
  let_go();
  EXPECT_EQ(RecycledBytes(), kBlocks * kBytes);
  SetRecycledLimit(2 * kBytes);
  EXPECT_EQ(RecycledBytes(), 2 * kBytes);
  SetRecycledLimit(kLeastRecycledLimit);
}

// An allocator that fails as long as blocks are kept for reuse.
void* AllocateWhereNothingIsKept(size_t alignment, size_t bytes) {
  return RecycledBytes() > 0 ? nullptr : std::aligned_alloc(alignment, bytes);
}

TEST(ObjectMemoryTest, FailedAllocationFreesRecycledMemory) {
  constexpr size_t kBytes = 1 << 20;
  SetRecycledLimit(0);
  SetRecycledLimit(kLeastRecycledLimit);
  AllocateAligned(kBytes);
  ASSERT_EQ(RecycledBytes(), kBytes);
  ReplaceBlockAllocation(AllocateWhereNothingIsKept);
  const auto block = AllocateAligned(2 * kBytes);
  ReplaceBlockAllocation(nullptr);
  ASSERT_NE(block, nullptr);
  block[2 * kBytes - 1] = std::byte{1};
  EXPECT_EQ(RecycledBytes(), 0u);
}

TEST(ObjectMemoryTest, RecycledLimitScalesWithSequences) {
  KvLayout layout;  // layout of the 270M model
  layout.layers.assign(18, LayerGroup::kLocal);
  for (const size_t global : {5u, 11u, 17u}) layout.layers[global] = LayerGroup::kGlobal;
  layout.window = 512;
  layout.chunk_tokens = 128;
  layout.kv_heads = 1;
  layout.head_dim = 256;
  layout.dtype = KvDtype::kFloat32;
  const size_t prefix = 28311552, plenty = size_t{8} << 30;
  EXPECT_EQ(RecycledLimitOf(layout, 16, plenty), 16 * prefix);
  EXPECT_EQ(RecycledLimitOf(layout, 36, plenty), 36 * prefix);
  EXPECT_EQ(RecycledLimitOf(layout, 500, plenty / 4), plenty / 16);
  EXPECT_EQ(RecycledLimitOf(layout, 500, plenty), kMaxRecycledLimit);
  EXPECT_EQ(RecycledLimitOf(layout, 1, plenty), kLeastRecycledLimit);
  EXPECT_EQ(RecycledLimitOf(layout, 16, size_t{512} << 20), kLeastRecycledLimit);
  EXPECT_EQ(RecycledLimitOf(layout, 16, 0), kLeastRecycledLimit);
}

// The fake pinning stays installed for the rest of the process.
TEST(ObjectMemoryTest, BlocksArePinnedUntilFreed) {
  struct Pins {
    std::mutex mu;
    std::map<void*, size_t> pinned;
    int calls = 0;
    bool refuses = true;
  };
  static Pins* const pins = new Pins;
  const auto pin = [](void* memory, size_t bytes) {
    const std::lock_guard<std::mutex> lock(pins->mu);
    ++pins->calls;
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 4096 + bytes % 4096, 0u);
    return !pins->refuses && pins->pinned.emplace(memory, bytes).second;
  };
  const auto unpin = [](void* memory) {
    const std::lock_guard<std::mutex> lock(pins->mu);
    EXPECT_EQ(pins->pinned.erase(memory), 1u);
    RecycledBytes();  // other threads may use the recycler meanwhile: it holds no lock
  };
  SetRecycledLimit(0);
  SetRecycledLimit(kLeastRecycledLimit);
  EXPECT_FALSE(PinObjectMemory(pin, unpin));
  pins->refuses = false;
  EXPECT_TRUE(PinObjectMemory(pin, unpin));
  EXPECT_EQ(pins->calls, 2) << "two trials";
  for (int round = 0; round < 2; ++round) {
    const std::shared_ptr<std::byte[]> block = AllocateAligned(100000), small = AllocateAligned(64);
    EXPECT_EQ(pins->calls, 3) << "a recycled block stays pinned";
    EXPECT_EQ(pins->pinned.count(block.get()), 1u);
  }
  SetRecycledLimit(0);
  EXPECT_TRUE(pins->pinned.empty());
  pins->refuses = true;
  std::memset(AllocateAligned(100000).get(), 1, 100000);  // stays pageable
  SetRecycledLimit(kLeastRecycledLimit);
}

}  // namespace
}  // namespace hearth
