// Quarantine of objects that an audit found wrong: they are removed permanently from their tenant,
// and the publisher is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "cache_store/store/store_seams.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/stepped_seams.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StoreQuarantine : public ::testing::Test {
 protected:
  StoreQuarantine() { Open(); }
  void Open() {
    store_.reset();
    StoreOptions options;
    options.data_dir = folder_.path();
    options.host_bytes = 1 << 20;
    options.disk_bytes = 1 << 20;
    store_ = TieredStore::Open(options).value();
  }
  void PublishAs(const std::string& publisher, const KitPrompt& prompt, uint32_t boundary) {
    PublishSpec spec = KitSpec(model_, prompt, {boundary}, Durability::kDisk);
    spec.publisher = publisher;
    auto session = store_->Publish(spec);
    ASSERT_TRUE(session.ok()) << session.status();
    ASSERT_TRUE(KitPutAll(session->get(), spec, model_, prompt).ok());
    ASSERT_TRUE((*session)->Commit().ok());
  }
  uint32_t Usable(const KitPrompt& prompt) {
    return KitFetch(store_.get(), model_, prompt).value();
  }

  const TestFolder folder_;
  const Fingerprint model_ = KitModel().Make();  // chunks of 16 tokens, window of 24
  const KitPrompt prompt_{KitTokens(1, 100), {}};
  const std::vector<ObjectId> wrong_ = {{16, 16, LayerGroup::kGlobal}};
  std::unique_ptr<TieredStore> store_;
};

TEST_F(StoreQuarantine, QuarantineNamesPublisher) {
  PublishAs("worker-1", prompt_, 64);
  PublishAs("worker-2", prompt_, 96);  // publishes only the chunks after 64 and the local tail
  ASSERT_EQ(Usable(prompt_), 96u);
  const auto result = store_->Quarantine(KitQuery(model_, prompt_), wrong_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->objects, 1u);
  EXPECT_THAT(result->publishers, ElementsAre("worker-1"));
  EXPECT_EQ(Usable(prompt_), 0u) << "all that is stored needs it";
  EXPECT_THAT(store_->Explain(KitQuery(model_, prompt_))->summary, HasSubstr("quarantined"));
  EXPECT_EQ(store_->Quarantine(KitQuery(model_, prompt_), wrong_).status().code(),
            absl::StatusCode::kNotFound);
  // After the quarantine, the prompt can be computed and published again.
  PublishAs("worker-3", prompt_, 96);
  EXPECT_EQ(Usable(prompt_), 96u);
}

TEST_F(StoreQuarantine, OtherTenantKeepsItsObject) {
  KitPrompt theirs = prompt_;
  theirs.tenant = "b";
  PublishAs("worker-1", prompt_, 96);
  PublishAs("worker-1", theirs, 96);
  ASSERT_TRUE(store_->Quarantine(KitQuery(model_, prompt_), wrong_).ok());
  EXPECT_EQ(Usable(prompt_), 0u);
  EXPECT_EQ(Usable(theirs), 96u);
}

TEST_F(StoreQuarantine, QuarantineSurvivesRestart) {
  PublishAs("worker-1", prompt_, 64);
  Open();
  const auto result = store_->Quarantine(KitQuery(model_, prompt_), wrong_);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->publishers, ElementsAre("")) << "nobody remembers";
  Open();
  EXPECT_EQ(Usable(prompt_), 0u);
}

// The digests of a quarantined object match its bytes, so a start that still finds the object on
// disk would serve it.
TEST(StoreQuarantineCrash, QuarantinedObjectStaysGoneAfterCrash) {
  for (const bool machine : {false, true}) {
    SCOPED_TRACE(machine ? "the machine" : "the process");
    const TestFolder folder;
    const Fingerprint model = KitModel().Make();
    const KitPrompt prompt{KitTokens(1, 100), {}};
    FaultyDisk disk;
    const auto open = [&] {
      StoreOptions options;
      options.data_dir = folder.path();
      options.host_bytes = 1 << 20;
      options.disk_bytes = 1 << 20;
      ManualExecutor* executor = nullptr;
      StoreSeams seams = SteppedSeams(&executor);
      seams.disk.env = disk.env();
      return OpenStore(options, std::move(seams)).value();
    };
    auto store = open();
    ASSERT_TRUE(KitPublish(store.get(), model, prompt, {96}, Durability::kSync).ok());
    ASSERT_TRUE(store->Quarantine(KitQuery(model, prompt), {{16, 16, LayerGroup::kGlobal}}).ok());
    disk.Die();
    store.reset();
    std::mt19937_64 random(1);
    disk.Restart(machine, &random);
    store = open();
    EXPECT_EQ(KitFetch(store.get(), model, prompt).value(), 0u);
  }
}

TEST(StoreQuarantineCrash, FailedDiskEraseIsReported) {
  const TestFolder folder;
  const Fingerprint model = KitModel().Make();
  const KitPrompt prompt{KitTokens(1, 100), {}};
  FaultyDisk disk;
  StoreOptions options;
  options.data_dir = folder.path();
  ManualExecutor* executor = nullptr;
  StoreSeams seams = SteppedSeams(&executor);
  seams.disk.env = disk.env();
  const auto store = OpenStore(options, std::move(seams)).value();
  ASSERT_TRUE(KitPublish(store.get(), model, prompt, {96}, Durability::kSync).ok());
  disk.SetFull(true);
  const auto result = store->Quarantine(KitQuery(model, prompt), {{16, 16, LayerGroup::kGlobal}});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->on_disk.code(), absl::StatusCode::kResourceExhausted) << result->on_disk;
  EXPECT_EQ(KitFetch(store.get(), model, prompt).value(), 0u) << "until a crash it is gone";
}

TEST_F(StoreQuarantine, QuarantineOfUnknownObjectIsRefused) {
  PublishAs("worker-1", prompt_, 96);
  const auto past = store_->Quarantine(KitQuery(model_, prompt_), {{96, 16, LayerGroup::kGlobal}});
  EXPECT_EQ(past.status().code(), absl::StatusCode::kInvalidArgument);
  const auto other = store_->Quarantine(KitQuery(model_, prompt_), {{96, 3, LayerGroup::kGlobal}});
  EXPECT_EQ(other.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Usable(prompt_), 96u);
}

}  // namespace
}  // namespace hearth
