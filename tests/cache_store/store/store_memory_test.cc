// A store without a disk: published prompts are found with exact bytes, and its memory is limited.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/restore_rule.h"
#include "tests/support/store_kit.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

std::unique_ptr<TieredStore> MemoryStore(uint64_t host_bytes = 1 << 20) {
  StoreOptions options;
  options.host_bytes = host_bytes;
  options.count_points = false;
  return TieredStore::Open(options).value();
}

TEST(MemoryStore, EmptyStoreExplainsMiss) {
  const auto store = MemoryStore();
  const Fingerprint model = KitModel().Make();
  const KitPrompt prompt{KitTokens(1, 40), {}};
  const auto session = store->Fetch(KitQuery(model, prompt), 0, 0).value();
  EXPECT_EQ(session->plan().usable_tokens, 0u);
  EXPECT_THAT(session->plan().miss_reason, HasSubstr("fingerprint"));
  EXPECT_EQ(store->Stats().counters.at("misses_unknown_fingerprint"), 1u);
}

TEST(MemoryStore, RepeatedLookupCountsSavedTimeOnce) {
  const auto store = MemoryStore();
  const Fingerprint model = KitModel().Make();
  const KitPrompt prompt{KitTokens(1, 65), {}};
  ASSERT_TRUE(KitPublish(store.get(), model, prompt, {64}).ok());
  PrefixQuery query = KitQuery(model, prompt);
  query.token_ns = 3'000'000;
  const auto expect = [&](uint64_t held, uint64_t saved_ms) {
    const StoreStats stats = store->Stats();
    EXPECT_EQ(stats.Of(Counter::kHeldTokens), held);
    EXPECT_EQ(stats.Of(Counter::kSavedUs), 1000 * saved_ms);
  };
  const auto hit = store->Fetch(query, 32, 0).value();
  ASSERT_EQ(hit->plan().usable_tokens, 64u);
  expect(0, 0);
  ASSERT_TRUE(KitReadAll(hit.get(), model, prompt).ok());
  expect(0, 192);
  EXPECT_EQ(store->Fetch(query, 64, 0).value()->plan().usable_tokens, 0u);
  expect(64, 384);
  query.again = true;
  store->Fetch(query, 64, 0).value();
  expect(64, 384);
  query.again = false;
  query.token_ns = UINT64_MAX;  // the store limits this to one second per token
  store->Fetch(query, UINT32_MAX, 0).value();
  expect(129, 384 + 65'000);
}

TEST(MemoryStore, ListsOneTenantOrAll) {
  const auto store = MemoryStore();
  const Fingerprint model = KitModel().Make();
  const KitPrompt prompt{KitTokens(1, 64), {}};
  for (const char* tenant : {"a", "b"}) {
    PublishSpec spec = KitSpec(model, prompt, {64});
    spec.tenant = tenant;
    const auto session = store->Publish(spec).value();
    ASSERT_TRUE(KitPutAll(session.get(), spec, model, prompt).ok());
    ASSERT_TRUE(session->Commit().ok());
  }
  EXPECT_EQ(store->List("a").size(), 1u);
  EXPECT_EQ(store->List("c").size(), 0u);
  std::vector<std::string> tenants;
  for (const RestorePoint& point : store->List(kAllTenants)) tenants.push_back(point.tenant);
  EXPECT_THAT(tenants, UnorderedElementsAre("a", "b"));
}

TEST(MemoryStore, FetchReturnsPublishedBytes) {
  for (const bool exact : {true, false}) {
    for (const uint32_t window : {8u, 24u, 100u, 600u}) {
      KitModel geometry;
      geometry.window = window;
      geometry.exact = exact;
      const Fingerprint model = geometry.Make();
      const auto store = MemoryStore(8 << 20);
      const KitPrompt prompt{KitTokens(7, 301), {100, 133}};
      const std::vector<uint32_t> boundaries = {100, 133, 208, 288};
      const auto result = KitPublish(store.get(), model, prompt, boundaries);
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->boundaries, boundaries);
      EXPECT_EQ(result->durable, Durability::kMemory);
      for (const uint32_t boundary : boundaries) {
        KitPrompt shorter = prompt;
        shorter.tokens.resize(boundary + 1);
        shorter.tokens.back() = 99999;  // the last token differs
        shorter.cuts.erase(std::remove_if(shorter.cuts.begin(), shorter.cuts.end(),
                                          [&](uint32_t cut) { return cut > boundary; }),
                           shorter.cuts.end());
        EXPECT_EQ(KitFetch(store.get(), model, shorter).value(), boundary)
            << "window " << window << (exact ? " exact" : " portable");
      }
    }
  }
}

