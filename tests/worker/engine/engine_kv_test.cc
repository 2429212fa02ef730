// The engine with each KV strategy (dynamic, static, quantized, offloaded), on the CPU kernels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/support/test_folder.h"
#include "tests/worker/engine/engine_harness.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

constexpr char kFourBits[] = "bits=4,group=16,residual=16";

const std::string& Dir() { return ModelDir(Geometries()[1].geometry); }

EngineOptions Options(const std::string& cache = "", const std::string& quantization = "") {
  EngineOptions options = InvariantOptions();
  options.kv = {cache, quantization};
  return options;
}

EngineRequest AskFor(const std::string& cache, const std::string& quantization = "",
                     uint32_t max_new_tokens = 40) {
  EngineRequest request = Request(Prompt(70), {}, max_new_tokens);
  request.requested_kv = {cache, quantization};
  return request;
}

// Returns the number of KV blocks allocated between the first and last token of a request.
uint64_t TakenWhileDecoding(TestWorker* worker, const EngineRequest& request,
                            std::vector<int32_t>* tokens) {
  Collector collector;
  uint64_t first = 0, last = 0;
  collector.on_token = [&](size_t number) {
    last = (*worker)->Stats().kv_blocks_taken;
    if (number == 0) first = last;
    return true;
  };
  worker->Submit(request, &collector);
  collector.WaitAll();
  EXPECT_TRUE(collector.error.ok()) << collector.error;
  *tokens = collector.tokens;
  return last - first;
}

TEST(EngineKv, StaticRequestDecodesWithoutAllocation) {
  TestWorker worker(Dir(), Options());
  std::vector<int32_t> want, tokens;
  EngineRequest dynamic = AskFor("");
  dynamic.cache = CacheMode::kOff;
  EXPECT_GT(TakenWhileDecoding(&worker, dynamic, &want), 0u);
  for (const CacheMode cache : {CacheMode::kOff, CacheMode::kDefault, CacheMode::kDefault}) {
    // Run uncached, then with a new cache, then from the pool.
    EngineRequest request = AskFor("static");
    request.cache = cache;
    EXPECT_EQ(TakenWhileDecoding(&worker, request, &tokens), 0u);
    EXPECT_EQ(tokens, want);
  }
  EXPECT_EQ(worker.Counter("pool_hits"), 1u);
}

TEST(EngineKv, FinishedRequestReportsKvStrategy) {
  TestWorker worker(Dir(), Options("static"));
  EXPECT_EQ(worker.Run(AskFor(""))->finished.kv.strategy, KvStrategy::kStatic);
  EXPECT_EQ(worker.Run(AskFor("dynamic"))->finished.kv.strategy, KvStrategy::kDynamic);
}

TEST(EngineKv, QuantizedRestoreEqualsUncachedRun) {
  const EngineOptions options = Options("quantized", kFourBits);
  TestWorker cold(Dir(), options, nullptr, /*with_cache=*/false);
  EngineRequest request = AskFor("");
  request.hash_logits = true;
  EngineRequest uncached = request;
  uncached.cache = CacheMode::kOff;
  const auto want = cold.Run(uncached);
  ASSERT_TRUE(want->error.ok()) << want->error;
  TestWorker first(Dir(), options);
  first.Run(request);
  const auto pooled = first.Run(request);
  EXPECT_EQ(pooled->started.source_tier, Tier::kWorker);
  EXPECT_GE(pooled->started.cached_tokens, 64u);
  TestWorker second(Dir(), options, first.cache());
  const auto stored = second.Run(request);
  EXPECT_GE(stored->started.cached_tokens, 64u);
  EXPECT_GT(stored->started.source_tier, Tier::kWorker);
  for (const auto* run : {&pooled, &stored}) {
    EXPECT_EQ((*run)->tokens, want->tokens);
    EXPECT_EQ((*run)->finished.samples[0].logits_sha256, want->finished.samples[0].logits_sha256);
  }
  // Quantized KV has a different fingerprint, fewer bytes and different bits.
  TestWorker plain(Dir(), Options(), nullptr, /*with_cache=*/false);
  EXPECT_NE(plain->fingerprint().digest(), cold->fingerprint().digest());
  EXPECT_EQ(cold->fingerprint().Layout()->quantization.bits, 4u);
  const auto dynamic = plain.Run(uncached);
  EXPECT_NE(dynamic->finished.samples[0].logits_sha256, want->finished.samples[0].logits_sha256);
  EXPECT_LT(want->finished.kv_bytes, dynamic->finished.kv_bytes * 2 / 3);
}

TEST(EngineKv, DifferentQuantizationBypassesTheCache) {
  TestWorker quantized(Dir(), Options("quantized", kFourBits)), plain(Dir(), Options());
  const auto want = quantized.Run(AskFor(""));
  for (int again = 0; again < 2; ++again) {
    EngineRequest request = AskFor("quantized", kFourBits);
    ASSERT_TRUE(plain->Complete(&request).ok());
    EXPECT_EQ(request.cache, CacheMode::kOff);
    const auto run = plain.Run(request);
    EXPECT_EQ(run->tokens, want->tokens);
    EXPECT_EQ(run->started.cached_tokens, 0u);
    EXPECT_EQ(run->finished.kv.strategy, KvStrategy::kQuantized);
  }
  EXPECT_EQ(plain.Counter("pool_inserts"), 0u);
  // A static request on the quantized worker bypasses the cache, too.
  EXPECT_EQ(quantized.Run(AskFor("static"))->started.cached_tokens, 0u);
}

