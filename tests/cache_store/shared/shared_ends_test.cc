// The end of what stores share: by time, by a drop, by quarantine. It is one everywhere, and
// nothing comes back.
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
};

TEST_F(SharedEndsTest, AValueLivesItsTimeAndLongerWhereItIsUsed) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  Publish(&one, Prompt(2), {64});
  kit_.clock.Advance(absl::Hours(20));
  EXPECT_EQ(Fetch(&one, Prompt(1)), 64);  // served from RAM, and put off there
  one.writes->RunAll();
  kit_.clock.Advance(absl::Hours(20));
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
  EXPECT_EQ(Fetch(&other, Prompt(2)), 0);
  // Put off now and then only.
  const int before = one.engine->round_trips();
  Fetch(&one, Prompt(1));
  one.writes->RunAll();
  const int after = one.engine->round_trips();
  EXPECT_GT(after, before);
  Fetch(&one, Prompt(1));
  one.writes->RunAll();
  EXPECT_EQ(one.engine->round_trips(), after);
}

TEST_F(SharedEndsTest, ATimeToLiveHoldsEverywhere) {
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

// The end is sealed in heads, so that they are written anew, whoever wrote or read them here.
TEST_F(SharedEndsTest, WhatIsPublishedForLongerLivesLongerThoughItsBeginningDidNot) {
  for (const bool is_same_store : {true, false}) {
    SharedNode one = kit_.Node(), other = kit_.Node();
    const uint64_t seed = is_same_store ? 1 : 2;
    PublishFor(&one, Prompt(seed), {64}, absl::Minutes(10));
    kit_.clock.Advance(absl::Minutes(1));
    EXPECT_EQ(Fetch(&other, Prompt(seed)), 64);
    Publish(is_same_store ? &one : &other, Prompt(seed, 129), {128});
    kit_.clock.Advance(absl::Minutes(11));
    SharedNode third = kit_.Node();
    EXPECT_EQ(Fetch(&third, Prompt(seed, 129)), 128) << is_same_store;
    EXPECT_EQ(third.Of(Counter::kSharedRejectedValues), 0);
    // Who knows the end that they had does not give it back to them.
    PublishFor(&one, Prompt(seed), {64}, absl::Minutes(10));
    kit_.clock.Advance(absl::Minutes(11));
    SharedNode fourth = kit_.Node();
    EXPECT_EQ(Fetch(&fourth, Prompt(seed, 129)), 128) << is_same_store;
  }
}

TEST_F(SharedEndsTest, WhereEveryPublishHasAnEndItIsWrittenAnewNowAndThenOnly) {
  SharedNode one = kit_.Node();
  PublishFor(&one, Prompt(1), {64}, absl::Minutes(10));
  EXPECT_EQ(one.Of(Counter::kSharedWrittenObjects), 6);
  kit_.clock.Advance(absl::Minutes(1));
  PublishFor(&one, Prompt(1, 129), {128}, absl::Minutes(10));
  EXPECT_EQ(one.Of(Counter::kSharedWrittenObjects), 6 + 6);
  kit_.clock.Advance(absl::Minutes(5));
  PublishFor(&one, Prompt(1, 129), {128}, absl::Minutes(10));
  EXPECT_EQ(one.Of(Counter::kSharedWrittenObjects), 6 + 6 + 4) << "four had four minutes left";
  kit_.clock.Advance(absl::Minutes(5));
  SharedNode other = kit_.Node();
  EXPECT_EQ(Fetch(&other, Prompt(1, 129)), 0) << "and the others five";
}

TEST_F(SharedEndsTest, ADropOfAllIsOneEverywhere) {
  SharedNode one = kit_.Node(), other = kit_.Node(), third = kit_.Node();
  Publish(&one, Prompt(1), {64});
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
  ASSERT_TRUE(one.store->DropAll("default", false).ok());
  EXPECT_EQ(Fetch(&one, Prompt(1)), 0);
  EXPECT_EQ(Fetch(&third, Prompt(1)), 0);
  kit_.clock.Advance(kit_.shared_options.generation_age * 2);
  Fetch(&other, Prompt(2));  // reads the generation again
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0);
  // What is published after it is there, and nothing brings back what was before.
  Publish(&third, Prompt(1), {64});
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
  const SharedSpace space = kit_.Space("default");
  for (const char* text : {"0", "1700000000000000", "no number", ""}) {
    kit_.memory.entries[space.GenerationName()].value = text;
    if (*text == 0) kit_.memory.entries.erase(space.GenerationName());
    kit_.clock.Advance(kit_.shared_options.generation_age * 2);
    Publish(&other, Prompt(3), {64});
    EXPECT_EQ(kit_.Space("default").generation(), space.generation()) << text;
  }
}