TEST(MemoryStore, RepeatedPublishSendsNoSlices) {
  const auto store = MemoryStore();
  const Fingerprint model = KitModel().Make();
  const KitPrompt prompt{KitTokens(1, 64), {}};
  ASSERT_TRUE(KitPublish(store.get(), model, prompt, {32, 64}).ok());
  const auto session = store->Publish(KitSpec(model, prompt, {32, 64})).value();
  EXPECT_THAT(session->needed(), IsEmpty());
  const auto result = session->Commit().value();
  EXPECT_THAT(result.boundaries, ElementsAre(32, 64));
  EXPECT_EQ(result.bytes_received, 0u);
  EXPECT_EQ(store->List("default").size(), 2u);
}

TEST(MemoryStore, UncommittedPublishIsInvisible) {
  const auto store = MemoryStore();
  const Fingerprint model = KitModel().Make();
  const KitPrompt prompt{KitTokens(1, 65), {}};
  {
    const PublishSpec spec = KitSpec(model, prompt, {64});
    const auto session = store->Publish(spec).value();
    ASSERT_TRUE(KitPutAll(session.get(), spec, model, prompt).ok());
    EXPECT_EQ(KitFetch(store.get(), model, prompt).value(), 0u);
  }
  EXPECT_EQ(KitFetch(store.get(), model, prompt).value(), 0u);
  EXPECT_EQ(store->Stats().objects, 0u);
  EXPECT_EQ(store->Stats().tiers[0].bytes, 0u);
}

