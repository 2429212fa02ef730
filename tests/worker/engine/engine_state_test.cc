// Saved states: an inference that is saved and resumed on another worker continues as on one
// worker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "proto/snapshot_format.h"
#include "tests/support/test_folder.h"
#include "tests/support/tiny_adapter.h"
#include "tests/worker/engine/engine_harness.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kHalf = 8;

TestWorker NewWorker(const NamedGeometry& geometry, EngineOptions options = InvariantOptions()) {
  return TestWorker(ModelDir(geometry.geometry), options, nullptr, /*with_cache=*/false);
}

EngineRequest Asked(bool sampled, uint32_t max_new_tokens, size_t prompt = 101) {
  EngineRequest request = Request(Prompt(prompt), {}, max_new_tokens);
  if (!sampled) return request;
  request.sampling.temperature = 1.3F;
  request.sampling.top_p = 0.95F;
  request.sampling.seed = 41;
  return request;
}

// Returns the snapshot of all tokens except the last, as in a saved state.
absl::StatusOr<std::string> Snapshot(TestWorker* worker, const EngineRequest& request,
                                     const std::vector<int32_t>& answer) {
  EngineRequest all = request;
  all.token_ids.insert(all.token_ids.end(), answer.begin(), answer.end());
  all.token_ids.pop_back();
  all.max_new_tokens = 0;
  all.cache = CacheMode::kRead;
  Collector collector;
  EngineCallbacks callbacks = collector.Callbacks(/*writes=*/false);
  absl::StatusOr<std::string> file;
  callbacks.on_snapshot = [&](const SnapshotMaker& make) { file = make(); };
  EXPECT_TRUE((*worker)->Submit(all, std::move(callbacks)).ok());
  collector.WaitEnd();
  if (!collector.error.ok()) return collector.error;
  return file;
}

// Changes bytes of the snapshot's first slice, and updates the digests.
std::string Forged(std::string file, const std::function<void(char* slice, size_t bytes)>& forge) {
  const SnapshotHeader header = ParseSnapshotHeader(file).value();
  Manifest manifest = header.manifest;
  const size_t bytes = header.layout.SliceBytes(manifest.objects[0].id.tokens);
  char* const slice = &file[header.slice_offsets[0]];
  forge(slice, bytes);
  manifest.objects[0].slice_digests[0] = SliceDigest(slice, bytes);
  const std::string sealed = BuildSnapshotHeader(header.fingerprint, manifest).value();
  return file.replace(0, sealed.size(), sealed);
}

EngineRequest GoOn(EngineRequest request, const std::vector<int32_t>& answer) {
  request.token_ids.insert(request.token_ids.end(), answer.begin(), answer.end());
  request.first_draw = answer.size();
  return request;
}

TEST(EngineStates, ResumedStateContinuesExactly) {
  for (const NamedGeometry& geometry : Geometries()) {
    TestWorker first = NewWorker(geometry), whole = NewWorker(geometry);
    for (const bool sampled : {false, true}) {
      SCOPED_TRACE(std::string(geometry.name) + (sampled ? " sampled" : " greedy"));
      const auto in_one_go = whole.Run(Asked(sampled, 2 * kHalf));
      const auto begun = first.Run(Asked(sampled, kHalf));
      const auto file = Snapshot(&first, Asked(sampled, kHalf), begun->tokens);
      ASSERT_TRUE(file.ok()) << file.status();
      EXPECT_TRUE(VerifySnapshotFile(*file).ok());
      TestWorker second = NewWorker(geometry);
      const auto adapter = second->AddSnapshot("default", *file);
      ASSERT_TRUE(adapter.ok()) << adapter.status();
      EXPECT_EQ(*adapter, "");
      const EngineRequest rest = GoOn(Asked(sampled, kHalf), begun->tokens);
      const auto gone_on = second.Run(rest);
      EXPECT_EQ(gone_on->started.cached_tokens, rest.token_ids.size() - 1);
      std::vector<int32_t> both = begun->tokens;
      both.insert(both.end(), gone_on->tokens.begin(), gone_on->tokens.end());
      EXPECT_EQ(both, in_one_go->tokens);
      TestWorker cold = NewWorker(geometry);
      EXPECT_EQ(gone_on->finished.first_logits_sha256,
                cold.Run(rest)->finished.first_logits_sha256);
    }
  }
}

TEST(EngineStates, FirstDrawChangesTheTokens) {
  TestWorker worker = NewWorker(Geometries()[0]);
  EngineRequest request = Asked(/*sampled=*/true, 16);
  const auto from_zero = worker.Run(request);
  request.first_draw = 8;
  EXPECT_NE(worker.Run(request)->tokens, from_zero->tokens);
}