TEST_F(SharedEndsTest, ADropOfAllIsHeardOfWhereEverythingIsServedFromHere) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
  ASSERT_TRUE(one.store->DropAll("default", false).ok());
  kit_.clock.Advance(kit_.shared_options.generation_age * 2);
  Fetch(&other, Prompt(1));
  other.writes->RunAll();
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0);
}

// Its own copies are from before, and it would write them under the new generation.
TEST_F(SharedEndsTest, ADropOfAllIsHeardOfByAStoreThatDidNotKnowTheTenant) {
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

TEST_F(SharedEndsTest, ADropOfAllIsHeardOfByWhoLooksInTheMiddleOfIt) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
  kit_.clock.Advance(kit_.shared_options.generation_age * 2);
  one.engine->OnWritten([&] { Fetch(&other, Prompt(2)); });
  ASSERT_TRUE(one.store->DropAll("default", false).ok());
  one.engine->OnWritten(nullptr);
  EXPECT_TRUE(other.store->List("default").empty());
}

TEST_F(SharedEndsTest, DropsOfAllByTwoStoresAtATimeBothHold) {
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
  // All agree on where things are.
  Publish(&one, Prompt(3), {64});
  EXPECT_EQ(Fetch(&other, Prompt(3)), 64);
  EXPECT_EQ(Fetch(&fresh, Prompt(3)), 64);
}

TEST_F(SharedEndsTest, ADropOfAllWhoseMarkIsReplacedByAnOlderOneIsMarkedAgain) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  ASSERT_TRUE(one.store->DropAll("default", false).ok());
  Publish(&one, Prompt(1), {64});
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
  const std::string mark = kit_.Space("default").DropName();
  const std::string older = kit_.memory.entries[mark].value;
  const int gets = one.engine->gets();
  one.engine->OnGet([&](int number) {
    if (number == gets + 1) kit_.memory.entries[mark].value = older;
  });
  ASSERT_TRUE(one.store->DropAll("default", false).ok());
  EXPECT_NE(kit_.memory.entries[mark].value, older);
  kit_.clock.Advance(kit_.shared_options.generation_age * 2);
  Fetch(&other, Prompt(2));
  EXPECT_TRUE(other.store->List("default").empty());
}

// With the shard that held the number the engine forgets which values were dropped.
TEST_F(SharedEndsTest, WhatWasDroppedIsNotFoundOnceTheEngineLostTheNumber) {
  SharedNode one = kit_.Node();
  Publish(&one, Prompt(1), {64});
  ASSERT_TRUE(one.store->DropAll("default", false).ok());
  Publish(&one, Prompt(2), {64});
  const SharedSpace space = kit_.Space("default");
  for (const std::string& name : {space.GenerationName(), space.DropName()}) {
    kit_.memory.entries.erase(name);
    SharedNode fresh = kit_.Node();
    Publish(&fresh, Prompt(3), {64});
    EXPECT_EQ(Fetch(&fresh, Prompt(1)), 0);
    EXPECT_GT(kit_.Space("default").generation(), space.generation());
  }
}

TEST_F(SharedEndsTest, ANumberThatTheEngineLostIsGivenBackByWhoReadItAMomentAgoAlone) {
  SharedNode one = kit_.Node();
  Publish(&one, Prompt(1), {64});
  const SharedSpace space = kit_.Space("default");
  kit_.memory.entries.erase(space.GenerationName());
  kit_.clock.Advance(absl::Seconds(30));
  Fetch(&one, Prompt(2));
  EXPECT_EQ(kit_.Space("default").generation(), space.generation());
  {
    SharedNode fresh = kit_.Node();
    EXPECT_EQ(Fetch(&fresh, Prompt(1)), 64);
  }
  // It may have missed a drop since.
  kit_.memory.entries.erase(space.GenerationName());
  kit_.clock.Advance(absl::Seconds(90));
  Fetch(&one, Prompt(2));
  EXPECT_EQ(kit_.memory.entries.count(space.GenerationName()), 0);
  Publish(&one, Prompt(2), {64});
  SharedNode fresh = kit_.Node();
  EXPECT_EQ(Fetch(&fresh, Prompt(1)), 0);
  EXPECT_EQ(Fetch(&fresh, Prompt(2)), 64);
}

