// The scrub finds damage on disk without any lookup, and keeps its rate limit.
#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "cache_store/disk/verify.h"
#include "cache_store/store/background/scrubber.h"
#include "tests/support/raw_database.h"
#include "tests/support/stepped_store.h"
#include "tests/support/store_checks.h"

namespace hearth {
namespace {

constexpr uint64_t kSliceBytes = 128 << 10;

class Scrub : public SteppedStoreFixture, public ::testing::Test {
 protected:
  Scrub() {
    model_ = LargeModel();
    options_.disk_bytes = 64 * kMiB;
    options_.scrub.bytes_per_s = kMiB;
  }
  void Publish(uint64_t seed) { ASSERT_TRUE(SteppedStoreFixture::Publish(seed).ok()); }
  absl::Duration Step() { return stepped()->ScrubStep(); }
  // Runs steps of the scrub until a pass is complete.
  void RunPass() {
    const uint64_t passes = Counted("scrub_passes");
    for (int step = 0; step < 1000 && Counted("scrub_passes") == passes; ++step) {
      clock_.Advance(Step());
    }
    ASSERT_EQ(Counted("scrub_passes"), passes + 1);
    executor_->RunAll();
    CheckInvariants(store_.get());
  }
  // Returns the bytes of one slice of a prompt, as they are on disk.
  std::string SliceOf(uint64_t seed) {
    const SliceView slice = KitSlice(model_, Prompt(seed), {48, 16, LayerGroup::kGlobal}, 4);
    return {reinterpret_cast<const char*>(slice.bytes.data()), slice.bytes.size()};
  }
};

TEST_F(Scrub, DamagedSliceIsQuarantined) {
  Open();
  for (const uint64_t seed : {1, 2, 3}) Publish(seed);
  RunPass();
  EXPECT_EQ(Counted("scrub_corrupt_objects"), 0u);
  EXPECT_EQ(Counted("scrubbed_bytes"), store_->Stats().counters.at("published_bytes"));
  EXPECT_EQ(Counted("scrubbed_objects"), store_->Stats().objects);
  ASSERT_EQ(FlipBitsOnDisk(folder_, SliceOf(2)), 1);
  clock_.Advance(options_.scrub.period);
  RunPass();
  EXPECT_EQ(Counted("scrub_corrupt_objects"), 1u);
  EXPECT_EQ(Counted("quarantined_objects"), 1u);
  EXPECT_EQ(Fetch(2), 0u) << "a miss, not an error: it was found before";
  EXPECT_TRUE(Fetch(1) == 64 && Fetch(3) == 64);
  Publish(2);
  EXPECT_EQ(Fetch(2), 64u) << "healed by the next publish";
  store_.reset();
  EXPECT_TRUE(VerifyDataDir(folder_.path()).value().ok());
}

TEST_F(Scrub, ScrubKeepsItsRateLimit) {
  Open();
  Publish(1);
  Publish(2);
  const absl::Duration pause = absl::Seconds(static_cast<double>(kSliceBytes) / kMiB);
  EXPECT_EQ(Step(), pause);
  clock_.Advance(pause);
  EXPECT_EQ(Step(), pause);
  EXPECT_EQ(Counted("scrubbed_bytes"), 2 * kSliceBytes);
  clock_.Advance(pause / 2);
  EXPECT_EQ(Step(), pause / 2) << "not yet";
  EXPECT_EQ(Counted("scrubbed_bytes"), 2 * kSliceBytes);
}

TEST_F(Scrub, RestartContinuesScrubPass) {
  Open();
  EXPECT_EQ(Counted("last_full_scrub_unix_s"), 0u);
  for (uint64_t seed = 0; seed < 6; ++seed) Publish(seed);
  RunPass();
  const uint64_t all = Counted("scrubbed_bytes");
  const auto finished = static_cast<uint64_t>(absl::ToUnixSeconds(clock_.Now()));
  EXPECT_EQ(Counted("last_full_scrub_unix_s"), finished);
  const absl::Duration left = Step();
  EXPECT_GT(left, options_.scrub.period - absl::Minutes(2));
  clock_.Advance(left - absl::Seconds(1));
  Open();
  EXPECT_EQ(Step(), absl::Seconds(1)) << "remembered";
  EXPECT_EQ(Counted("last_full_scrub_unix_s"), finished);
  EXPECT_EQ(Counted("scrubbed_bytes"), 0u);
  clock_.Advance(absl::Seconds(1));
  RunPass();
  EXPECT_EQ(Counted("scrubbed_bytes"), all);
}

TEST_F(Scrub, ScrubSkipsDroppedObjects) {
  Open();
  for (const uint64_t seed : {1, 2, 3}) Publish(seed);
  clock_.Advance(Step());
  ASSERT_EQ(store_->DropAll("default", true).value().dropped, 3u);
  RunPass();
  EXPECT_EQ(Counted("scrubbed_bytes"), kSliceBytes);
  EXPECT_EQ(Counted("quarantined_objects"), 0u);
  EXPECT_EQ(store_->Stats().objects, 0u);
}

TEST_F(Scrub, DamagedRecordsAreRewritten) {
  Open();
  Publish(1);
  Publish(2);
  store_.reset();
  std::string manifest, object;
  {
    RawDatabase raw(folder_);
    manifest = raw.All("manifests").at(0).second;
    object = raw.All("objects").at(0).second;
    raw.Flush();
  }
  Open();
  ASSERT_EQ(FlipBitsOnDisk(folder_, manifest), 1);
  ASSERT_EQ(FlipBitsOnDisk(folder_, object), 1);
  RunPass();
  EXPECT_GE(Counted("scrub_repaired_records"), 2u);
  EXPECT_EQ(Counted("scrub_corrupt_objects"), 0u);
  EXPECT_TRUE(Fetch(1) == 64 && Fetch(2) == 64);
  Open();
  EXPECT_EQ(Counted("recovery_dropped_manifests"), 0u);
  EXPECT_TRUE(Fetch(1) == 64 && Fetch(2) == 64);
}

TEST_F(Scrub, DisabledScrubReadsNothing) {
  options_.scrub.bytes_per_s = 0;
  Open();
  Publish(1);
  EXPECT_EQ(Step(), absl::InfiniteDuration());
  EXPECT_EQ(Counted("scrubbed_bytes"), 0u);
}

TEST_F(Scrub, ClosingStoreInterruptsScrubPause) {
  options_.scrub.bytes_per_s = 1;
  store_ = OpenStore(options_, StoreSeams{}).value();
  Publish(1);
  const absl::Time start = absl::Now();
  store_.reset();
  EXPECT_LT(absl::Now() - start, absl::Minutes(10)) << "a slice at this rate takes a day";
}

}  // namespace
}  // namespace hearth
