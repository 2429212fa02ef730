// Saving KV from a device: chunks are copied during later steps, and sealed when a reader needs
// them. The emulated device performs a copy as late as possible.
#include "worker/engine/late_object.h"

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "proto/restore_rule.h"
#include "tests/worker/engine/engine_harness.h"
#include "worker/device/emulated_device.h"
#include "worker/engine/prefix_pool.h"
#include "worker/engine/publisher.h"
#include "worker/engine/staging.h"
#include "worker/model/invariant/invariant_gemma.h"

namespace hearth {
namespace {

constexpr uint64_t kPlenty = uint64_t{1} << 30;

class LateObjectTest : public testing::Test {
 protected:
  LateObjectTest() {
    TinyGeometry geometry;
    geometry.bfloat16 = true;
    static const std::string* const dir =
        new std::string(NewTinyCheckpoint(geometry, "late_object"));
    InvariantGemmaOptions options{1, 16};
    cpu_ = InvariantGemma::Load(*dir, options).value();
    options.device = device_;
    gemma_ = InvariantGemma::Load(*dir, options).value();
    layout_ = LayoutOf(cpu_->config(), KvDtype::kFloat32, 16, Exactness::kInvariant);
  }
  std::unique_ptr<StagedSnapshots> Stage(const std::vector<uint32_t>& kept, bool on_device) {
    return std::make_unique<StagedSnapshots>(layout_, kept, 0, KvObjects(), &budget_, true,
                                             on_device);
  }
  static void StepTo(const InvariantGemma& gemma, uint32_t to, InvariantKv* kv,
                     StagedSnapshots* staged) {
    const std::vector<int32_t> prompt = Prompt(200);
    const auto begin = static_cast<uint32_t>(kv->length());
    const auto step = absl::MakeConstSpan(prompt).subspan(begin, to - begin);
    ASSERT_TRUE(gemma.Step(kv, step, 0, nullptr).ok());
    if (staged != nullptr) staged->Record(*kv, begin, to);
  }
  PublishOutcome Publish(const KvObjects& objects, MemoryPrefixCache* cache) {
    EngineCounters counters;
    Publisher publisher(absl::InfiniteDuration(), kPlenty, &counters);
    PublishOutcome outcome;
    absl::Notification done;
    PublishJob job;
    for (const int32_t id : Prompt(90)) {
      job.spec.prefix.token_ids.push_back(static_cast<uint32_t>(id));
    }
    job.spec.boundaries = {90};
    job.spec.objects = objects;
    job.done = [&](const PublishOutcome& ended) {
      outcome = ended;
      done.Notify();
    };
    publisher.Submit(cache, std::move(job));
    done.WaitForNotification();
    return outcome;
  }

  const std::shared_ptr<EmulatedDevice> device_ = std::make_shared<EmulatedDevice>();
  std::unique_ptr<InvariantGemma> cpu_, gemma_;
  KvLayout layout_;
  StagingBudget budget_{kPlenty};
};

// The sequence continues, and its window drops blocks, before the copies are performed.
TEST_F(LateObjectTest, DeviceChunksHaveCpuDigests) {
  const auto expected = Stage({23, 64}, false), late = Stage({23, 64}, true);
  InvariantKv on_cpu = cpu_->NewKv(), kv = gemma_->NewKv();
  for (const uint32_t end : {23u, 40u, 90u}) {
    StepTo(*cpu_, end, &on_cpu, expected.get());
    StepTo(*gemma_, end, &kv, late.get());
  }
  ASSERT_TRUE(expected->AddNow(on_cpu, &budget_));
  ASSERT_TRUE(late->AddNow(kv, &budget_));
  for (const auto& object : late->ObjectsOf(90)) EXPECT_TRUE(object->slice_digests.empty());
  EXPECT_EQ(device_->counts().performed, 0);
  StepTo(*gemma_, 190, &kv, nullptr);
  kv = gemma_->NewKv();
  StepTo(*gemma_, 180, &kv, nullptr);  // takes the freed blocks
  for (const uint32_t boundary : {23u, 64u, 90u}) {
    const KvObjects ours = late->ObjectsOf(boundary), theirs = expected->ObjectsOf(boundary);
    ASSERT_EQ(ours.size(), theirs.size());
    for (size_t i = 0; i < ours.size(); ++i) {
      ASSERT_TRUE(ours[i]->Complete());
      EXPECT_EQ(ours[i]->slice_digests, theirs[i]->slice_digests) << boundary << ": " << i;
    }
  }
  EXPECT_EQ(device_->error(), "");
}

TEST_F(LateObjectTest, PublisherSealsAndPoolCompares) {
  InvariantKv on_cpu = cpu_->NewKv(), kv = gemma_->NewKv(), second = gemma_->NewKv();
  const auto expected = Stage({90}, false), late = Stage({90}, true), again = Stage({90}, true);
  StepTo(*cpu_, 90, &on_cpu, expected.get());
  StepTo(*gemma_, 90, &kv, late.get());
  StepTo(*gemma_, 90, &second, again.get());
  MemoryPrefixCache cache(layout_);
  EXPECT_EQ(Publish(late->ObjectsOf(90), &cache).published_tokens, 90u);
  EXPECT_EQ(Publish(expected->ObjectsOf(90), &cache).published_tokens, 90u);
  EXPECT_EQ(cache.conflicts(), 0);
  PrefixPool pool(kPlenty, 16, Exactness::kInvariant);
  PrefixRequest prefix;
  prefix.token_ids.assign(90, 3);
  EXPECT_EQ(pool.Insert(prefix, 90, again->ObjectsOf(90)), PrefixPool::InsertResult::kInserted);
  EXPECT_EQ(pool.Insert(prefix, 90, expected->ObjectsOf(90)), PrefixPool::InsertResult::kPresent);
}

TEST_F(LateObjectTest, FailedCopyIsNotPublished) {
  InvariantKv kv = gemma_->NewKv();
  const auto late = Stage({90}, true);
  StepTo(*gemma_, 90, &kv, late.get());
  device_->FailTransferAfter(2);
  MemoryPrefixCache cache(layout_);
  const PublishOutcome outcome = Publish(late->ObjectsOf(90), &cache);
  EXPECT_EQ(outcome.published_tokens, 0u);
  EXPECT_EQ(outcome.note, "publishing failed: the device failed before its KV was copied");
  EXPECT_TRUE(cache.published().empty());
  EXPECT_EQ(gemma_->Step(&kv, {1}, 0, nullptr).message(),
            "device: a transfer: an injected failure");
}

TEST_F(LateObjectTest, DroppedCopiesReleaseBlocks) {
  {
    InvariantKv kv = gemma_->NewKv();
    const auto late = Stage({64, 90}, true);
    StepTo(*gemma_, 70, &kv, late.get());
  }
  EXPECT_EQ(gemma_->kv_blocks().used_bytes(), 0u);
  EXPECT_EQ(device_->counts().performed,
            device_->counts().transfers[static_cast<int>(CopyWay::kOut)]);
  EXPECT_EQ(device_->error(), "");
}

}  // namespace
}  // namespace hearth
