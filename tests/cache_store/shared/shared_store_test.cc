// Stores that share an engine: all stores serve an entry that was published to one of them.
// Failures of the engine cause only misses.
#include "cache_store/shared/tier/shared_store.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "absl/synchronization/notification.h"
#include "tests/cache_store/shared/shared_kit.h"

namespace hearth {
namespace {

TEST_F(SharedStoreTest, OtherStoreRestoresPublish) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  EXPECT_EQ(Heads(), 6);
  Tier tier = Tier::kNone;
  EXPECT_EQ(Fetch(&other, Prompt(1), &tier), 64);
  EXPECT_EQ(tier, Tier::kShared);
  EXPECT_EQ(other.Of(Counter::kHits), 1);
  EXPECT_EQ(other.Of(Counter::kFetches), 1);
  EXPECT_EQ(other.Of(Counter::kSharedHits), 1);
  // Two round trips for the prompt, and one for the generation. Then the prompt is in RAM.
  EXPECT_EQ(other.engine->round_trips(), 3);
  EXPECT_EQ(Fetch(&other, Prompt(1), &tier), 64);
  EXPECT_EQ(tier, Tier::kHost);
  EXPECT_EQ(other.engine->round_trips(), 3);
  for (const TierUsage& usage : other.store->Stats().tiers) {
    if (usage.tier == Tier::kShared) {
      EXPECT_EQ(usage.hit_tokens, 64);
      EXPECT_GT(usage.read_bytes, 8 * 256);
    }
  }
}

TEST_F(SharedStoreTest, MultipartObjectIsRestored) {
  KitModel large;
  large.head_dim = 4096;  // makes slices of 512 KiB
  SharedNode one = kit_.Node(), other = kit_.Node();
  ASSERT_TRUE(KitPublish(one.store.get(), large.Make(), Prompt(1, 17), {16}).ok());
  one.writes->RunAll();
  EXPECT_GT(kit_.memory.Count(":l:1"), 0);
  other.store->Observe(large.Make(), "default");
  EXPECT_EQ(KitFetch(other.store.get(), large.Make(), Prompt(1, 17)).value(), 16);
}

TEST_F(SharedStoreTest, LookupLoadsOnlyMissingObjects) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1, 129), {64, 128});
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
  const uint64_t read = other.Of(Counter::kSharedReadBytes);
  Tier tier = Tier::kNone;
  EXPECT_EQ(Fetch(&other, Prompt(1, 129), &tier), 128);
  EXPECT_EQ(tier, Tier::kShared);
  // Each prompt needs 4 global and 2 local objects; no object is loaded twice.
  EXPECT_EQ(other.Of(Counter::kSharedReadBytes), 2 * read);
}

TEST_F(SharedStoreTest, LongestRestorableBoundaryIsFound) {
  std::mt19937_64 random(7);
  // A fixed secret gives fixed names of values, and so determines which values are lost.
  ASSERT_TRUE(CopySecret(std::string(kSecretBytes, 's'), kit_.secret_file).ok());
  int hits = 0, lower = 0;
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SharedNode one = kit_.Node(), other = kit_.Node();
    KitPrompt prompt = Prompt(seed, 150);
    if (random() % 2 == 0) prompt.cuts = {70};
    std::vector<uint32_t> boundaries, candidates;
    for (uint32_t at = 1; at < 150; ++at) {
      const bool is_cut = !prompt.cuts.empty() && at == 70;
      if (at % 16 != 0 && !is_cut) continue;
      candidates.push_back(at);
      if (is_cut || random() % 2 == 0) boundaries.push_back(at);
    }
    if (boundaries.empty()) continue;
    Publish(&one, prompt, boundaries);
    for (const std::string& name : kit_.memory.Names()) {
      const bool is_part = absl::StrContains(name, ":g:") || absl::StrContains(name, ":l:");
      if (is_part && random() % 32 == 0) kit_.memory.entries.erase(name);
    }
    uint32_t expected = 0;
    for (const uint32_t at : candidates) {
      if (IsRestorable(prompt, at)) expected = at;
    }
    EXPECT_EQ(Fetch(&other, prompt), expected) << seed;
    hits += expected > 0;
    lower += expected > 0 && expected < boundaries.back();
  }
  EXPECT_GT(hits, 20);
  EXPECT_GT(lower, 5);
}

