#include "worker/engine/staging.h"

#include "gtest/gtest.h"
#include "proto/restore_rule.h"
#include "tests/worker/engine/engine_harness.h"
#include "worker/engine/runner/model_fingerprint.h"
#include "worker/model/torch/gemma.h"

namespace hearth {
namespace {

constexpr uint32_t kChunk = 16;
constexpr uint64_t kPlenty = uint64_t{1} << 30;

class StagingTest : public testing::TestWithParam<NamedGeometry> {
 protected:
  StagingTest() {
    GemmaOptions options;
    options.dtype = GetParam().dtype;
    auto gemma = Gemma::Load(ModelDir(GetParam().geometry), options);
    EXPECT_TRUE(gemma.ok()) << gemma.status();
    gemma_ = *std::move(gemma);
    layout_ = LayoutOf(gemma_->config(), gemma_->kv_dtype(), kChunk, Exactness::kExact);
  }

  KvCache NewKv() { return *gemma_->NewKvCache(256); }

  // Computes tokens up to `to` in canonical steps, and records each step.
  void StepTo(KvCache* kv, uint32_t to, const std::vector<uint32_t>& cuts,
              StagedSnapshots* staged) {
    const std::vector<int32_t> prompt = Prompt(200);
    for (uint32_t end : StepEnds(to, cuts, kChunk)) {
      const uint32_t begin = static_cast<uint32_t>(kv->length());
      if (end <= begin) continue;
      const auto step = absl::MakeConstSpan(prompt).subspan(begin, end - begin);
      ASSERT_TRUE(gemma_->Step(kv, step, nullptr).ok());
      staged->Record(*kv, begin, end);
    }
  }

