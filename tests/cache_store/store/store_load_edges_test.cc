// A store that serves while its index loads, where what is asked for is not as simple: ends, pins,
// prompts that end inside a chunk, uses that go through a shorter one, a disk that refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache_store/disk/verify.h"
#include "cache_store/store/background/unloaded_index.h"
#include "tests/cache_store/store/store_load_kit.h"

namespace hearth {
namespace {

// Any boundary of what is stored can be restored: no window asks for a tail of its own.
Fingerprint GlobalModel() {
  KitModel global;
  global.layer_types = "ggg";
  return global.Make();
}

// Every loaded object is held until all are: an expired point must not live on by that.
TEST_F(StoreLoad, WhatIsOverIsNotServed) {
  const KitPrompt prompt{KitTokens(3, 100), {}};
  {
    OpenWhole();
    PublishSpec spec = KitSpec(model_, prompt, {64});
    spec.ttl = absl::Seconds(1);
    auto session = store_->Publish(spec).value();
    ASSERT_TRUE(KitPutAll(session.get(), spec, model_, prompt).ok());
    ASSERT_TRUE(session->Commit().ok());
  }
  clock_.Advance(absl::Now() + absl::Minutes(2) - clock_.Now());
  OpenLoading();
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(KitFetch(store_.get(), model_, prompt).value(), 0u) << i;
    EXPECT_EQ(store_->Explain(KitQuery(model_, prompt)).value().usable_tokens, 0u) << i;
  }
  LoadAll();
  EXPECT_EQ(KitFetch(store_.get(), model_, prompt).value(), 0u);
  EXPECT_EQ(store_->Stats().objects, 0u);
}

// Its objects are all there, of a longer one; what it has of its own is not.
TEST_F(StoreLoad, ABoundaryWhoseManifestIsStillToComeIsNotMadeAnew) {
  const Fingerprint model = GlobalModel();
  const KitPrompt prompt{KitTokens(3, 100), {}};
  KitPrompt shorter = prompt;
  shorter.tokens.resize(49);
  {
    OpenWhole();
    ASSERT_TRUE(KitPublish(store_.get(), model, prompt, {48}).ok());
    const Digest id = store_->List("default").at(0).id;
    ASSERT_TRUE(store_->SetPinned(id, "default", true).ok());
    for (uint64_t other = 0; other < 31; ++other) ASSERT_TRUE(Publish(other).ok());
    ASSERT_TRUE(KitPublish(store_.get(), model, prompt, {80}).ok());
    store_.reset();
  }
  DuplicateManifest(5);  // with two of one key none is taken out of turn
  OpenLoading();
  Step();
  ASSERT_EQ(KitFetch(store_.get(), model, prompt).value(), 80u);
  EXPECT_EQ(KitFetch(store_.get(), model, shorter).value(), 32u) << "48 not yet";
  LoadAll();
  executor_->RunAll();
  EXPECT_EQ(KitFetch(store_.get(), model, shorter).value(), 48u);
  EXPECT_EQ(Counted("recovery_dropped_manifests"), 1u) << "the copied one's older";
  size_t pinned = 0;
  for (const RestorePoint& point : store_->List("default")) pinned += point.pinned ? 1 : 0;
  EXPECT_EQ(pinned, 1u);
}

// Of two that name an object one is loaded when the object is quarantined.
TEST_F(StoreLoad, WhatIsQuarantinedMeanwhileIsNotLostByDamageForWhatElseNamesIt) {
  Fill();
  OpenLoading();
  const PrefixQuery query = KitQuery(model_, Prompt(3));
  ASSERT_TRUE(store_->Quarantine(query, {{0, 16, LayerGroup::kGlobal}}).ok());
  LoadAll();
  executor_->RunAll();
  EXPECT_EQ(Counted("recovery_lost_restore_points"), 0u);
  for (uint64_t prompt = 0; prompt < 10; ++prompt) EXPECT_EQ(Fetch(prompt), 0u);
  EXPECT_EQ(Fetch(10), kLast);
  store_.reset();
  const VerifyReport report = VerifyDataDir(folder_.path()).value();
  EXPECT_TRUE(report.ok()) << report.problems[0];
}

// In the portable class no key leads to what ends inside a chunk: its tokens do.
TEST_F(StoreLoad, PortableEndsInsideAChunkAreFound) {
  KitModel portable;
  portable.exact = false;
  const Fingerprint model = portable.Make();
  const auto chat = [](uint64_t seed, uint32_t tokens) {
    KitPrompt prompt{KitTokens(3, 64), {}};
    for (const uint32_t token : KitTokens(seed, 30)) prompt.tokens.push_back(token + 1);
    prompt.tokens.resize(tokens);
    return prompt;
  };
  {
    OpenWhole();
    for (uint32_t i = 0; i < 20; ++i) {
      ASSERT_TRUE(KitPublish(store_.get(), model, chat(i, 80), {74 + i % 3}).ok());
    }
  }
  OpenLoading();
  EXPECT_EQ(KitFetch(store_.get(), model, chat(0, 90)).value(), 74u) << "the oldest";
  EXPECT_EQ(KitFetch(store_.get(), model, chat(4, 90)).value(), 75u);
  LoadAll();
  EXPECT_EQ(KitFetch(store_.get(), model, chat(0, 90)).value(), 74u);
}

// A use of any prompt is also a use of the point that all go through.
TEST_F(StoreLoad, AUseOfALongerOneIsOneOfWhatItGoesThrough) {
  const KitPrompt chain{KitTokens(5, 100), {}};
  KitPrompt shorter = chain;
  shorter.tokens.resize(49);
  {
    OpenWhole();
    ASSERT_TRUE(KitPublish(store_.get(), model_, chain, {48}).ok());
    ASSERT_TRUE(KitPublish(store_.get(), model_, chain, {96}).ok());
    for (uint64_t prompt = 0; prompt < kPrompts; ++prompt) ASSERT_TRUE(Publish(prompt).ok());
  }
  OpenLoading(nullptr, 100'000);
  ASSERT_EQ(KitFetch(store_.get(), model_, chain).value(), 96u);
  LoadAll();
  EXPECT_LT(store_->Stats().restore_points, kPrompts);
  EXPECT_EQ(KitFetch(store_.get(), model_, chain).value(), 96u);
  EXPECT_EQ(KitFetch(store_.get(), model_, shorter).value(), 48u);
}

// Points that have expired by now are adopted too, and must not hide points that others hold.
TEST_F(StoreLoad, WhatIsOverHidesNoBoundaryThatOthersHold) {
  const Fingerprint model = GlobalModel();
  const KitPrompt asked{KitTokens(5, 250), {}};
  KitPrompt other = asked;
  for (size_t i = 48; i < other.tokens.size(); ++i) ++other.tokens[i];
  {
    OpenWhole();
    ASSERT_TRUE(KitPublish(store_.get(), model, other, {80}).ok());
    std::vector<uint32_t> boundaries;
    for (uint32_t end = 64; end <= 240; end += 16) boundaries.push_back(end);
    PublishSpec spec = KitSpec(model, asked, boundaries);
    spec.ttl = absl::Seconds(1);
    auto session = store_->Publish(spec).value();
    ASSERT_TRUE(KitPutAll(session.get(), spec, model, asked).ok());
    ASSERT_TRUE(session->Commit().ok());
  }
  clock_.Advance(absl::Now() + absl::Minutes(2) - clock_.Now());
  OpenLoading();
  EXPECT_EQ(store_->Explain(KitQuery(model, asked)).value().usable_tokens, 48u);
  OpenLoading();
  EXPECT_EQ(KitFetch(store_.get(), model, asked).value(), 48u);
  LoadAll();
  EXPECT_EQ(KitFetch(store_.get(), model, asked).value(), 48u);
}

// A damaged folder: the last of the longest one's objects is lost, and settling it finds nothing.
TEST_F(StoreLoad, AManifestThatLostAnObjectDoesNotHideAnotherOfItsObjects) {
  const Fingerprint model = GlobalModel();
  const KitPrompt longest{KitTokens(5, 100), {}};
  KitPrompt asked = longest;  // ends elsewhere than either
  asked.tokens.resize(49);
  {
    OpenWhole();
    ASSERT_TRUE(KitPublish(store_.get(), model, longest, {80}).ok());
    ASSERT_TRUE(KitPublish(store_.get(), model, longest, {96}).ok());
    for (uint64_t prompt = 0; prompt < kPrompts; ++prompt) ASSERT_TRUE(Publish(prompt).ok());
    store_.reset();
  }
  {
    RawDatabase raw(folder_);
    const ManifestRecord last = ParseManifestRecord(raw.All("manifests").at(1).second).value();
    ASSERT_EQ(last.manifest.token_count, 96u);
    raw.Delete("objects", NumberKey(last.objects.back()));
  }
  OpenLoading();
  EXPECT_EQ(KitFetch(store_.get(), model, asked).value(), 48u);
  LoadAll();
  EXPECT_EQ(KitFetch(store_.get(), model, asked).value(), 48u);
  EXPECT_EQ(KitFetch(store_.get(), model, longest).value(), 80u);
  EXPECT_EQ(Counted("recovery_dropped_manifests"), 1u);
}

DiskContents Manifests(uint64_t count) {
  DiskContents contents;
  for (uint64_t number = 1; number <= count; ++number) {
    ManifestNames names;
    names.number = number;
    names.created_unix_s = number;
    contents.manifests.push_back(names);
  }
  return contents;
}

TEST(UnloadedIndexTest, WhatCannotBeReadComesLastAndIsGivenUpInTheEnd) {
  UnloadedIndex index(Manifests(5));
  EXPECT_EQ(index.Next(2), std::vector<uint64_t>({5, 4}));
  index.Postpone(5);
  EXPECT_EQ(index.Next(2), std::vector<uint64_t>({4, 3}));
  for (const uint64_t number : {4, 3, 2, 1}) EXPECT_TRUE(index.MarkDone(number));
  EXPECT_EQ(index.left(), 1u);
  for (int tries = 1; tries < UnloadedIndex::kMaxTries; ++tries) {
    ASSERT_EQ(index.Next(2), std::vector<uint64_t>({5})) << tries;
    index.Postpone(5);
  }
  EXPECT_TRUE(index.Next(2).empty());
  EXPECT_EQ(index.left(), 0u);
  EXPECT_EQ(index.given_up(), 1u);
  EXPECT_FALSE(index.MarkDone(5));
}

}  // namespace
}  // namespace hearth