TEST_F(SharedStoreTest, NextHitIsShorterAfterVanishedPart) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1, 129), {64, 128});
  const KitPrompt prompt = Prompt(1, 129);
  // Between Exists and Get, the local tail of boundary 128 vanishes. Boundary 64 does not need it.
  const std::string name = Name(prompt, {112, 16, LayerGroup::kLocal});
  ASSERT_EQ(kit_.memory.entries.count(name), 1);
  other.engine->OnGet([&](int number) {
    // Get call 0 reads the generation; the next one reads values.
    if (number > 0) kit_.memory.entries.erase(name);
  });
  EXPECT_EQ(Fetch(&other, prompt), 0);
  EXPECT_EQ(other.Of(Counter::kSharedVanishedParts), 1);
  Tier tier = Tier::kNone;
  EXPECT_EQ(Fetch(&other, prompt, &tier), 64);
  EXPECT_EQ(tier, Tier::kShared);
}

TEST_F(SharedStoreTest, VanishedValuesCauseMiss) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1, 129), {64, 128});
  other.engine->OnGet([&](int number) {
    if (number > 0) kit_.memory.entries.clear();
  });
  EXPECT_EQ(Fetch(&other, Prompt(1, 129)), 0);
  EXPECT_GT(other.Of(Counter::kSharedVanishedParts), 0);
  EXPECT_EQ(other.Of(Counter::kMissNoCommonPrefix) + other.Of(Counter::kMissNoRestorePoint) +
                other.Of(Counter::kMissUnknownFingerprint),
            1);
}

// A client that can write to the engine can only cause misses: a store never serves its bytes.
TEST_F(SharedStoreTest, TamperedValueIsNeverServed) {
  std::mt19937_64 random(11);
  int restored = 0;
  for (int round = 0; round < 60; ++round) {
    SharedKit kit;
    SharedNode one = kit.Node(), other = kit.Node();
    for (const uint64_t seed : {1, 2}) {
      ASSERT_TRUE(KitPublish(one.store.get(), model_, Prompt(seed, 129), {64, 128}).ok());
    }
    one.writes->RunAll();
    const std::vector<std::string> names = kit.memory.Names();
    std::string& victim = kit.memory.entries[names[random() % names.size()]].value;
    std::string& second = kit.memory.entries[names[random() % names.size()]].value;
    if (round % 3 == 0) victim.swap(second);
    if (round % 3 == 1) victim[random() % victim.size()] ^= static_cast<char>(1 << random() % 8);
    if (round % 3 == 2) victim.resize(random() % victim.size());
    for (const uint64_t seed : {1, 2}) {
      other.store->Observe(model_, "default");
      // KitFetch compares every byte with the published bytes.
      const auto found = KitFetch(other.store.get(), model_, Prompt(seed, 129));
      ASSERT_TRUE(found.ok()) << found.status();
      restored += *found > 0;
    }
  }
  EXPECT_GT(restored, 40);
}

TEST_F(SharedStoreTest, RejectedObjectIsRewritten) {
  SharedNode one = kit_.Node(), other = kit_.Node(), third = kit_.Node();
  Publish(&one, Prompt(1), {64});
  for (const std::string& name : kit_.memory.Names()) {
    if (name.find(":g:0") == std::string::npos) continue;
    kit_.memory.entries[name].value.back() ^= 1;
  }
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0);
  EXPECT_EQ(other.Of(Counter::kSharedRejectedValues), 4);
  EXPECT_EQ(kit_.memory.Count(":g:0"), 0);
  Publish(&other, Prompt(1), {64});
  EXPECT_EQ(Fetch(&third, Prompt(1)), 64);
}