  std::unique_ptr<Gemma> gemma_;
  KvLayout layout_;
  StagingBudget budget_{kPlenty};
};

std::string Bits(const KvObject& object) {
  return std::string(reinterpret_cast<const char*>(object.bytes.get()), object.size_bytes);
}

TEST_P(StagingTest, HoldsObjectsOfEachBoundary) {
  const std::vector<uint32_t> kept = {23, 50, 64}, cuts = {23, 50};
  StagedSnapshots staged(layout_, kept, 0, {}, &budget_);
  KvCache kv = NewKv();
  StepTo(&kv, 75, cuts, &staged);
  EXPECT_EQ(staged.boundaries(), kept);
  for (uint32_t boundary : kept) {
    KvObjects objects = staged.ObjectsOf(boundary);
    EXPECT_TRUE(CheckAndSortObjects(layout_, boundary, &objects).ok());
  }
}

TEST_P(StagingTest, RestoredSequenceStagesEqualBits) {
  const std::vector<uint32_t> kept = {23, 50, 64}, cuts = {23, 50};
  StagedSnapshots cold(layout_, kept, 0, {}, &budget_);
  KvCache kv = NewKv();
  StepTo(&kv, 75, cuts, &cold);
  for (size_t from = 0; from + 1 < kept.size(); ++from) {
    SCOPED_TRACE(kept[from]);
    const KvObjects restored = cold.ObjectsOf(kept[from]);
    const std::vector<uint32_t> later(kept.begin() + from + 1, kept.end());
    StagedSnapshots warm(layout_, later, kept[from], restored, &budget_);
    KvCache continued = NewKv();
    RestoreSnapshot(layout_, kept[from], restored, &continued);
    StepTo(&continued, 75, cuts, &warm);
    for (uint32_t boundary : later) {
      const KvObjects a = cold.ObjectsOf(boundary), b = warm.ObjectsOf(boundary);
      ASSERT_EQ(a.size(), b.size());
      for (size_t i = 0; i < a.size(); ++i) {
        EXPECT_EQ(a[i]->id, b[i]->id);
        EXPECT_EQ(a[i]->slice_digests, b[i]->slice_digests);
        EXPECT_EQ(Bits(*a[i]), Bits(*b[i]));
      }
    }
  }
}

TEST_P(StagingTest, SnapshotOverBudgetIsSkipped) {
  uint64_t first_bytes = 0;
  for (const ObjectId& id : NeededObjects(layout_, 23)) {
    first_bytes += layout_.ObjectBytes(id.tokens, id.group);
  }
  StagingBudget budget(first_bytes);
  StagedSnapshots staged(layout_, {23, 64}, 0, {}, &budget);
  EXPECT_EQ(staged.boundaries(), std::vector<uint32_t>{23});
  EXPECT_EQ(staged.skipped(), 1u);
  EXPECT_EQ(budget.used_bytes(), first_bytes);
  { const StagingBudget::Lease lease = staged.TakeLease(); }
  EXPECT_EQ(budget.used_bytes(), 0u);
}

TEST_P(StagingTest, HighestBoundaryIsStagedFirst) {
  uint64_t last_bytes = 0;
  for (const ObjectId& id : NeededObjects(layout_, 75)) {
    last_bytes += layout_.ObjectBytes(id.tokens, id.group);
  }
  StagingBudget budget(last_bytes);
  StagedSnapshots staged(layout_, {23, 75}, 0, {}, &budget);
  EXPECT_EQ(staged.boundaries(), std::vector<uint32_t>{75});
  EXPECT_EQ(staged.skipped(), 1u);
}

TEST(StagingBytes, DefaultHoldsTwoTails) {
  KvLayout layout;
  layout.kv_heads = 16;
  layout.head_dim = 128;
  layout.window = 1024;
  layout.chunk_tokens = 128;
  layout.layers.assign(52, LayerGroup::kLocal);
  EXPECT_EQ(DefaultStagingBytes(layout), uint64_t{2} * 52 * 1152 * 2 * 16 * 128 * 4);
  layout.layers.resize(22);
  EXPECT_EQ(DefaultStagingBytes(layout), uint64_t{1} << 30);
}

TEST_P(StagingTest, UnknownObjectsHaveNoBytes) {
  // The sequence continues from token 32, but its restored objects are not passed.
  StagedSnapshots staged(layout_, {48}, 32, {}, &budget_);
  KvCache kv = NewKv();
  StagedSnapshots nothing(layout_, {}, 0, {}, &budget_);
  StepTo(&kv, 32, {}, &nothing);
  StepTo(&kv, 48, {}, &staged);
  for (const auto& object : staged.ObjectsOf(48)) {
    EXPECT_EQ(object->bytes == nullptr, object->id.begin < 32) << object->id.begin;
  }
}

TEST_P(StagingTest, MalformedFetchedObjectIsNamed) {
  StagedSnapshots staged(layout_, {23}, 0, {}, &budget_);
  KvCache kv = NewKv();
  StepTo(&kv, 23, {23}, &staged);
  const KvObjects good = staged.ObjectsOf(23);
  const auto message = [&](const std::function<void(KvObjects*)>& spoil) {
    KvObjects objects = good;
    spoil(&objects);
    const absl::Status status = CheckAndSortObjects(layout_, 23, &objects);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    return std::string(status.message());
  };
  const auto change = [&](const std::function<void(KvObject*)>& spoil) {
    return message([&](KvObjects* objects) {
      auto copy = std::make_shared<KvObject>(*objects->front());
      spoil(copy.get());
      objects->front() = copy;
    });
  };
  EXPECT_NE(message([](KvObjects* objects) { objects->pop_back(); }).find("needs"),
            std::string::npos);
  EXPECT_NE(message([](KvObjects* objects) { objects->front() = nullptr; }).find("null"),
            std::string::npos);
  EXPECT_NE(change([](KvObject* o) { o->size_bytes -= 1; }).find("bytes, expected"),
            std::string::npos);
  EXPECT_NE(change([](KvObject* o) { o->bytes = nullptr; }).find("no bytes"), std::string::npos);
  EXPECT_NE(change([](KvObject* o) { o->slice_digests.pop_back(); }).find("digests"),
            std::string::npos);
  EXPECT_NE(change([](KvObject* o) { o->id.tokens += 1; }).find("needs"), std::string::npos);
  KvObjects reversed(good.rbegin(), good.rend());
  EXPECT_TRUE(CheckAndSortObjects(layout_, 23, &reversed).ok());
}

INSTANTIATE_TEST_SUITE_P(AllGeometries, StagingTest, testing::ValuesIn(Geometries()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace hearth
