// Expiry, drop and quarantine of shared entries: they apply in all stores, and the entries never
// return.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cache_store/shared/shared_kit.h"

namespace hearth {
namespace {

class SharedEndsTest : public SharedStoreTest {
 protected:
  void PublishFor(SharedNode* node, const KitPrompt& prompt, std::vector<uint32_t> boundaries,
                  absl::Duration ttl) {
    PublishSpec spec = KitSpec(model_, prompt, std::move(boundaries));
    spec.ttl = ttl;
    auto session = node->store->Publish(spec).value();
    ASSERT_TRUE(KitPutAll(session.get(), spec, model_, prompt).ok());
    ASSERT_TRUE(session->Commit().ok());
    node->writes->RunAll();
  }
  // Returns the two numbers of a tenant, sealed as a store does.
  std::string NumbersOf(const SharedNumbers& numbers) {
    const SharedSpace plain(ReadSecret(kit_.secret_file).value(), "default", 0);
    return plain.Seal(plain.NumbersName(), numbers.Text());
  }
};

TEST_F(SharedEndsTest, UseExtendsValueExpiry) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  Publish(&one, Prompt(2), {64});
  kit_.clock.Advance(absl::Hours(20));
  // the hit is served from RAM, and extends the expiry in the engine
  EXPECT_EQ(Fetch(&one, Prompt(1)), 64);
  one.writes->RunAll();
  kit_.clock.Advance(absl::Hours(20));
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
  EXPECT_EQ(Fetch(&other, Prompt(2)), 0);
  // Uses within a short time extend the expiry only once.
  const int before = one.engine->round_trips();
  Fetch(&one, Prompt(1));
  one.writes->RunAll();
  const int after = one.engine->round_trips();
  EXPECT_GT(after, before);
  Fetch(&one, Prompt(1));
  one.writes->RunAll();
  EXPECT_EQ(one.engine->round_trips(), after);
}

TEST_F(SharedEndsTest, RestorePointExpiresInAllStores) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  PublishSpec spec = KitSpec(model_, Prompt(1), {64});
  spec.ttl = absl::Minutes(10);
  auto session = one.store->Publish(spec).value();
  ASSERT_TRUE(KitPutAll(session.get(), spec, model_, Prompt(1)).ok());
  ASSERT_TRUE(session->Commit().ok());
  one.writes->RunAll();
  kit_.clock.Advance(absl::Minutes(9));
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
  one.writes->RunAll();
  other.writes->RunAll();
  kit_.clock.Advance(absl::Minutes(2));
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0);
  EXPECT_EQ(Fetch(&one, Prompt(1)), 0);
}

// The expiry is in the sealed heads: a longer prompt that uses an expired object is a miss, and the
// next publish writes the object again.
TEST_F(SharedEndsTest, RepublishRestoresExpiredPrefix) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  PublishFor(&one, Prompt(1), {64}, absl::Minutes(10));
  Publish(&one, Prompt(1, 129), {128});
  kit_.clock.Advance(absl::Minutes(11));
  EXPECT_EQ(Fetch(&other, Prompt(1, 129)), 0);
  EXPECT_EQ(other.Of(Counter::kSharedRejectedValues), 0);
  Publish(&one, Prompt(1, 129), {128});
  kit_.clock.Advance(absl::Minutes(11));
  EXPECT_EQ(Fetch(&other, Prompt(1, 129)), 128);
  EXPECT_EQ(Fetch(&one, Prompt(1, 129)), 128) << "here it never ended";
}