// A part may be correctly sealed but not match the head's digests, because the parts come from two
// publishers.
TEST_F(SharedStoreTest, WrongSliceDigestIsRejected) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1, 129), {64, 128});
  const KvLayout layout = model_.Layout().value();
  const KitPrompt prompt = Prompt(1, 129);
  const ObjectId tail{112, 16, LayerGroup::kLocal};
  SharedShape shape{tail,
                    {prompt.tokens.begin() + 112, prompt.tokens.begin() + 128},
                    {},
                    2,
                    layout.SliceBytes(16)};
  std::vector<SliceView> views;
  SharedFacts facts;
  for (const uint32_t layer : {0, 1}) {
    views.push_back(KitSlice(model_, prompt, tail, layer));
    facts.slice_digests.push_back(SliceDigest(views[layer].bytes.data(), shape.slice_bytes));
  }
  facts.slice_digests[1] ^= 1;
  const SharedSpace space = kit_.Space("default");
  const std::string name = Name(prompt, tail);
  ASSERT_EQ(kit_.memory.entries.count(name), 1);
  kit_.memory.entries[name].value = space.Seal(name, shape.TextOf(0, facts, views));
  EXPECT_EQ(Fetch(&other, prompt), 0);
  EXPECT_EQ(other.Of(Counter::kSharedRejectedValues), 1);
  EXPECT_EQ(kit_.memory.entries.count(name), 0);
  EXPECT_EQ(Fetch(&other, prompt), 64);
}

// If the time budget is too short for the whole prompt, a prefix of it is loaded.
TEST_F(SharedStoreTest, ShortBudgetRestoresPrefix) {
  kit_.shared_options.max_in_flight_bytes = 1;  // one value in each round trip
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {16, 32, 48, 64});
  other.engine->SetDelay(absl::Milliseconds(80));
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0) << "nothing is known of how fast it is";
  uint32_t found = 0;
  for (int i = 0; i < 8 && found < 64; ++i) {
    const absl::Time start = kit_.clock.Now();
    const uint32_t longer = Fetch(&other, Prompt(1));
    EXPECT_LE(kit_.clock.Now() - start, kit_.shared_options.fetch_budget + absl::Milliseconds(80));
    EXPECT_GE(longer, found);
    found = longer;
  }
  EXPECT_EQ(found, 64u) << "each lookup goes on from what is here";
}

// Loads that seem too slow are tried from time to time: only a load can show that the engine has
// become fast.
TEST_F(SharedStoreTest, SlowEngineIsRetried) {
  kit_.shared_options.max_in_flight_bytes = 1;  // one value in each round trip
  SharedNode one = kit_.Node(), other = kit_.Node();
  for (const uint64_t seed : {1, 2, 3}) Publish(&one, Prompt(seed), {64});
  other.engine->SetDelay(absl::Milliseconds(80));
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0);
  // The engine is still slow: one lookup measures it, and the next one skips the engine.
  kit_.clock.Advance(SharedLookup::kTryPause);
  absl::Time start = kit_.clock.Now();
  EXPECT_EQ(Fetch(&other, Prompt(2)), 0);
  EXPECT_GE(kit_.clock.Now() - start, kit_.shared_options.fetch_budget);
  start = kit_.clock.Now();
  EXPECT_EQ(Fetch(&other, Prompt(3)), 0);
  EXPECT_LT(kit_.clock.Now() - start, kit_.shared_options.fetch_budget / 2);
  // The engine is fast again.
  other.engine->SetDelay(absl::ZeroDuration());
  kit_.clock.Advance(SharedLookup::kTryPause);
  EXPECT_EQ(Fetch(&other, Prompt(3)), 64);
}

