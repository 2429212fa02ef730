// Calls that overlap with a write to disk: a hook forces each order of events.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <utility>

#include "cache_store/catalog/fingerprint_book.h"
#include "cache_store/store/store_core.h"
#include "tests/support/stepped_store.h"
#include "tests/support/store_checks.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A tier that calls one hook before each write (an error of the hook fails the write), and another
// before the next erase.
class HookTier : public SliceTier {
 public:
  HookTier(SliceTier* tier, const std::function<absl::Status()>* before_write,
           std::function<void()>* before_erase)
      : tier_(tier), before_write_(before_write), before_erase_(before_erase) {}
  absl::StatusOr<std::optional<SliceView>> Read(const StoredSlice& slice) override {
    return tier_->Read(slice);
  }
  absl::Status WriteAll(absl::Span<const SliceWrite> slices) override {
    if (*before_write_ != nullptr) {
      if (absl::Status status = (*before_write_)(); !status.ok()) return status;
    }
    return tier_->WriteAll(slices);
  }
  absl::Status EraseObjects(absl::Span<const uint64_t> objects) override {
    if (const auto once = std::exchange(*before_erase_, nullptr)) once();
    return tier_->EraseObjects(objects);
  }

 private:
  SliceTier* const tier_;
  const std::function<absl::Status()>* const before_write_;
  std::function<void()>* const before_erase_;
};

class StoreRaces : public SteppedStoreFixture, public ::testing::Test {
 protected:
  StoreRaces() {
    options_.host_bytes = 1 << 20;
    options_.count_points = false;
    options_.disk_bytes = 64 << 20;
  }
  ~StoreRaces() override { store_.reset(); }
  StoreSeams Seams() override {
    StoreSeams seams = SteppedStoreFixture::Seams();
    seams.wrap_disk = [this](SliceTier* tier) {
      return std::make_unique<HookTier>(tier, &before_write_, &before_erase_);
    };
    return seams;
  }
  // Calls `hook` once, before the next write to the disk.
  void BeforeNextWrite(std::function<absl::Status()> hook) {
    before_write_ = [this, hook = std::move(hook)] {
      const auto once = std::move(hook);
      before_write_ = nullptr;
      return once();
    };
  }
  absl::StatusOr<PublishResult> Publish(Durability durability) {
    return KitPublish(store_.get(), model_, prompt_, {64}, durability);
  }
  RestorePoint OnlyPoint() {
    const auto points = store_->List("default");
    EXPECT_EQ(points.size(), 1u);
    return points.at(0);
  }
  void CheckInvariants() { hearth::CheckInvariants(store_.get()); }

  const KitPrompt prompt_{KitTokens(1, 65), {}};
  std::function<absl::Status()> before_write_;
  std::function<void()> before_erase_;  // hook that is called once, before the next erase
};

// Two workers publish the same prompt with equal keys but different bytes, because they computed it
// in different steps.
TEST_F(StoreRaces, FirstPortablePublishWins) {
  KitModel portable;
  portable.exact = false;
  const Fingerprint model = portable.Make();
  portable.weights = "rounded otherwise";
  const Fingerprint other = portable.Make();
  for (const bool is_in_ram : {true, false}) {
    Open();
    const Durability levels[] = {is_in_ram ? Durability::kMemory : Durability::kDisk,
                                 Durability::kDisk};
    std::vector<std::unique_ptr<PublishSession>> sessions;
    for (const Fingerprint& computed : {model, other}) {
      PublishSpec spec = KitSpec(computed, prompt_, {64}, levels[sessions.size()]);
      spec.fingerprint = model;
      sessions.push_back(store_->Publish(spec).value());
      ASSERT_TRUE(KitPutAll(sessions.back().get(), spec, computed, prompt_).ok());
    }
    ASSERT_TRUE(sessions[0]->Commit().ok());
    if (!is_in_ram) {
      StoreCore* const core = stepped()->core();
      StoreLock lock(core);
      core->objects.DropSpareCopies(0);
    }
    ASSERT_TRUE(sessions[1]->Commit().ok());
    sessions.clear();
    CheckInvariants();
    EXPECT_EQ(KitFetch(store_.get(), model, prompt_).value(), 64u);
    EXPECT_EQ(Counted("host_corrupt_objects"), 0u);
    Open();
    EXPECT_EQ(KitFetch(store_.get(), model, prompt_).value_or(0), 64u) << "from disk";
    ASSERT_TRUE(store_->DropAll("default", true).ok());
  }
}