TEST(EngineStates, RestoredStateSavesEqualBytes) {
  TestWorker warm = NewWorker(Geometries()[0]);
  EngineOptions no_pool = InvariantOptions();
  no_pool.memory.pool_bytes = 0;
  TestWorker cold = NewWorker(Geometries()[0], no_pool);
  const EngineRequest request = Asked(false, kHalf);
  const auto begun = warm.Run(request);
  const auto restored = Snapshot(&warm, request, begun->tokens);
  const auto computed = Snapshot(&cold, request, begun->tokens);
  ASSERT_TRUE(restored.ok() && computed.ok()) << restored.status() << computed.status();
  EXPECT_EQ(*restored, *computed);
  const absl::Status refused = cold->AddSnapshot("default", *computed).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--pool-bytes"));
}

// The whole prompt is lent on the device, so the host has not all of its bytes.
TEST(EngineStates, LentStateSavesEqualBytes) {
  EngineOptions no_pool = InvariantOptions();
  no_pool.memory.pool_bytes = 0;
  TestWorker warm(ModelDir(Geometries()[0].geometry), no_pool);
  TestWorker cold = NewWorker(Geometries()[0], no_pool);
  const EngineRequest request = Asked(false, kHalf);
  const auto begun = warm.Run(request);
  warm.cache()->WaitForPublishes(2);
  warm.cache()->mangle = [&](FetchOutcome* outcome) { warm.cache()->Lend(outcome); };
  const auto lent = Snapshot(&warm, request, begun->tokens);
  const auto computed = Snapshot(&cold, request, begun->tokens);
  ASSERT_TRUE(lent.ok() && computed.ok()) << lent.status() << computed.status();
  EXPECT_EQ(*lent, *computed);
  EXPECT_EQ(warm.Counter("cached_tokens_host"), request.token_ids.size() + kHalf - 1);
}

TEST(EngineStates, StateBelongsToItsTenant) {
  TestWorker first = NewWorker(Geometries()[0]), second = NewWorker(Geometries()[0]);
  const auto begun = first.Run(Asked(false, kHalf));
  ASSERT_TRUE(
      second->AddSnapshot("mine", *Snapshot(&first, Asked(false, kHalf), begun->tokens)).ok());
  EngineRequest request = GoOn(Asked(false, kHalf), begun->tokens);
  EXPECT_EQ(second.Run(request)->started.cached_tokens, 0u);
  TestWorker third = NewWorker(Geometries()[0]);
  ASSERT_TRUE(
      third->AddSnapshot("mine", *Snapshot(&first, Asked(false, kHalf), begun->tokens)).ok());
  request.tenant = "mine";
  EXPECT_EQ(third.Run(request)->started.cached_tokens, request.token_ids.size() - 1);
}

TEST(EngineStates, RefusalNamesTheDifference) {
  TestWorker first = NewWorker(Geometries()[0]);
  const auto begun = first.Run(Asked(false, kHalf));
  const std::string file = *Snapshot(&first, Asked(false, kHalf), begun->tokens);
  const auto refusal = [&](TestWorker worker) {
    const absl::Status refused = worker->AddSnapshot("default", file).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    return std::string(refused.message());
  };
  EXPECT_THAT(refusal(NewWorker(Geometries()[1])), HasSubstr("model config field"));
  EngineOptions other = InvariantOptions();
  other.weights = WeightsChoice::kQ8_0;
  other.arithmetic = ArithmeticChoice::kFloat32;
  EXPECT_THAT(refusal(NewWorker(Geometries()[0], other)), HasSubstr("model config field weights"));
  const SnapshotHeader header = ParseSnapshotHeader(file).value();
  std::vector<FingerprintField> fields(header.fingerprint.fields().begin(),
                                       header.fingerprint.fields().end());
  for (FingerprintField& field : fields) {
    if (field.name == "kv_dtype") field.value = std::string("bfloat16");
  }
  const Fingerprint halved = Fingerprint::Create(fields).value();
  Manifest manifest = header.manifest;
  manifest.fingerprint = halved.digest();
  const absl::Status dtype =
      first->AddSnapshot("default", BuildSnapshotHeader(halved, manifest).value()).status();
  EXPECT_EQ(dtype.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(dtype.message()),
              HasSubstr("dtype (model config field kv_dtype) differs"));
}

TEST(EngineStates, AdapterStateNeedsEqualAdapter) {
  const TinyGeometry& geometry = Geometries()[0].geometry;
  const TestFolder legal, medical;
  WriteTinyAdapter(geometry, 8, legal.path());
  WriteTinyAdapter(geometry, 9, medical.path());
  const auto with = [&](std::map<std::string, std::string> adapters) {
    EngineOptions options = InvariantOptions();
    options.adapters = std::move(adapters);
    return NewWorker(Geometries()[0], options);
  };
  TestWorker first = with({{"legal", legal.path()}});
  EngineRequest request = Asked(false, kHalf);
  request.adapter = "legal";
  const auto begun = first.Run(request);
  const std::string file = *Snapshot(&first, request, begun->tokens);
  TestWorker second = with({{"law", legal.path()}, {"medical", medical.path()}});
  EXPECT_EQ(second->AddSnapshot("default", file).value(), "law");
  TestWorker third = with({{"legal", medical.path()}});
  const absl::Status refused = third->AddSnapshot("default", file).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("adapter differs"));
}