TEST(MemoryStore, PublishOfDifferingBytesIsRefused) {
  const auto store = MemoryStore();
  const Fingerprint model = KitModel().Make();
  const KitPrompt prompt{KitTokens(1, 33), {}};
  ASSERT_TRUE(KitPublish(store.get(), model, prompt, {32}).ok());
  PublishSpec spec = KitSpec(model, prompt, {32});
  spec.objects[0].slice_digests[0] ^= 1;
  EXPECT_EQ(store->Publish(spec).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(store->Stats().counters.at("nondeterminism"), 1u);
  EXPECT_EQ(KitFetch(store.get(), model, prompt).value(), 32u);
}

// Returns the kit's model in exactness class `invariant`.
Fingerprint Invariant() {
  const Fingerprint exact = KitModel().Make();
  std::vector<FingerprintField> fields(exact.fields().begin(), exact.fields().end());
  for (FingerprintField& field : fields) {
    if (field.name == "exactness") field.value = std::string("invariant");
  }
  return Fingerprint::Create(std::move(fields)).value();
}

TEST(MemoryStore, InvariantModelIgnoresPrefillCuts) {
  const auto store = MemoryStore();
  const Fingerprint model = Invariant();
  const KitPrompt published{KitTokens(1, 60), {7, 30, 55}};
  ASSERT_TRUE(KitPublish(store.get(), model, published, {7, 30, 55}).ok());
  for (const uint32_t boundary : {7u, 30u, 55u}) {
    KitPrompt other{KitTokens(1, boundary + 1), {3}};
    EXPECT_EQ(KitFetch(store.get(), model, other).value(), boundary);
  }
  const KitPrompt again{KitTokens(1, 60), {21}};
  PublishSpec spec = KitSpec(model, again, {55});
  EXPECT_THAT(store->Publish(spec).value()->needed(), IsEmpty());
  spec.objects[0].slice_digests[0] ^= 1;
  EXPECT_EQ(store->Publish(spec).status().code(), absl::StatusCode::kAborted);
  EXPECT_EQ(store->Stats().counters.at("nondeterminism"), 1u);
}

// Explain names the exactness class if the caller's model and the stored model have different
// exactness classes.
TEST(MemoryStore, ExplainNamesDifferingExactnessClass) {
  const auto store = MemoryStore();
  const Fingerprint stored = KitModel().Make(), asked = Invariant();
  const KitPrompt prompt{KitTokens(1, 33), {}};
  ASSERT_TRUE(KitPublish(store.get(), stored, prompt, {32}).ok());
  ASSERT_TRUE(KitPublish(store.get(), asked, {KitTokens(2, 33), {}}, {32}).ok());
  EXPECT_THAT(store->Explain(KitQuery(asked, prompt)).value().summary,
              HasSubstr("exactness is invariant here and exact there"));
}

TEST(MemoryStore, PortablePublishKeepsFirstBytes) {
  const auto store = MemoryStore();
  KitModel kit;
  kit.exact = false;
  const Fingerprint model = kit.Make();
  const KitPrompt prompt{KitTokens(1, 49), {}};
  ASSERT_TRUE(KitPublish(store.get(), model, prompt, {32}).ok());
  PublishSpec spec = KitSpec(model, prompt, {32, 48});
  size_t others = 0;
  for (PublishObject& object : spec.objects) {
    if (object.id.begin + object.id.tokens > 32) continue;
    object.slice_digests[0] ^= 1;
    ++others;
  }
  ASSERT_GT(others, 0u);
  auto session = store->Publish(spec);
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_TRUE(KitPutAll(session->get(), spec, model, prompt).ok());
  ASSERT_TRUE((*session)->Commit().ok());
  EXPECT_EQ(store->Stats().counters.at("nondeterminism"), 0u);
  EXPECT_EQ(KitFetch(store.get(), model, prompt).value(), 48u);
}

TEST(MemoryStore, BoundaryWithMissingObjectsIsLeftOut) {
  const auto store = MemoryStore();
  const Fingerprint model = KitModel().Make();
  const KitPrompt prompt{KitTokens(1, 97), {}};
  PublishSpec spec = KitSpec(model, prompt, {32, 96});
  for (PublishObject& object : spec.objects) {
    if (object.id.begin == 48) object.absent = true;
  }
  const auto session = store->Publish(spec).value();
  ASSERT_TRUE(KitPutAll(session.get(), spec, model, prompt).ok());
  const auto result = session->Commit().value();
  EXPECT_THAT(result.boundaries, ElementsAre(32));
  ASSERT_EQ(result.notes.size(), 1u);
  EXPECT_THAT(result.notes[0], HasSubstr("boundary 96"));
  EXPECT_EQ(KitFetch(store.get(), model, prompt).value(), 32u);
}

TEST(MemoryStore, TenantsAreIsolated) {
  const auto store = MemoryStore();
  const Fingerprint model = KitModel().Make();
  const KitPrompt mine{KitTokens(1, 33), {}, "mine"};
  const KitPrompt theirs{KitTokens(1, 33), {}, "theirs"};
  ASSERT_TRUE(KitPublish(store.get(), model, mine, {32}).ok());
  EXPECT_EQ(KitFetch(store.get(), model, theirs).value(), 0u);
  EXPECT_THAT(store->List("theirs"), IsEmpty());
  const Digest id = store->List("mine").at(0).id;
  EXPECT_TRUE(absl::IsNotFound(store->FetchById(id, "theirs").status()));
  EXPECT_TRUE(absl::IsNotFound(store->SetPinned(id, "theirs", true).status()));
  EXPECT_TRUE(absl::IsNotFound(store->Drop(id, "theirs", true).status()));
  EXPECT_EQ(KitFetch(store.get(), model, mine).value(), 32u);
  EXPECT_EQ(store->Explain(KitQuery(model, theirs)).value().matched_tokens, 0u);
}

TEST(MemoryStore, MatchedTokensReachDivergingChunk) {
  const auto store = MemoryStore();
  const Fingerprint model = KitModel().Make();
  KitPrompt prompt{KitTokens(1, 64), {}};
  ASSERT_TRUE(KitPublish(store.get(), model, prompt, {64}).ok());
  prompt.tokens = KitTokens(1, 60);
  for (uint32_t i = 41; i < 60; ++i) prompt.tokens[i] = 70000 + i;
  const auto session = store->Fetch(KitQuery(model, prompt), 0, 0).value();
  EXPECT_EQ(session->plan().matched_tokens, 41u);
  // With a window of 24, boundary 32 needs the local objects of tokens 9 to 31. They are missing:
  // only boundary 64 was kept, whose local tail begins at 41.
  EXPECT_EQ(session->plan().usable_tokens, 0u);
}

TEST(MemoryStore, PrefillCutsMatterOnlyInExactClass) {
  for (const bool exact : {true, false}) {
    KitModel geometry;
    geometry.exact = exact;
    geometry.window = 64;
    const Fingerprint model = geometry.Make();
    const auto store = MemoryStore();
    ASSERT_TRUE(KitPublish(store.get(), model, {KitTokens(1, 65), {20}}, {64}).ok());
    EXPECT_EQ(KitFetch(store.get(), model, {KitTokens(1, 65), {}}).value(), exact ? 16u : 64u);
    EXPECT_EQ(KitFetch(store.get(), model, {KitTokens(1, 65), {20}}).value(), 64u);
  }
}

TEST(MemoryStore, SystemPromptServesOtherQuestions) {
  for (const uint32_t chunk : {16u, 64u, 128u, 512u, 1024u}) {
    for (const uint32_t window : {8u, 100u, 512u, 600u}) {
      KitModel geometry;
      geometry.chunk_tokens = chunk;
      geometry.window = window;
      const Fingerprint model = geometry.Make();
      const auto store = MemoryStore(16 << 20);
      ASSERT_TRUE(KitPublish(store.get(), model, {KitTokens(3, 140), {100}}, {100}).ok());
      KitPrompt other{KitTokens(3, 100), {100}};
      for (uint32_t i = 0; i < 50; ++i) other.tokens.push_back(80000 + i);
      EXPECT_EQ(KitFetch(store.get(), model, other).value(), 100u) << chunk << " " << window;
    }
  }
}

TEST(MemoryStore, UsedAndPinnedPointsAreNotEvicted) {
  const Fingerprint model = KitModel().Make();
  // A restore point of 32 tokens has two global and four local slices of 256 bytes each.
  const uint64_t point_bytes = 6 * 256;
  const auto store = MemoryStore(4 * point_bytes);
  const auto prompt = [](uint64_t seed) { return KitPrompt{KitTokens(seed, 33), {}}; };
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    ASSERT_TRUE(KitPublish(store.get(), model, prompt(seed), {32}).ok());
  }
  const Digest second = store->List("default").at(2).id;
  ASSERT_TRUE(store->SetPinned(second, "default", true).ok());
  EXPECT_EQ(KitFetch(store.get(), model, prompt(1)).value(), 32u);
  for (uint64_t seed = 5; seed <= 6; ++seed) {
    ASSERT_TRUE(KitPublish(store.get(), model, prompt(seed), {32}).ok());
  }
  EXPECT_EQ(KitFetch(store.get(), model, prompt(1)).value(), 32u) << "used lately";
  EXPECT_EQ(KitFetch(store.get(), model, prompt(2)).value(), 32u) << "pinned";
  EXPECT_EQ(KitFetch(store.get(), model, prompt(3)).value(), 0u);
  EXPECT_EQ(KitFetch(store.get(), model, prompt(4)).value(), 0u);
  EXPECT_LE(store->Stats().tiers[0].bytes, 4 * point_bytes);
  const auto report = store->Explain(KitQuery(model, prompt(3))).value();
  EXPECT_THAT(report.boundaries.at(1).reason, HasSubstr("evicted"));
}

