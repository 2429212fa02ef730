// Tests the interface SliceTier (tier.h) with each implementation; today that is only the disk
// tier.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "cache_store/disk/disk_tier.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

SliceView Bytes(size_t count, uint8_t fill) {
  std::shared_ptr<std::byte> memory = AllocateSlice(count);
  std::memset(memory.get(), fill, count);
  return SliceView{memory, absl::Span<const std::byte>(memory.get(), count)};
}

StoredSlice RefOf(uint64_t object, uint32_t layer, const SliceView& view) {
  return {object, layer, view.bytes.size(), SliceDigest(view.bytes.data(), view.bytes.size())};
}

// A tier under test and the folder of its data.
struct Made {
  std::unique_ptr<TestFolder> folder;
  std::unique_ptr<SliceTier> tier;
};

Made MakeDisk() {
  Made made;
  made.folder = std::make_unique<TestFolder>();
  made.tier = DiskTier::Open(made.folder->path(), "secret").value();
  return made;
}
struct Maker {
  const char* name;
  std::function<Made()> make;
};

class TierContract : public ::testing::TestWithParam<Maker> {
 protected:
  Made made_ = GetParam().make();
  SliceTier& tier() { return *made_.tier; }
};

TEST_P(TierContract, MissReturnsNullopt) {
  const auto read = tier().Read(StoredSlice{1, 0, 8, 0});
  ASSERT_TRUE(read.ok());
  EXPECT_FALSE(read->has_value());
}

TEST_P(TierContract, ReadReturnsWrittenBytes) {
  uint64_t object = 0;
  for (const size_t bytes : {8u, 4095u, 4096u, 70000u, 3u << 20, 16u << 20}) {
    const SliceView view = Bytes(bytes, 7);
    const StoredSlice ref = RefOf(++object, 3, view);
    ASSERT_TRUE(tier().WriteAll({{ref, view}}).ok());
    const auto read = tier().Read(ref).value();
    ASSERT_TRUE(read.has_value());
    ASSERT_EQ(read->bytes.size(), bytes);
    EXPECT_EQ(std::memcmp(read->bytes.data(), view.bytes.data(), bytes), 0);
  }
}

TEST_P(TierContract, ViewOutlivesErase) {
  const SliceView view = Bytes(100000, 9);
  const StoredSlice ref = RefOf(1, 0, view);
  ASSERT_TRUE(tier().WriteAll({{ref, view}}).ok());
  const SliceView read = *tier().Read(ref).value();
  ASSERT_TRUE(tier().EraseObjects({1}).ok());
  EXPECT_FALSE(tier().Read(ref).value().has_value());
  EXPECT_EQ(SliceDigest(read.bytes.data(), read.bytes.size()), ref.digest);
}

TEST_P(TierContract, SecondWriteReplacesSlice) {
  const SliceView before = Bytes(5000, 1), after = Bytes(6000, 2);
  ASSERT_TRUE(tier().WriteAll({{RefOf(1, 0, before), before}}).ok());
  ASSERT_TRUE(tier().WriteAll({{RefOf(1, 0, after), after}}).ok());
  const auto read = tier().Read(RefOf(1, 0, after)).value();
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->bytes.size(), 6000u);
}

TEST_P(TierContract, EraseRemovesOnlyItsObject) {
  const SliceView view = Bytes(5000, 1);
  for (uint64_t object = 1; object <= 3; ++object) {
    for (uint32_t layer = 0; layer < 4; ++layer) {
      ASSERT_TRUE(tier().WriteAll({{RefOf(object, layer, view), view}}).ok());
    }
  }
  ASSERT_TRUE(tier().EraseObjects({2, 77}).ok());
  for (uint32_t layer = 0; layer < 4; ++layer) {
    EXPECT_TRUE(tier().Read(RefOf(1, layer, view)).value().has_value());
    EXPECT_FALSE(tier().Read(RefOf(2, layer, view)).value().has_value());
    EXPECT_TRUE(tier().Read(RefOf(3, layer, view)).value().has_value());
  }
}

INSTANTIATE_TEST_SUITE_P(Tiers, TierContract, ::testing::Values(Maker{"Disk", MakeDisk}),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace hearth