// A restore point that does not fit into RAM must not be loaded again and again.
TEST_F(SharedStoreTest, OversizedPointIsNotLoaded) {
  SharedNode one = kit_.Node();
  Publish(&one, Prompt(1), {64});
  Publish(&one, Prompt(2), {16, 64});
  // RAM has space for 16 tokens (768 bytes), not for 64 tokens (2 KiB)
  kit_.store_options.host_bytes = 1024;
  kit_.store_options.count_points = false;
  SharedNode small = kit_.Node();
  EXPECT_EQ(Fetch(&small, Prompt(1)), 0);
  EXPECT_EQ(small.Of(Counter::kSharedReadBytes), 0);
  EXPECT_EQ(small.Of(Counter::kSharedNotKept), 1);
  EXPECT_EQ(Fetch(&small, Prompt(2)), 16);
}

TEST_F(SharedStoreTest, HangingEngineDelaysOneLookup) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  other.engine->SetDelay(absl::InfiniteDuration());
  const absl::Time start = kit_.clock.Now();
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0);
  EXPECT_EQ(kit_.clock.Now() - start, kit_.shared_options.fetch_budget);
  EXPECT_GT(other.Of(Counter::kSharedUnanswered), 0);
  // The next lookup and a claim do not ask the engine.
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0);
  ClaimRequest ask;
  ask.compute_time = absl::Seconds(30);
  other.store->Observe(model_, "default");
  EXPECT_EQ(other.store->Claim(KitQuery(model_, Prompt(1)), ask)->role, ClaimRole::kCompute);
  EXPECT_EQ(kit_.clock.Now() - start, kit_.shared_options.fetch_budget);
  kit_.clock.Advance(SharedLookup::kPause);
  // A lookup also takes one budget if the generation is known and the engine hangs in a later call.
  other.engine->SetDelay(absl::ZeroDuration());
  EXPECT_EQ(Fetch(&other, Prompt(2)), 0);
  other.engine->OnGet([&](int) { other.engine->SetDelay(absl::InfiniteDuration()); });
  const absl::Time again = kit_.clock.Now();
  EXPECT_EQ(Fetch(&other, Prompt(1)), 0);
  EXPECT_EQ(kit_.clock.Now() - again, kit_.shared_options.fetch_budget);
  other.engine->OnGet(nullptr);
  kit_.clock.Advance(SharedLookup::kPause);
  other.engine->SetDelay(absl::Milliseconds(50));
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
}

TEST_F(SharedStoreTest, HangingEngineDelaysLocalHitsBriefly) {
  SharedNode one = kit_.Node();
  Publish(&one, Prompt(1), {64});
  kit_.clock.Advance(2 * kit_.shared_options.generation_age);
  one.engine->SetDelay(absl::InfiniteDuration());
  const absl::Time start = kit_.clock.Now();
  const int asked = one.engine->round_trips();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Fetch(&one, Prompt(1)), 64);
  const Digest id = one.store->List("default").at(0).id;
  EXPECT_TRUE(one.store->FetchById(id, "default").ok());
  EXPECT_EQ(one.engine->round_trips(), asked + 1);
  EXPECT_EQ(kit_.clock.Now() - start, SharedLookup::kDropCheckWait);
  // A lookup that may find more in the engine gets the full budget.
  EXPECT_EQ(Fetch(&one, Prompt(2)), 0);
  EXPECT_EQ(kit_.clock.Now() - start,
            SharedLookup::kDropCheckWait + kit_.shared_options.fetch_budget);
}

TEST_F(SharedStoreTest, LostEngineCostsOnlyMisses) {
  SharedNode one = kit_.Node();
  one.engine->SetUnreachable(true);
  Publish(&one, Prompt(1), {64});
  EXPECT_EQ(one.Of(Counter::kSharedWritesFailed), 1);
  EXPECT_EQ(Fetch(&one, Prompt(1)), 64);
  EXPECT_EQ(Fetch(&one, Prompt(2)), 0);
  one.engine->SetUnreachable(false);
  Publish(&one, Prompt(1), {64});
  EXPECT_EQ(Heads(), 6);
}

