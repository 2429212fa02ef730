// Audits: an idle engine recomputes prefixes that came from a cache, and quarantines wrong
// prefixes.

#include "worker/engine/engine_audit.h"

#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/worker/engine/engine_harness.h"
#include "worker/engine/runner/model_fingerprint.h"
#include "worker/model/torch/gemma.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

const std::string& AuditDir() { return ModelDir(Geometries()[2].geometry); }

EngineOptions Auditing(double rate) {
  EngineOptions options = TestWorker::SmallOptions();
  options.cache.audit_rate = rate;
  options.memory.pool_bytes = 0;
  return options;
}

PrefixRequest PrefixOf(const std::vector<int32_t>& prompt, uint32_t boundary) {
  PrefixRequest prefix;
  prefix.token_ids.assign(prompt.begin(), prompt.begin() + boundary);
  prefix.tenant = "default";
  return prefix;
}

// Waits until the worker has finished or skipped `audits` audits.
void WaitForAudits(TestWorker* worker, uint64_t audits) {
  while (worker->Counter("audits") + worker->Counter("audits_skipped") < audits) {
    std::this_thread::yield();
  }
}

TEST(EngineAuditTest, CorrectObjectsAreNotQuarantined) {
  TestWorker publisher(AuditDir());
  publisher.Run(Request(Prompt(100)));
  TestWorker worker(AuditDir(), Auditing(1), publisher.cache());
  EXPECT_EQ(worker.Run(Request(Prompt(100)))->started.cached_tokens, 96u);
  WaitForAudits(&worker, 1);
  EXPECT_EQ(worker.Counter("audits"), 1u);
  EXPECT_EQ(worker.Counter("audits_wrong"), 0u);
  EXPECT_THAT(publisher.cache()->quarantined(), IsEmpty());
}

TEST(EngineAuditTest, QuantizedChunksPassTheAudit) {
  EngineOptions options = InvariantOptions();
  options.kv = {"quantized", "bits=4,group=16"};
  TestWorker publisher(AuditDir(), options);
  publisher.Run(Request(Prompt(100)));
  options.cache.audit_rate = 1;
  options.memory.pool_bytes = 0;
  TestWorker worker(AuditDir(), options, publisher.cache());
  EXPECT_GE(worker.Run(Request(Prompt(100)))->started.cached_tokens, 96u);
  WaitForAudits(&worker, 1);
  EXPECT_EQ(worker.Counter("audits"), 1u);
  EXPECT_EQ(worker.Counter("audits_wrong"), 0u);
}

TEST(EngineAuditTest, OnlyWrongObjectIsQuarantined) {
  TestWorker publisher(AuditDir());
  publisher.Run(Request(Prompt(100)));
  const ObjectId poisoned{32, 16, LayerGroup::kGlobal};
  publisher.cache()->Poison(PrefixOf(Prompt(100), 96), poisoned);
  EngineOptions options = Auditing(1);
  options.memory.pool_bytes = kPoolBytes;
  TestWorker worker(AuditDir(), options, publisher.cache());
  EXPECT_EQ(worker.Run(Request(Prompt(100)))->started.cached_tokens, 96u);
  while (worker.Counter("audits_quarantined") == 0) std::this_thread::yield();
  EXPECT_EQ(worker.Counter("audits_wrong"), 1u);
  EXPECT_THAT(publisher.cache()->quarantined(), ElementsAre(poisoned));
  EXPECT_EQ(worker->Stats().pool_bytes, 0u) << "other prefixes of this cache may be wrong too";
}

TEST(EngineAuditTest, AuditRateSetsAuditedFraction) {
  TestWorker publisher(AuditDir());
  publisher.Run(Request(Prompt(100)));
  TestWorker worker(AuditDir(), Auditing(0.25), publisher.cache());
  for (int i = 0; i < 8; ++i) worker.Run(Request(Prompt(100)));
  WaitForAudits(&worker, 2);
  for (int i = 0; i < 3; ++i) worker.Run(Request(Prompt(100)));
  EXPECT_EQ(worker.Counter("audits") + worker.Counter("audits_skipped"), 2u);
  TestWorker never(AuditDir(), Auditing(0), publisher.cache());
  never.Run(Request(Prompt(100)));
  EXPECT_EQ(never.Counter("audits"), 0u);
}

