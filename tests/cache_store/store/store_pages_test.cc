// Objects made of opaque pages, which only the engine that wrote them can read (object_layout 2),
// through the whole store.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache_store/disk/disk_tier_load.h"
#include "cache_store/disk/stored_records.h"
#include "cache_store/disk/verify.h"
#include "tests/support/raw_database.h"
#include "tests/support/stepped_store.h"

namespace hearth {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr uint32_t kPageBytes = 1000;  // not a multiple of the size of a row

KitModel Engine() {
  KitModel engine;
  engine.exact = false;
  engine.layer_types = "llg";
  engine.page_bytes = kPageBytes;
  return engine;
}

// Fixture: a store with disk and RAM, chunks of 16 tokens, window of 24.
class StorePages : public FaultyTierFixture, public ::testing::Test {
 protected:
  StorePages() {
    options_.data_dir = folder_.path();
    options_.host_bytes = options_.disk_bytes = 1 << 20;
    Open();
  }
  const Fingerprint engine_ = Engine().Make();
  const KitPrompt prompt_{KitTokens(3, 100), {}};
};

TEST_F(StorePages, PagesSurviveRestart) {
  const auto published = KitPublish(store_.get(), engine_, prompt_, {96});
  ASSERT_TRUE(published.ok()) << published.status();
  // Received: six blocks of the full attention layer, and for each of two sliding window layers the
  // two blocks that overlap tokens 73 to 95.
  EXPECT_EQ(published->bytes_received, (6 + 2 * 2) * kPageBytes);
  EXPECT_EQ(KitFetch(store_.get(), engine_, prompt_).value(), 96u);
  Open();
  Tier slowest = Tier::kNone;
  EXPECT_EQ(KitFetch(store_.get(), engine_, prompt_, &slowest).value(), 96u);
  EXPECT_EQ(slowest, Tier::kDisk);
  EXPECT_EQ(store_->Fetch(KitQuery(engine_, prompt_), 0, 64).value()->plan().usable_tokens, 0u)
      << "no tail is kept there";
  store_.reset();
  const absl::StatusOr<VerifyReport> verified = VerifyDataDir(folder_.path());
  ASSERT_TRUE(verified.ok()) << verified.status();
  EXPECT_THAT(verified->problems, ElementsAre());
  EXPECT_EQ(verified->restore_points, 1u);
}

TEST_F(StorePages, BoundaryInsidePageIsRefused) {
  const auto refused = store_->Publish(KitSpec(engine_, prompt_, {90}));
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.status().message(),
            "boundaries: 90 must be a multiple of chunk_tokens, 16, because pages cannot be split");
}

// The largest pages in the maximum number of layers take 2^41 bytes for each block.
TEST_F(StorePages, OversizedPagesAreRefused) {
  KitModel huge = Engine();
  huge.page_bytes = kMaxPageTokenBytes * 16;
  huge.layer_types = std::string(kMaxLayers, 'g');
  PublishSpec spec;
  spec.fingerprint = huge.Make();
  spec.tenant = "default";
  spec.token_ids = prompt_.tokens;
  spec.boundaries = {16};
  spec.objects = {{{0, 16, LayerGroup::kGlobal}, std::vector<uint64_t>(kMaxLayers, 1)}};
  const auto refused = store_->Publish(spec);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("must have at most max_staged_bytes, 1073741824; got 17179869184"));
}

TEST_F(StorePages, ExplainNamesEngineDifferences) {
  ASSERT_TRUE(KitPublish(store_.get(), engine_, prompt_, {96}).ok());
  KitModel blocks = Engine(), weights = Engine(), rows = Engine();
  blocks.chunk_tokens = 32;
  weights.weights = "w1";
  rows.page_bytes = 0;
  const auto fields = [&](const KitModel& other) {
    store_->Observe(other.Make(), "default");
    std::vector<std::string> named;
    EXPECT_EQ(KitFetch(store_.get(), other.Make(), prompt_).value(), 0u);
    const ExplainReport report = store_->Explain(KitQuery(other.Make(), prompt_)).value();
    for (const OtherFingerprint& each : report.other_fingerprints) {
      named.push_back(each.difference.field);
    }
    return named;
  };
  EXPECT_THAT(fields(blocks), ElementsAre("chunk_tokens"));
  EXPECT_THAT(fields(weights), ElementsAre("weights"));
  EXPECT_THAT(fields(rows),
              ElementsAre("head_dim", "kv_dtype", "kv_heads", "object_layout", "page_bytes"));
}

// The folder was written by a later release with a newer object layout.
TEST_F(StorePages, ErrorNamesNewerObjectLayout) {
  ASSERT_TRUE(KitPublish(store_.get(), engine_, prompt_, {96}).ok());
  store_.reset();
  std::vector<FingerprintField> fields(engine_.fields().begin(), engine_.fields().end());
  for (FingerprintField& field : fields) {
    if (field.name == "object_layout") field.value = uint64_t{3};
  }
  const FingerprintRecord later{Fingerprint::Create(fields).value(), "default"};
  {
    RawDatabase raw(folder_);
    const auto [key, value] = raw.All("manifests").front();
    ManifestRecord record = ParseManifestRecord(value).value();
    record.manifest.fingerprint = later.fingerprint.digest();
    raw.Put("manifests", key, SerializeManifestRecord(record));
    raw.Put("fingerprints", FingerprintKey(later), later.fingerprint.Serialize());
  }
  constexpr char kReason[] = "fingerprint field object_layout is 3, known are 1 and 2";
  EXPECT_THAT(VerifyDataDir(folder_.path())->problems, ElementsAre(HasSubstr(kReason)));
  Open();
  EXPECT_THAT(lines_, Contains(HasSubstr(kReason)));
  EXPECT_EQ(KitFetch(store_.get(), engine_, prompt_).value(), 0u);
}

}  // namespace
}  // namespace hearth