TEST_F(SharedEndsTest, DropAllReachesEveryStore) {
  SharedNode one = kit_.Node(), other = kit_.Node(), third = kit_.Node();
  Publish(&one, Prompt(1), {64});
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
  ASSERT_TRUE(one.store->DropAll("default", false).ok());
  EXPECT_EQ(Fetch(&one, Prompt(1)), 0);
  EXPECT_EQ(Fetch(&third, Prompt(1)), 0);
  kit_.clock.Advance(kit_.shared_options.generation_age * 2);
  Fetch(&other, Prompt(2));  // makes the store read the generation again
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0);
  // Entries that are published after the drop are found; older ones never return.
  Publish(&third, Prompt(1), {64});
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
  const SharedSpace space = kit_.Space("default");
  const std::string name = space.NumbersName();
  for (const std::string& text : {NumbersOf({1, 0}), NumbersOf({1, 1}), std::string("none"),
                                  std::string(SharedSpace::kSealBytes + 16, 'x'), std::string()}) {
    kit_.memory.entries[name].value = text;
    if (text.empty()) kit_.memory.entries.erase(name);
    kit_.clock.Advance(kit_.shared_options.generation_age * 2);
    Publish(&other, Prompt(3), {64});
    EXPECT_EQ(kit_.Space("default").generation(), space.generation()) << text;
    EXPECT_EQ(kit_.Space("default").drop_number(), space.drop_number()) << text;
  }
}

TEST_F(SharedEndsTest, DropAllRemovesOtherStoresLocalEntries) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
  ASSERT_TRUE(one.store->DropAll("default", false).ok());
  kit_.clock.Advance(kit_.shared_options.generation_age * 2);
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0) << "the first answer";
}

// The store has local entries from before the drop, which it must not write under the new
// generation.
TEST_F(SharedEndsTest, DropAllAppliesToUnreadTenant) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  other.engine->SetUnreachable(true);
  Publish(&other, Prompt(1), {64});
  Publish(&one, Prompt(2), {64});
  ASSERT_TRUE(one.store->DropAll("default", false).ok());
  other.engine->SetUnreachable(false);
  kit_.clock.Advance(absl::Seconds(10));
  Publish(&other, Prompt(3), {64});
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0);
  SharedNode third = kit_.Node();
  EXPECT_EQ(Fetch(&third, Prompt(1)), 0);
}

TEST_F(SharedEndsTest, ConcurrentLookupAppliesDropAll) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
  kit_.clock.Advance(kit_.shared_options.generation_age * 2);
  one.engine->OnWritten([&] { Fetch(&other, Prompt(2)); });
  ASSERT_TRUE(one.store->DropAll("default", false).ok());
  one.engine->OnWritten(nullptr);
  EXPECT_TRUE(other.store->List("default").empty());
}

TEST_F(SharedEndsTest, ConcurrentDropAllsBothApply) {
  SharedNode one = kit_.Node(), other = kit_.Node(), third = kit_.Node();
  Publish(&one, Prompt(1), {64});
  EXPECT_EQ(Fetch(&third, Prompt(1)), 64);
  int writes = 0;
  one.engine->OnWritten([&] {
    if (++writes > 1) return;
    EXPECT_TRUE(other.store->DropAll("default", false).ok());
  });
  ASSERT_TRUE(one.store->DropAll("default", false).ok());
  one.engine->OnWritten(nullptr);
  SharedNode fresh = kit_.Node();
  EXPECT_EQ(Fetch(&fresh, Prompt(1)), 0);
  kit_.clock.Advance(kit_.shared_options.generation_age * 2);
  Fetch(&third, Prompt(2));
  EXPECT_TRUE(third.store->List("default").empty());
  // The stores now use the same generation, so each store finds what another store publishes.
  Publish(&one, Prompt(3), {64});
  EXPECT_EQ(Fetch(&other, Prompt(3)), 64);
  EXPECT_EQ(Fetch(&fresh, Prompt(3)), 64);
}

TEST_F(SharedEndsTest, SmallerDropNumberIsOverwritten) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  ASSERT_TRUE(one.store->DropAll("default", false).ok());
  Publish(&one, Prompt(1), {64});
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
  const std::string name = kit_.Space("default").NumbersName();
  const std::string older = kit_.memory.entries[name].value;
  const int gets = one.engine->gets();
  one.engine->OnGet([&](int number) {
    if (number == gets + 1) kit_.memory.entries[name].value = older;
  });
  ASSERT_TRUE(one.store->DropAll("default", false).ok());
  EXPECT_NE(kit_.memory.entries[name].value, older);
  kit_.clock.Advance(kit_.shared_options.generation_age * 2);
  Fetch(&other, Prompt(2));
  EXPECT_TRUE(other.store->List("default").empty());
}