TEST_F(SharedStoreTest, ConcurrentLookupsLoadOnce) {
  kit_.shared_options.fetch_budget = absl::Minutes(1);
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1), {64});
  Fetch(&other, Prompt(2));  // makes the store read the generation
  // The second lookup starts while the first one waits for its Get.
  absl::Notification begun, may_end;
  other.engine->OnGet([&](int) {
    begun.Notify();
    may_end.WaitForNotification();
  });
  std::thread first([&] { EXPECT_EQ(Fetch(&other, Prompt(1)), 64); });
  begun.WaitForNotification();
  std::thread second([&] { EXPECT_EQ(Fetch(&other, Prompt(1)), 64); });
  while (other.Of(Counter::kSharedLookups) < 3) std::this_thread::yield();
  may_end.Notify();
  first.join();
  second.join();
  EXPECT_EQ(other.engine->gets(), 2);
  EXPECT_EQ(other.Of(Counter::kSharedHits), 1);
}

TEST_F(SharedStoreTest, TenantsShareNoValues) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  KitPrompt prompt = Prompt(1);
  prompt.tenant = "a";
  Publish(&one, prompt, {64});
  KitPrompt theirs = prompt;
  theirs.tenant = "b";
  EXPECT_EQ(Fetch(&other, theirs), 0);
  EXPECT_EQ(Fetch(&other, prompt), 64);
}

TEST_F(SharedStoreTest, PublicNamespaceIsSearched) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  KitPrompt prompt = Prompt(1, 129);
  prompt.tenant = "public";
  Publish(&one, prompt, {128});
  KitPrompt own = Prompt(1, 65);
  own.tenant = "a";
  Publish(&one, own, {64});
  other.store->Observe(model_, "a");
  PrefixQuery query = KitQuery(model_, prompt);
  query.tenant = "a";
  query.public_tenant = "public";
  const auto session = other.store->Fetch(query, 0, 0).value();
  EXPECT_EQ(session->plan().usable_tokens, 128);
  EXPECT_TRUE(session->plan().from_public);
}

TEST_F(SharedStoreTest, MatchedTokensIncludeOtherStoresEntries) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1, 129), {128});
  KitPrompt branch = Prompt(1, 80);
  for (uint32_t token = 500; branch.tokens.size() < 129; ++token) branch.tokens.push_back(token);
  other.store->Observe(model_, "default");
  const auto session = other.store->Fetch(KitQuery(model_, branch), 0, 0).value();
  EXPECT_EQ(session->plan().usable_tokens, 0);
  EXPECT_EQ(session->plan().matched_tokens, 80);
}

TEST_F(SharedStoreTest, ExplainIncludesSharedTier) {
  SharedNode one = kit_.Node(), other = kit_.Node();
  Publish(&one, Prompt(1, 129), {64, 128});
  EXPECT_EQ(Fetch(&other, Prompt(1)), 64);
  other.store->Observe(model_, "default");
  const ExplainReport report = other.store->Explain(KitQuery(model_, Prompt(1, 129))).value();
  EXPECT_EQ(report.usable_tokens, 128);
  EXPECT_EQ(report.matched_tokens, 128);
  for (const BoundaryReport& boundary : report.boundaries) {
    EXPECT_EQ(boundary.usable, boundary.boundary == 64 || boundary.boundary == 128);
    if (!boundary.usable) continue;
    EXPECT_EQ(boundary.slowest_tier, boundary.boundary == 64 ? Tier::kHost : Tier::kShared);
  }
  // For a prompt without boundaries, the engine is not asked.
  const ExplainReport none = other.store->Explain(KitQuery(model_, Prompt(1, 9))).value();
  EXPECT_EQ(none.usable_tokens, 0);
  EXPECT_NE(report.summary.find("from the shared tier"), std::string::npos) << report.summary;
}

}  // namespace
}  // namespace hearth
