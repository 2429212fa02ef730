// A store with a disk: what is acknowledged survives, what is corrupt is never served.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "tests/support/store_kit.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

StoreOptions DiskOptions(const KitFolder& folder, uint64_t host_bytes = 1 << 20) {
  StoreOptions options;
  options.data_dir = folder.path();
  options.host_bytes = host_bytes;
  options.disk_bytes = 64 << 20;
  return options;
}

TEST(DiskStore, WhatWasAcknowledgedIsThereAfterReopening) {
  const KitFolder folder;
  const Fingerprint model = KitModel().Make();
  const KitPrompt prompt{KitTokens(1, 200), {100}};
  {
    const auto store = TieredStore::Open(DiskOptions(folder)).value();
    const auto result = KitPublish(store.get(), model, prompt, {100, 192});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->durable, Durability::kDisk);
    Tier tier = Tier::kNone;
    EXPECT_EQ(KitFetch(store.get(), model, prompt, &tier).value(), 192u);
    EXPECT_EQ(tier, Tier::kHost);
  }
  const auto store = TieredStore::Open(DiskOptions(folder)).value();
  EXPECT_EQ(store->List("default").size(), 2u);
  Tier tier = Tier::kNone;
  EXPECT_EQ(KitFetch(store.get(), model, prompt, &tier).value(), 192u);
  EXPECT_EQ(tier, Tier::kDisk);
  EXPECT_EQ(KitFetch(store.get(), model, prompt, &tier).value(), 192u);
  EXPECT_EQ(tier, Tier::kHost) << "promoted as a whole by the first fetch";
}

}  // namespace
}  // namespace hearth
