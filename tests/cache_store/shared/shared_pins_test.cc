// What a store pinned stays in the engine when room is short there, within a limit.
#include "cache_store/shared/tier/shared_pins.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cache_store/shared/shared_lives.h"
#include "tests/cache_store/shared/shared_kit.h"

namespace hearth {
namespace {

class SharedPinsTest : public SharedStoreTest {
 protected:
  // What of the prompt's restore point would end first in the engine: how long it has.
  absl::Duration Left(const KitPrompt& prompt, uint32_t boundary = 64) {
    absl::Duration left = absl::InfiniteDuration();
    for (const ObjectId& id : NeededObjects(model_.Layout().value(), boundary)) {
      const auto entry = kit_.memory.entries.find(Name(prompt, id));
      if (entry == kit_.memory.entries.end()) return -absl::InfiniteDuration();
      left = std::min(left, entry->second.expires - kit_.clock.Now());
    }
    return left;
  }
  void SetPinned(SharedNode* node, const KitPrompt& prompt, bool pinned) {
    for (const RestorePoint& point : node->store->List("default")) {
      const auto session = node->store->FetchById(point.id, "default").value();
      if (session->plan().token_ids[0] != prompt.tokens[0]) continue;
      ASSERT_TRUE(node->store->SetPinned(point.id, "default", pinned).ok());
    }
    node->writes->RunAll();
  }
  void Renew(SharedNode* node) {
    node->store->RenewPins();
    node->writes->RunAll();
  }

  const absl::Duration ttl_ = kit_.shared_options.ttl;
};

TEST_F(SharedPinsTest, WhatIsPinnedEndsAfterAllThatIsUsedLater) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  Publish(&one, Prompt(2), {64});
  SetPinned(&one, Prompt(1), true);
  EXPECT_GT(Left(Prompt(1)), ttl_ * 6 / 5);
  EXPECT_LE(Left(Prompt(2)), ttl_);
  EXPECT_EQ(one.Of(Counter::kSharedPinsRenewed), 1);
  EXPECT_EQ(one.Of(Counter::kExports), 2) << "this test's own looks for the point";
  // Neither a use nor a publish elsewhere takes that away.
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
  other.writes->RunAll();
  EXPECT_GT(Left(Prompt(1)), ttl_ * 6 / 5);
  // Used at the last moment before the next renewal.
  kit_.clock.Advance(ttl_ / SharedLives::kPinRenewals);
  EXPECT_EQ(Fetch(&one, Prompt(2)), 64);
  one.writes->RunAll();
  EXPECT_GT(Left(Prompt(1)), Left(Prompt(2)));
  Renew(&one);
  EXPECT_GT(Left(Prompt(1)), ttl_ * 6 / 5);
}

TEST_F(SharedPinsTest, WhatTheEngineLacksIsWrittenAgain) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  SetPinned(&one, Prompt(1), true);
  kit_.memory.entries.clear();
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0);
  kit_.clock.Advance(kit_.shared_options.generation_age * 2);
  Renew(&one);
  EXPECT_GT(Left(Prompt(1)), ttl_ * 6 / 5);
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
}

TEST_F(SharedPinsTest, WhatIsNoLongerPinnedSoonCountsAsAnyOther) {
  SharedNode one = kit_.Node();
  Publish(&one, Prompt(1), {64});
  SetPinned(&one, Prompt(1), true);
  SetPinned(&one, Prompt(1), false);
  Renew(&one);
  kit_.clock.Advance(ttl_ / 4);
  Renew(&one);
  EXPECT_LE(Left(Prompt(1)), ttl_);
  EXPECT_EQ(one.Of(Counter::kSharedPinsRenewed), 1);
}

TEST_F(SharedPinsTest, WhatAStorePinnedThatIsGoneEndsByItself) {
  {
    SharedNode one = kit_.Node();
    Publish(&one, Prompt(1), {64});
    SetPinned(&one, Prompt(1), true);
  }
  SharedNode other = kit_.Node();
  kit_.clock.Advance(ttl_ + ttl_ / 8);
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
  SharedNode third = kit_.Node();
  kit_.clock.Advance(ttl_ + ttl_ / 8);
  EXPECT_EQ(Fetch(&third, Prompt(1)), 0);
}

TEST_F(SharedPinsTest, WhatIsDroppedByForceElsewhereIsDroppedAtTheNextRenewal) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
  SetPinned(&one, Prompt(1), true);
  SetPinned(&other, Prompt(1), true);
  const Digest id = one.store->List("default").at(0).id;
  ASSERT_EQ(one.store->Drop(id, "default", true)->dropped, 1);
  Renew(&other);
  EXPECT_TRUE(other.store->List("default").empty());
  EXPECT_FALSE(IsRestorable(Prompt(1), 64));
  EXPECT_EQ(Fetch(&one, Prompt(1)), 0);
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0);
  // Who pins it after that means it, at any store.
  Publish(&other, Prompt(1), {64});
  EXPECT_EQ(Fetch(&one, Prompt(1)), 64);
  SetPinned(&one, Prompt(1), true);
  for (int i = 0; i < 3; ++i) {
    kit_.clock.Advance(ttl_ / SharedLives::kPinRenewals);
    Renew(&one);
    EXPECT_GT(Left(Prompt(1)), ttl_) << i;
  }
}

TEST_F(SharedPinsTest, ADropByForceIsNotBelievedWhereItIsNotSealed) {
  SharedNode one = kit_.Node();
  Publish(&one, Prompt(1), {64});
  SetPinned(&one, Prompt(1), true);
  const ObjectId end = NeededObjects(model_.Layout().value(), 64).back();
  std::string name = Name(Prompt(1), end);
  name = name.substr(0, name.find('}') + 1) + ":x";
  kit_.memory.entries[name] = {std::string(SharedSpace::kSealBytes + 1, 'x')};
  Renew(&one);
  EXPECT_EQ(one.store->List("default").size(), 1);
  EXPECT_GT(Left(Prompt(1)), ttl_);
}

TEST_F(SharedPinsTest, BeyondTheLimitAPinIsCountedAndLivesAsAnyOther) {
  SharedNode unlimited = kit_.Node();
  Publish(&unlimited, Prompt(1), {64});
  const uint64_t bytes = unlimited.store->List("default").at(0).bytes;
  kit_.shared_options.pin_bytes = 2 * bytes;
  SharedNode one = kit_.Node();
  for (const uint64_t seed : {1, 2, 3}) {
    Publish(&one, Prompt(seed), {64});
    SetPinned(&one, Prompt(seed), true);
  }
  EXPECT_GT(Left(Prompt(1)), ttl_);
  EXPECT_GT(Left(Prompt(2)), ttl_);
  EXPECT_LE(Left(Prompt(3)), ttl_);
  EXPECT_EQ(one.Of(Counter::kSharedPinsOverLimit), 1);
  // Those that have room keep it, whatever their order is in the store.
  kit_.clock.Advance(ttl_ / 8);
  Renew(&one);
  EXPECT_GT(Left(Prompt(1)), ttl_);
  EXPECT_GT(Left(Prompt(2)), ttl_);
  EXPECT_EQ(one.Of(Counter::kSharedPinsOverLimit), 2);
  // And leave it to others.
  SetPinned(&one, Prompt(1), false);
  Renew(&one);
  EXPECT_GT(Left(Prompt(3)), ttl_);
}

}  // namespace
}  // namespace hearth