TEST(EngineStates, StateWithDifferentBytesIsRefused) {
  TestWorker first = NewWorker(Geometries()[0]);
  const auto begun = first.Run(Asked(false, kHalf));
  const std::string file = *Snapshot(&first, Asked(false, kHalf), begun->tokens);
  std::string damaged = file;
  damaged[ParseSnapshotHeader(file)->slice_offsets[0]] ^= 1;
  EXPECT_EQ(first->AddSnapshot("default", damaged).status().code(), absl::StatusCode::kDataLoss);
  const std::string forged = Forged(file, [](char* slice, size_t) { *slice ^= 1; });
  const absl::Status refused = first->AddSnapshot("default", forged).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("KV differs"));
}

// If such a state were restored, every request that uses it would fail with non-finite logits.
TEST(EngineStates, StateWithNanIsRefused) {
  for (const KvDtypeChoice dtype : {KvDtypeChoice::kFloat32, KvDtypeChoice::kBFloat16}) {
    EngineOptions options = InvariantOptions();
    options.kv_dtype = dtype;
    TestWorker first = NewWorker(Geometries()[0], options);
    TestWorker second = NewWorker(Geometries()[0], options);
    const auto begun = first.Run(Asked(false, kHalf));
    const std::string file = *Snapshot(&first, Asked(false, kHalf), begun->tokens);
    const size_t value_bytes = KvDtypeBytes(first->layout().dtype);
    const std::string forged =
        Forged(file, [&](char* slice, size_t) { std::memset(slice, 0xff, value_bytes); });
    const absl::Status refused = second->AddSnapshot("default", forged).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("not finite"));
    EXPECT_TRUE(second->AddSnapshot("default", file).ok());
  }
}

// Restored chunks that leave the window belong to the pool and must not be overwritten.
TEST(EngineStates, StaticRequestLeavesStateUnchanged) {
  for (const NamedGeometry& geometry : Geometries()) {
    SCOPED_TRACE(geometry.name);
    TestWorker first = NewWorker(geometry), second = NewWorker(geometry);
    const auto begun = first.Run(Asked(false, kHalf));
    ASSERT_TRUE(
        second->AddSnapshot("default", *Snapshot(&first, Asked(false, kHalf), begun->tokens)).ok());
    EngineRequest rest = GoOn(Asked(false, 60), begun->tokens);
    rest.cache = CacheMode::kRead;
    const auto want = NewWorker(geometry).Run(rest);
    for (const char* cache : {"static", "offloaded_static", "dynamic"}) {
      rest.requested_kv.cache = cache;
      const auto run = second.Run(rest);
      EXPECT_EQ(run->started.cached_tokens, rest.token_ids.size() - 1) << cache;
      EXPECT_EQ(run->tokens, want->tokens) << cache;
      EXPECT_EQ(run->finished.first_logits_sha256, want->finished.first_logits_sha256) << cache;
    }
  }
}

// The state's values are so large that sums overflow.
TEST(EngineStates, StateGivingInfiniteLogitsIsForgotten) {
  TestWorker first = NewWorker(Geometries()[0]), second = NewWorker(Geometries()[0]);
  const auto begun = first.Run(Asked(false, kHalf));
  const std::string forged =
      Forged(*Snapshot(&first, Asked(false, kHalf), begun->tokens), [](char* slice, size_t bytes) {
        const std::vector<float> huge(bytes / sizeof(float), 3e38F);
        std::memcpy(slice, huge.data(), bytes);
      });
  ASSERT_TRUE(second->AddSnapshot("default", forged).ok());
  const EngineRequest rest = GoOn(Asked(false, kHalf), begun->tokens);
  Collector ended;
  second.Submit(rest, &ended);
  ended.WaitEnd();
  EXPECT_EQ(ended.error.code(), absl::StatusCode::kInternal) << ended.error;
  const auto computed = second.Run(rest);
  EXPECT_TRUE(computed->error.ok()) << computed->error;
  EXPECT_EQ(computed->started.cached_tokens, 0u);
}

TEST(EngineStates, StateNeedsInvariantClass) {
  TestWorker exact(ModelDir(Geometries()[0].geometry), TestWorker::SmallOptions(), nullptr,
                   /*with_cache=*/false);
  const absl::Status refused = Snapshot(&exact, Asked(false, kHalf), {2, 3}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("class exact"));
}

}  // namespace
}  // namespace hearth