TEST_F(StoreRaces, DropAndPublishRunDuringErase) {
  Open();
  for (const uint64_t seed : {2, 3}) {
    ASSERT_TRUE(KitPublish(store_.get(), model_, Prompt(seed), {64}, Durability::kDisk).ok());
  }
  const std::vector<RestorePoint> points = store_->List("default");
  before_erase_ = [&] {
    EXPECT_EQ(store_->Drop(points.at(1).id, "default", false)->dropped, 1u);
    EXPECT_TRUE(Publish(Durability::kDisk).ok());
  };
  EXPECT_EQ(store_->Drop(points.at(0).id, "default", false)->dropped, 1u);
  EXPECT_EQ(before_erase_, nullptr) << "it was not called";
  const Digest kept = OnlyPoint().id;
  CheckInvariants();
  Open();
  EXPECT_EQ(OnlyPoint().id, kept);
}

TEST_F(StoreRaces, FailedWriteAfterDropLeavesNothing) {
  Open();
  ASSERT_TRUE(Publish(Durability::kMemory).ok());
  BeforeNextWrite([this] {
    EXPECT_EQ(store_->DropAll("default", true).value().dropped, 1u);
    return absl::UnavailableError("disk on fire");
  });
  executor_->RunAll();
  EXPECT_EQ(store_->Stats().objects, 0u);
  CheckInvariants();
  ASSERT_TRUE(Publish(Durability::kDisk).ok());
  Open();
  EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 64u);
}

TEST_F(StoreRaces, PinOfRamPointReachesDisk) {
  for (const bool pinned_while_written : {false, true}) {
    Open();
    ASSERT_TRUE(Publish(Durability::kMemory).ok());
    const Digest id = OnlyPoint().id;
    ASSERT_TRUE(store_->SetPinned(id, "default", true).ok());
    if (pinned_while_written) {
      // another publish writes the restore point to disk
      ASSERT_TRUE(Publish(Durability::kDisk).ok());
    } else {
      executor_->RunAll();
    }
    Open();
    EXPECT_TRUE(OnlyPoint().pinned);
    ASSERT_TRUE(store_->SetPinned(id, "default", false).ok());
    Open();
    EXPECT_FALSE(OnlyPoint().pinned);
    ASSERT_TRUE(store_->DropAll("default", true).ok());
  }
}

TEST_F(StoreRaces, DropDuringPublishIsNoted) {
  Open();
  ASSERT_TRUE(Publish(Durability::kDisk).ok());
  const KitPrompt longer{KitTokens(1, 97), {}};
  BeforeNextWrite([this] {
    EXPECT_EQ(store_->Drop(OnlyPoint().id, "default", true).value().dropped, 1u);
    return absl::OkStatus();
  });
  const auto result = KitPublish(store_.get(), model_, longer, {64, 96}, Durability::kDisk);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->boundaries, ElementsAre(96u));
  EXPECT_THAT(result->notes, ElementsAre(HasSubstr("boundary 64 left out: it was dropped")));
  CheckInvariants();
  Open();  // after reopening, exactly the acknowledged restore points are there
  EXPECT_EQ(OnlyPoint().tokens, 96u);
  EXPECT_EQ(KitFetch(store_.get(), model_, longer).value(), 96u);
}