TEST(MemoryStore, SharedPinnedBytesCountOnce) {
  const Fingerprint model = KitModel().Make();
  const KitPrompt prompt{KitTokens(1, 65), {}};
  StoreOptions options;
  options.host_bytes = 4 * 4 * 3 * 256;  // space for four whole prompts
  options.count_points = false;
  options.max_pinned_fraction = 0.25;
  const auto store = TieredStore::Open(options).value();
  ASSERT_TRUE(KitPublish(store.get(), model, prompt, {16, 32, 48, 64}).ok());
  const std::vector<RestorePoint> points = store->List("default");
  ASSERT_EQ(points.size(), 4u);
  uint64_t each_by_itself = 0, last = 0;
  for (const RestorePoint& point : points) {
    const auto pinned = store->SetPinned(point.id, "default", true);
    ASSERT_TRUE(pinned.ok()) << pinned.status();
    each_by_itself += point.bytes;
    last = point.bytes;
  }
  // The pinned prompt has four global slices and four times two local slices.
  EXPECT_EQ(store->Stats().pinned_bytes, 4 * 3 * 256u);
  EXPECT_GT(each_by_itself, options.host_bytes * options.max_pinned_fraction);
  for (size_t i = 0; i + 1 < points.size(); ++i) {
    ASSERT_TRUE(store->SetPinned(points[i].id, "default", false).ok());
  }
  EXPECT_EQ(store->Stats().pinned_bytes, last);
  ASSERT_TRUE(store->DropAll("default", true).ok());
  EXPECT_EQ(store->Stats().pinned_bytes, 0u);
}

TEST(MemoryStore, ReaderKeepsEvictedObjects) {
  const Fingerprint model = KitModel().Make();
  const auto store = MemoryStore(2 * 6 * 256);
  const KitPrompt held{KitTokens(1, 33), {}};
  ASSERT_TRUE(KitPublish(store.get(), model, held, {32}).ok());
  const auto session = store->Fetch(KitQuery(model, held), 0, 0).value();
  for (uint64_t seed = 2; seed < 10; ++seed) {
    ASSERT_TRUE(KitPublish(store.get(), model, {KitTokens(seed, 33), {}}, {32}).ok());
  }
  EXPECT_TRUE(KitReadAll(session.get(), model, held).ok());
  const KitPrompt large{KitTokens(50, 65), {}};
  const auto refused = KitPublish(store.get(), model, large, {64});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("host_bytes"));
  EXPECT_EQ(KitFetch(store.get(), model, {KitTokens(9, 33), {}}).value(), 32u)
      << "a publish that cannot fit evicts nothing";
}

}  // namespace
}  // namespace hearth