// If the Redis shard with the drop number is lost, the engine does not know which values were
// dropped.
TEST_F(SharedEndsTest, LostDropNumberKeepsEntriesDropped) {
  SharedNode one = kit_.Node();
  Publish(&one, Prompt(1), {64});
  ASSERT_TRUE(one.store->DropAll("default", false).ok());
  Publish(&one, Prompt(2), {64});
  const SharedSpace space = kit_.Space("default");
  kit_.memory.entries.erase(space.NumbersName());
  kit_.clock.Advance(absl::Minutes(2));
  SharedNode fresh = kit_.Node();
  Publish(&fresh, Prompt(3), {64});
  EXPECT_EQ(Fetch(&fresh, Prompt(1)), 0);
  EXPECT_GT(kit_.Space("default").generation(), space.generation());
  // A store with a larger drop number writes it to the engine, and keeps its entries.
  EXPECT_EQ(Fetch(&one, Prompt(2)), 64);
  EXPECT_EQ(kit_.Space("default").drop_number(), space.drop_number());
}

TEST_F(SharedEndsTest, OnlyRecentReaderRestoresLostGeneration) {
  SharedNode one = kit_.Node();
  Publish(&one, Prompt(1), {64});
  const SharedSpace space = kit_.Space("default");
  kit_.memory.entries.erase(space.NumbersName());
  kit_.clock.Advance(absl::Seconds(30));
  Fetch(&one, Prompt(2));
  EXPECT_EQ(kit_.Space("default").generation(), space.generation());
  {
    SharedNode fresh = kit_.Node();
    EXPECT_EQ(Fetch(&fresh, Prompt(1)), 64);
  }
  // After a longer time, the store may have missed a drop, so it does not restore the number.
  kit_.memory.entries.erase(space.NumbersName());
  kit_.clock.Advance(absl::Seconds(90));
  Fetch(&one, Prompt(2));
  EXPECT_EQ(kit_.memory.entries.count(space.NumbersName()), 0);
  Publish(&one, Prompt(2), {64});
  SharedNode fresh = kit_.Node();
  EXPECT_EQ(Fetch(&fresh, Prompt(1)), 0);
  EXPECT_EQ(Fetch(&fresh, Prompt(2)), 64);
}

TEST_F(SharedEndsTest, UnansweredReadKeepsGenerationBriefly) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  Publish(&one, Prompt(2), {64});
  Fetch(&other, Prompt(3));
  const SharedSpace space = kit_.Space("default");
  other.engine->SetSilent({space.NumbersName()});
  kit_.clock.Advance(absl::Seconds(50));
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
  kit_.clock.Advance(absl::Seconds(20));
  EXPECT_EQ(Fetch(&other, Prompt(2)), 0);
  EXPECT_EQ(other.store->DropAll("default", false).status().code(), absl::StatusCode::kUnavailable);
}

// A failover of Redis may lose the last writes. A store without a connection notices the drop only
// by the number.
TEST_F(SharedEndsTest, DropAllSurvivesEngineDataLoss) {
  SharedNode one = kit_.Node(), other = kit_.Node(), third = kit_.Node();
  Publish(&one, Prompt(1), {64});
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
  EXPECT_EQ(Fetch(&third, Prompt(1)), 64);
  for (SharedNode* away : {&other, &third}) away->engine->SetUnreachable(true);
  ASSERT_TRUE(one.store->DropAll("default", false).ok());
  kit_.memory.entries.clear();
  kit_.clock.Advance(kit_.shared_options.generation_age * 2);
  Fetch(&one, Prompt(2));
  other.engine->SetUnreachable(false);
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0) << "the first answer of who is back";
  // A store that only noticed the drop also rewrites a lost number.
  kit_.memory.entries.clear();
  kit_.clock.Advance(kit_.shared_options.generation_age * 2);
  Fetch(&other, Prompt(2));
  third.engine->SetUnreachable(false);
  EXPECT_EQ(Fetch(&third, Prompt(1)), 0);
}