TEST_F(SharedEndsTest, AGenerationThatIsNotToldIsBelievedForAMinute) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  Publish(&one, Prompt(2), {64});
  Fetch(&other, Prompt(3));
  const SharedSpace space = kit_.Space("default");
  other.engine->SetSilent({space.GenerationName(), space.DropName()});
  kit_.clock.Advance(absl::Seconds(50));
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
  kit_.clock.Advance(absl::Seconds(20));
  EXPECT_EQ(Fetch(&other, Prompt(2)), 0);
  // One of the two is enough: a drop sets both.
  for (const std::string& name : {space.GenerationName(), space.DropName()}) {
    other.engine->SetSilent({name});
    kit_.clock.Advance(absl::Seconds(90));
    EXPECT_EQ(Fetch(&other, Prompt(2)), 64);
    ASSERT_TRUE(other.store->DropAll("default", false).status().code() ==
                absl::StatusCode::kUnavailable);
  }
}

// A failover may lose the last writes, and whoever was cut off hears of the drop by the mark alone.
TEST_F(SharedEndsTest, ADropOfAllWhoseMarkTheEngineLostIsMarkedAgain) {
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
  Fetch(&other, Prompt(1));
  other.writes->RunAll();
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0);
  // Who heard of it tells it too.
  kit_.memory.entries.clear();
  kit_.clock.Advance(kit_.shared_options.generation_age * 2);
  Fetch(&other, Prompt(2));
  third.engine->SetUnreachable(false);
  Fetch(&third, Prompt(1));
  third.writes->RunAll();
  EXPECT_EQ(Fetch(&third, Prompt(1)), 0);
}

// Who can write to the engine makes misses, and nothing else.
TEST_F(SharedEndsTest, ANumberAloneDropsNothingHere) {
  SharedNode one = kit_.Node();
  Publish(&one, Prompt(1), {64});
  const SharedSpace space = kit_.Space("default");
  kit_.memory.entries[space.GenerationName()].value = absl::StrCat(space.generation() + 77);
  kit_.memory.entries[space.DropName()].value = "no marker of ours";
  kit_.clock.Advance(kit_.shared_options.generation_age * 2);
  Fetch(&one, Prompt(2));
  EXPECT_EQ(Fetch(&one, Prompt(1)), 64);
  SharedNode other = kit_.Node();
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0) << "of another generation";
}

TEST_F(SharedEndsTest, ANumberThatSomebodyRaisedHidesNoDropOfAll) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
  const SharedSpace space = kit_.Space("default");
  std::string& number = kit_.memory.entries[space.GenerationName()].value;
  number = absl::StrCat(space.generation() + 1'000'000'000);
  kit_.clock.Advance(kit_.shared_options.generation_age * 2);
  Fetch(&other, Prompt(2));
  number = absl::StrCat(space.generation());
  ASSERT_TRUE(one.store->DropAll("default", false).ok());
  kit_.clock.Advance(kit_.shared_options.generation_age * 2);
  Fetch(&other, Prompt(2));
  EXPECT_TRUE(other.store->List("default").empty());
}

TEST_F(SharedEndsTest, ADropThatTheEngineDidNotHearOfIsAnError) {
  SharedNode one = kit_.Node();
  Publish(&one, Prompt(1), {64});
  const Digest id = one.store->List("default").at(0).id;
  one.engine->SetUnreachable(true);
  EXPECT_EQ(one.store->Drop(id, "default", false).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(one.store->DropAll("default", false).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(one.store->List("default").empty());
}

TEST_F(SharedEndsTest, ADroppedRestorePointDoesNotComeBack) {
  SharedNode one = kit_.Node();
  Publish(&one, Prompt(1), {64});
  const Digest id = one.store->List("default").at(0).id;
  ASSERT_TRUE(one.store->Drop(id, "default", false).ok());
  EXPECT_EQ(Fetch(&one, Prompt(1)), 0);
}

TEST_F(SharedEndsTest, AQuarantinedObjectDoesNotComeBack) {
  SharedNode one = kit_.Node();
  Publish(&one, Prompt(1), {64});
  const std::vector<ObjectId> objects = {{0, 16, LayerGroup::kGlobal}};
  ASSERT_TRUE(one.store->Quarantine(KitQuery(model_, Prompt(1)), objects).ok());
  EXPECT_EQ(Fetch(&one, Prompt(1)), 0);
}

}  // namespace
}  // namespace hearth