TEST(EngineAuditTest, MissingPrefixSkipsTheAudit) {
  TestWorker publisher(AuditDir());
  publisher.Run(Request(Prompt(100)));
  TestWorker worker(AuditDir(), Auditing(1), publisher.cache());
  EngineRequest reading = Request(Prompt(100));
  reading.cache = CacheMode::kRead;
  Collector collector;
  collector.on_token = [&](size_t) {
    publisher.cache()->Clear();
    return true;
  };
  worker.Submit(reading, &collector);
  collector.WaitEnd();
  WaitForAudits(&worker, 1);
  EXPECT_EQ(worker.Counter("audits_skipped"), 1u);
  EXPECT_EQ(worker.Counter("audits_wrong"), 0u);
}

TEST(EngineAuditTest, AuditsDoNotChangeAnswers) {
  TestWorker publisher(AuditDir());
  const auto cold = publisher.Run(Request(Prompt(100)));
  TestWorker worker(AuditDir(), Auditing(1), publisher.cache());
  for (int i = 0; i < 10; ++i) {
    const auto warm = worker.Run(Request(Prompt(100)));
    ASSERT_TRUE(warm->error.ok());
    EXPECT_EQ(warm->finished.first_logits_sha256, cold->finished.first_logits_sha256);
  }
  worker->Drain(absl::InfiniteFuture());
}

TEST(EngineAuditTest, InvalidAuditRateIsRefused) {
  for (const double rate : {-0.1, 1.5, std::nan("")}) {
    EngineOptions options = Auditing(rate);
    options.model_dir = AuditDir();
    EXPECT_EQ(options.Validate().code(), absl::StatusCode::kInvalidArgument) << rate;
  }
}

// Compares two KV caches of 40 rows. `change` changes the first global key of the second cache.
std::vector<ObjectId> Compared(Exactness exactness, const std::function<void(float*)>& change) {
  const auto gemma = Gemma::Load(AuditDir(), {});
  const KvLayout layout = LayoutOf((*gemma)->config(), KvDtype::kFloat32, 16, exactness);
  constexpr int kRows = 40;
  const auto filled = [&](bool changed) {
    absl::StatusOr<KvCache> kv = (*gemma)->NewKvCache(kRows);
    kv->BeginRestore(kRows);
    for (int layer = 0; layer < kv->num_layers(); ++layer) {
      std::vector<float> rows(layout.SliceBytes(kRows) / sizeof(float), 1.0F);
      const bool global = layout.layers[layer] == LayerGroup::kGlobal;
      if (changed && global) change(rows.data());
      kv->CopyIn(layer, kv->first_held(layer), kRows, 0, kRows,
                 reinterpret_cast<const std::byte*>(rows.data()));
    }
    kv->FinishRestore(kRows);
    return *std::move(kv);
  };
  return DifferingObjects(layout, kRows, filled(false), filled(true));
}

TEST(AuditComparison, ExactClassComparesEveryBit) {
  EXPECT_THAT(Compared(Exactness::kExact, [](float*) {}), IsEmpty());
  EXPECT_THAT(Compared(Exactness::kExact, [](float* row) { *row = std::nextafter(1.0F, 2.0F); }),
              ElementsAre(ObjectId{0, 16, LayerGroup::kGlobal}));
}

TEST(AuditComparison, PortableClassToleratesRounding) {
  const auto portable = [](const std::function<void(float*)>& change) {
    return Compared(Exactness::kPortable, change);
  };
  EXPECT_THAT(portable([](float* row) { *row = 1.01F; }), IsEmpty());
  const auto first = ElementsAre(ObjectId{0, 16, LayerGroup::kGlobal});
  EXPECT_THAT(portable([](float* row) { *row = 3.0F; }), first);
  EXPECT_THAT(portable([](float* row) { *row = std::nanf(""); }), first);
  EXPECT_THAT(portable([](float* row) { *row = std::numeric_limits<float>::infinity(); }), first);
}

}  // namespace
}  // namespace hearth