// A client that can write to the engine, but does not know the secret, can only cause misses.
TEST_F(SharedEndsTest, UnsealedDropNumberDropsNothing) {
  SharedNode one = kit_.Node();
  Publish(&one, Prompt(1), {64});
  const SharedSpace space = kit_.Space("default");
  const uint64_t later = space.generation() + 77;
  kit_.memory.entries[space.NumbersName()].value = SharedNumbers{later, later}.Text();
  kit_.clock.Advance(absl::Minutes(2));
  EXPECT_EQ(Fetch(&one, Prompt(1)), 64);
  EXPECT_EQ(one.behind->DropNumber("default"), 0u);
}

TEST_F(SharedEndsTest, UnreachableEngineFailsDrop) {
  SharedNode one = kit_.Node();
  Publish(&one, Prompt(1), {64});
  const Digest id = one.store->List("default").at(0).id;
  one.engine->SetUnreachable(true);
  EXPECT_EQ(one.store->Drop(id, "default", false).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(one.store->DropAll("default", false).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(one.store->List("default").empty());
}

TEST_F(SharedEndsTest, DroppedPointStaysGone) {
  SharedNode one = kit_.Node();
  Publish(&one, Prompt(1), {64});
  const Digest id = one.store->List("default").at(0).id;
  ASSERT_TRUE(one.store->Drop(id, "default", false).ok());
  EXPECT_EQ(Fetch(&one, Prompt(1)), 0);
}

TEST_F(SharedEndsTest, QuarantinedObjectStaysGone) {
  SharedNode one = kit_.Node();
  Publish(&one, Prompt(1), {64});
  const std::vector<ObjectId> objects = {{0, 16, LayerGroup::kGlobal}};
  ASSERT_TRUE(one.store->Quarantine(KitQuery(model_, Prompt(1)), objects).ok());
  EXPECT_EQ(Fetch(&one, Prompt(1)), 0);
}

// A starting store knows fingerprints only from its disk, because running workers do not send them
// again.
TEST_F(SharedEndsTest, QuarantineAfterRestartReachesEngine) {
  const std::vector<ObjectId> objects = {{0, 16, LayerGroup::kGlobal}};
  kit_.store_options.data_dir = kit_.folder.path() + "/data";
  kit_.store_options.default_durability = Durability::kDisk;
  SharedNode one = kit_.Node();
  Publish(&one, Prompt(1), {64});
  for (const bool fetches : {false, true}) {
    one.store.reset();
    one = kit_.Node();
    if (fetches) {
      ASSERT_EQ(KitFetch(one.store.get(), model_, Prompt(1)).value(), 64u);
    }
    const auto result = one.store->Quarantine(KitQuery(model_, Prompt(1)), objects);
    EXPECT_EQ(result.ok(), fetches) << result.status();
    EXPECT_EQ(IsRestorable(Prompt(1), 64), !fetches);
    if (!fetches) {
      EXPECT_THAT(std::string(result.status().message()), ::testing::HasSubstr("fields"));
      ASSERT_TRUE(KitPublish(one.store.get(), model_, Prompt(1), {64}).ok());
    }
  }
}

TEST_F(SharedEndsTest, QuarantineWithoutEngineReturnsUnavailable) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  const std::vector<ObjectId> objects = {{0, 16, LayerGroup::kGlobal}};
  const auto unknown = other.store->Quarantine(KitQuery(model_, Prompt(1)), objects);
  EXPECT_TRUE(absl::IsUnavailable(unknown.status())) << unknown.status();
  other.store->Observe(model_, "default");
  const auto known = other.store->Quarantine(KitQuery(model_, Prompt(1)), objects);
  EXPECT_TRUE(absl::IsNotFound(known.status())) << known.status();
  EXPECT_FALSE(IsRestorable(Prompt(1), 64)) << "not stored here, and gone from the engine";
}

}  // namespace
}  // namespace hearth