TEST_F(StoreRaces, EndOfOldFetchKeepsNewPoint) {
  Open();
  ASSERT_TRUE(Publish(Durability::kDisk).ok());
  auto fetch = store_->Fetch(KitQuery(model_, prompt_), 0, 65);
  ASSERT_TRUE(fetch.ok());
  ASSERT_TRUE(store_->DropAll("default", true).ok());
  ASSERT_TRUE(Publish(Durability::kDisk).ok());
  fetch->reset();
  executor_->RunAll();
  CheckInvariants();
  EXPECT_EQ(store_->DropAll("default", false).value().dropped, 1u);
  executor_->RunAll();
  EXPECT_EQ(store_->Stats().objects, 0u);
}

// A lookup must not create the dropped restore point again from its objects.
TEST_F(StoreRaces, LookupDoesNotReviveDroppedPoint) {
  Open();
  ASSERT_TRUE(Publish(Durability::kDisk).ok());
  auto fetch = store_->Fetch(KitQuery(model_, prompt_), 0, 65);
  ASSERT_TRUE(fetch.ok());
  ASSERT_TRUE(store_->DropAll("default", true).ok());
  EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 0u);
  const LayerGroup group = (*fetch)->plan().objects[0].id.group;
  const auto read = (*fetch)->ReadSlice(0, (*fetch)->plan().layout.LayersOf(group)[0]);
  EXPECT_TRUE(read.ok()) << read.status() << ": who reads it reads on";
  fetch->reset();
  executor_->RunAll();
  CheckInvariants();
  EXPECT_EQ(store_->Stats().objects, 0u);
  Open();
  EXPECT_EQ(KitFetch(store_.get(), model_, prompt_).value(), 0u);
}

TEST_F(StoreRaces, ManyFingerprintsLoseNoPoint) {
  Open();
  std::vector<Fingerprint> models;
  for (size_t i = 0; i < FingerprintBook::kMaxPerTenant + 8; ++i) {
    KitModel kit;
    kit.weights = "w" + std::to_string(i);
    models.push_back(kit.Make());
    ASSERT_TRUE(KitPublish(store_.get(), models[i], prompt_, {64}, Durability::kDisk).ok());
  }
  for (int reopened = 0; reopened < 2; ++reopened) {
    EXPECT_EQ(store_->List("default").size(), models.size());
    for (const Fingerprint& model : models) {
      EXPECT_EQ(KitFetch(store_.get(), model, prompt_).value(), 64u) << reopened;
    }
    Open();
  }
}

TEST(FingerprintBookTest, OldestUnusedFingerprintIsForgotten) {
  FingerprintBook book;
  const auto model = [](size_t i) {
    KitModel kit;
    kit.weights = "w" + std::to_string(i);
    return kit.Make();
  };
  const auto held = book.Learn(model(0), "default");
  for (size_t i = 1; i < FingerprintBook::kMaxPerTenant; ++i) book.Learn(model(i), "default");
  book.Learn(model(1), "default");  // makes this fingerprint the most recently used
  book.Learn(model(100), "default");
  EXPECT_NE(book.Find(model(0).digest(), "default"), nullptr) << "somebody refers to it";
  EXPECT_NE(book.Find(model(1).digest(), "default"), nullptr);
  EXPECT_EQ(book.Find(model(2).digest(), "default"), nullptr);
  EXPECT_EQ(book.Of("default").size(), FingerprintBook::kMaxPerTenant);
  EXPECT_THAT(book.Of("other"), IsEmpty());
}

// Learn a fingerprint twice, like two calls that looked it up at the same time.
TEST(FingerprintBookTest, ConcurrentLearnKeepsOneEntry) {
  FingerprintBook book;
  const Fingerprint model = KitModel().Make();
  const auto first = book.Remember(MakeKnown(model), "default");
  EXPECT_EQ(book.Remember(MakeKnown(model), "default"), first);
  EXPECT_EQ(book.Of("default").size(), 1u);
}

}  // namespace
}  // namespace hearth