TEST(EngineKv, OffloadedRunsAsDynamic) {
  EngineOptions options = Options();
  options.memory.kv_offload_bytes = 1 << 20;
  TestWorker worker(Dir(), options);
  EXPECT_THAT(worker->warnings(),
              testing::ElementsAre(HasSubstr("--kv-offload-bytes has no effect")));
  EngineRequest request = AskFor("dynamic");
  request.hash_logits = true;
  const auto want = worker.Run(request);
  for (const auto& [cache, kept] : {std::make_pair("offloaded", KvStrategy::kDynamic),
                                    std::make_pair("offloaded_static", KvStrategy::kStatic)}) {
    request.requested_kv.cache = cache;
    const auto run = worker.Run(request);
    ASSERT_TRUE(run->error.ok()) << run->error;
    EXPECT_EQ(run->finished.samples[0].logits_sha256, want->finished.samples[0].logits_sha256);
    EXPECT_GT(run->started.cached_tokens, 0u);
    EXPECT_EQ(run->finished.kv.strategy, kept);
  }
}

TEST(EngineKv, EveryKvCacheKindServesSeveralAnswers) {
  TestWorker worker(Dir(), Options());
  for (const char* cache : {"dynamic", "static", "quantized", "offloaded", "offloaded_static"}) {
    EngineRequest request = AskFor(cache, cache[0] == 'q' ? kFourBits : "");
    request.samples = 3;
    request.sampling.temperature = 1;
    request.sampling.seed = 7;
    const auto together = worker.Run(request);
    ASSERT_TRUE(together->error.ok()) << together->error;
    EXPECT_EQ(together->finished.generated_tokens, 120u) << cache;
    EXPECT_EQ((*worker.operator->()).Stats().kv_blocks_taken > 0, true);
  }
}

TEST(EngineKv, InvalidKvOptionIsRefused) {
  TestWorker worker(Dir(), Options());
  const auto refused = [&](const char* cache, const char* quantization) {
    EngineRequest request = AskFor(cache, quantization);
    const absl::Status status = worker->Complete(&request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refused("paged", ""), HasSubstr("kv_cache: must be one of dynamic, static"));
  EXPECT_THAT(refused("static", "bits=4"), HasSubstr("quantized; kv_cache is static"));
  EXPECT_THAT(refused("quantized", "bits=4"),
              HasSubstr("group: 64 does not divide a chunk's tokens, 16"));
  EXPECT_THAT(refused("quantized", "group=16,residual=128"), HasSubstr("--chunk-tokens"));
}

TEST(EngineKv, StaticKvNeedsInvariantClass) {
  TestWorker worker(Dir());
  EngineRequest request = AskFor("static");
  EXPECT_THAT(std::string(worker->Complete(&request).message()),
              HasSubstr("static needs exactness invariant; this worker uses exact"));
  EngineOptions options = TestWorker::SmallOptions();
  options.kv.cache = "static";
  options.model_dir = Dir();
  EXPECT_THAT(std::string(Engine::Create(options).status().message()),
              HasSubstr("kv-cache: static needs exactness invariant"));
}

// Returns a copy of the checkpoint with `json` as its generation_config.json.
std::string DirSaying(const TestFolder& folder, const std::string& json) {
  const std::string dir = folder.path() + "/model";
  std::filesystem::remove_all(dir);
  std::filesystem::copy(Dir(), dir, std::filesystem::copy_options::recursive);
  std::ofstream(dir + "/generation_config.json") << json;
  return dir;
}

TEST(EngineKv, RequestOptionOverridesFlagAndModel) {
  const TestFolder folder;
  const std::string dir = DirSaying(folder, R"({"cache_implementation": "static"})");
  EXPECT_EQ(TestWorker(dir, Options()).Run(AskFor(""))->finished.kv.strategy, KvStrategy::kStatic);
  TestWorker told(dir, Options("dynamic"));
  EXPECT_EQ(told.Run(AskFor(""))->finished.kv.strategy, KvStrategy::kDynamic);
  EXPECT_EQ(told.Run(AskFor("static"))->finished.kv.strategy, KvStrategy::kStatic);
  EngineOptions unknown = Options();
  unknown.model_dir = DirSaying(folder, R"({"cache_implementation": "mamba"})");
  EXPECT_THAT(std::string(Engine::Create(unknown).status().message()), HasSubstr("got \"mamba\""));
}

// Training guides set use_cache to false, which may be saved in either config file of a checkpoint.
TEST(EngineKv, CheckpointUseCacheFalseIsIgnored) {
  const TestFolder folder;
  const std::string dir = DirSaying(folder, R"({"use_cache": false})");
  std::ifstream file(dir + "/config.json");
  nlohmann::json config = nlohmann::json::parse(file);
  config["use_cache"] = false;
  std::ofstream(dir + "/config.json") << config;
  TestWorker worker(dir, Options());
  const EngineRequest request = AskFor("");
  const auto computed = worker.Run(request);
  EXPECT_GT(worker.Counter("pool_inserts"), 0u);
  const auto restored = worker.Run(request);
  EXPECT_GT(restored->started.cached_tokens, 0u);
  EXPECT_EQ(restored->tokens, computed->tokens);
}

}  // namespace
}  // namespace hearth
