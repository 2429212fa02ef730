// The engine with KV strategies on the emulated device: offloaded requests, and requests that are
// offloaded because the device has too little memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/worker/engine/engine_harness.h"
#include "worker/device/emulated_device.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

const std::string& Dir() {
  static const std::string* const dir = [] {
    TinyGeometry geometry;
    geometry.layer_types = "lggggg";
    geometry.window = 24;
    geometry.bfloat16 = true;
    return new std::string(NewTinyCheckpoint(geometry, "device_kv"));
  }();
  return *dir;
}

EngineOptions OnDevice(const std::string& cache = "") {
  EngineOptions options = InvariantOptions();
  options.device = "emulated";
  options.kv.cache = cache;
  return options;
}
EngineOptions OnCpu() {
  EngineOptions options = InvariantOptions();
  options.device = "cpu";
  return options;
}

EngineRequest AskFor(const std::string& cache, uint32_t max_new_tokens = 24, uint64_t seed = 1) {
  EngineRequest request = Request(Prompt(90, seed), {}, max_new_tokens);
  request.requested_kv.cache = cache;
  request.hash_logits = true;
  return request;
}

void ExpectSame(const Collector& run, const Collector& want) {
  ASSERT_TRUE(run.error.ok()) << run.error;
  EXPECT_EQ(run.tokens, want.tokens);
  EXPECT_EQ(run.finished.samples[0].logits_sha256, want.finished.samples[0].logits_sha256);
}

TEST(DeviceKvEngineTest, OffloadedRequestsEqualResident) {
  TestWorker worker(Dir(), OnDevice());
  const auto want = worker.Run(AskFor(""));
  EXPECT_EQ(want->finished.kv.strategy, KvStrategy::kDynamic);
  for (const char* cache : {"offloaded", "offloaded_static"}) {
    for (const CacheMode mode : {CacheMode::kOff, CacheMode::kDefault}) {
      EngineRequest request = AskFor(cache);
      request.cache = mode;
      const auto run = worker.Run(request);
      ExpectSame(*run, *want);
      EXPECT_EQ(run->finished.kv.strategy, KvStrategy::kOffloaded);
      EXPECT_EQ(run->started.cached_tokens, mode == CacheMode::kOff ? 0u : 80u);
    }
  }
  EXPECT_EQ(worker.Counter("kv_offloads"), 0u);
  EngineRequest samples = AskFor("");
  samples.samples = 3;
  samples.sampling.temperature = 1;
  const auto resident = worker.Run(samples);
  samples.requested_kv.cache = "offloaded";
  EXPECT_EQ(worker.Run(samples)->tokens, resident->tokens);
}

// Each worker restores a prefix that the other has computed.
void ExpectRestoresFromEachOther(TestWorker* device, TestWorker* cpu) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    TestWorker& first = seed == 1 ? *device : *cpu;
    TestWorker& second = seed == 1 ? *cpu : *device;
    const EngineRequest request = AskFor("", 24, seed);
    const auto want = first.Run(request);
    EXPECT_EQ(want->started.cached_tokens, 0u);
    const auto restored = second.Run(request);
    ExpectSame(*restored, *want);
    EXPECT_EQ(restored->started.cached_tokens, 80u);
    ExpectSame(*second.Run(request), *want);  // from the worker's pool
  }
}

TEST(DeviceKvEngineTest, OffloadedAndCpuRestoreFromEachOther) {
  TestWorker device(Dir(), OnDevice("offloaded")), cpu(Dir(), OnCpu(), device.cache());
  ExpectRestoresFromEachOther(&device, &cpu);
}

TEST(DeviceKvEngineTest, QuantizedAndCpuRestoreFromEachOther) {
  struct Case {
    const char* form;
    WeightsChoice weights = WeightsChoice::kAuto;
    ArithmeticChoice arithmetic = ArithmeticChoice::kAuto;
  };
  for (const Case& of :
       {Case{"bits=8,group=16"}, Case{"bits=4,group=16"}, Case{"bits=2,group=16"},
        Case{"bits=4,group=16", WeightsChoice::kQ8_0},
        Case{"bits=4,group=16", WeightsChoice::kAuto, ArithmeticChoice::kBFloat16}}) {
    EngineOptions on_device = OnDevice("quantized"), on_cpu = OnCpu();
    on_cpu.kv = {"quantized", of.form};
    on_device.kv.quantization = of.form;
    for (EngineOptions* options : {&on_device, &on_cpu}) {
      options->weights = of.weights;
      options->arithmetic = of.arithmetic;
    }
    TestWorker device(Dir(), on_device), cpu(Dir(), on_cpu, device.cache());
    EXPECT_EQ(device->fingerprint().digest(), cpu->fingerprint().digest());
    ExpectRestoresFromEachOther(&device, &cpu);
  }
}

// The pool shares the blocks to which a prefix was restored, so a later hit copies nothing.
TEST(DeviceKvEngineTest, RestoredPrefixStaysOnDevice) {
  TestWorker first(Dir(), OnDevice());
  EngineRequest request = AskFor("");
  const auto want = first.Run(request);
  request.cache = CacheMode::kRead;
  TestWorker second(Dir(), OnDevice(), first.cache());
  for (const Tier tier : {Tier::kHost, Tier::kWorker}) {
    const auto run = second.Run(request);
    ExpectSame(*run, *want);
    EXPECT_EQ(run->started.cached_tokens, 80u);
    EXPECT_EQ(run->started.source_tier, tier);
    EXPECT_GT(SettledKvBytes(&second, {80}), 0u);
  }
}

class Fallback : public testing::Test {
 protected:
  Fallback() : want_(TestWorker(Dir(), OnDevice(), nullptr, false).Run(AskFor("", 60))) {
    TestWorker worker(Dir(), OnDevice(), nullptr, false);
    chunk_bytes_ = ChunkBytes(*worker->fingerprint().Layout());
  }
  ~Fallback() override { EmulatedDevice::SetFull(false); }
  EngineOptions Room(uint64_t chunks, const std::string& cache = "") {
    EngineOptions options = OnDevice(cache);
    options.memory.kv_bytes = chunks * chunk_bytes_;
    options.memory.pool_bytes = 0;
    options.on_warning = [this](const std::string& text) { warnings_.push_back(text); };
    return options;
  }
  // Returns options for requests that cannot be offloaded any further: the host has no memory.
  EngineOptions WithoutHost(uint64_t chunks) {
    EngineOptions options = Room(chunks, "offloaded");
    options.memory.kv_offload_bytes = 1;
    return options;
  }
  void ExpectOffloaded(TestWorker* worker, const Collector& run) {
    ExpectSame(run, *want_);
    EXPECT_EQ(run.finished.kv.strategy, KvStrategy::kOffloaded);
    EXPECT_EQ(worker->Counter("kv_offloads"), 1u);
    EXPECT_EQ(worker->Counter("preemptions"), 0u);
    EXPECT_THAT(warnings_, testing::ElementsAre(HasSubstr("are offloaded to host memory")));
  }
  // Runs the requests: each is submitted at the first token of the previous one. When the last
  // sends its second token, the device gets full.
  static void RunUntilFull(TestWorker* worker, const std::vector<EngineRequest>& requests,
                           std::vector<std::unique_ptr<Collector>>* runs) {
    for (size_t i = 0; i < requests.size(); ++i) {
      runs->push_back(std::make_unique<Collector>());
      runs->back()->on_token = [=, &requests](size_t number) {
        const bool is_last = i + 1 == requests.size();
        if (number == 0 && !is_last) worker->Submit(requests[i + 1], (*runs)[i + 1].get());
        if (number == 1 && is_last) EmulatedDevice::SetFull(true);
        return true;
      };
    }
    worker->Submit(requests[0], runs->front().get());
    for (const auto& run : *runs) run->WaitAll();
  }

  const std::unique_ptr<Collector> want_;
  uint64_t chunk_bytes_ = 0;
  std::vector<std::string> warnings_;
};

TEST_F(Fallback, PromptAboveBudgetIsOffloaded) {
  for (const char* cache : {"", "static"}) {
    TestWorker worker(Dir(), Room(5, cache), nullptr, false);
    ExpectOffloaded(&worker, *worker.Run(AskFor("", 60)));
    warnings_.clear();
  }
}

TEST_F(Fallback, GrowingAnswerIsOffloaded) {
  TestWorker worker(Dir(), Room(8), nullptr, false);
  ExpectOffloaded(&worker, *worker.Run(AskFor("", 60)));
  EXPECT_THAT(warnings_, testing::ElementsAre(HasSubstr("; raise --kv-bytes")));
}

TEST_F(Fallback, FailedDeviceAllocationOffloads) {
  TestWorker worker(Dir(), Room(100), nullptr, false);
  std::vector<std::unique_ptr<Collector>> runs;
  RunUntilFull(&worker, {AskFor("", 60)}, &runs);
  ExpectOffloaded(&worker, *runs[0]);
  EXPECT_THAT(warnings_, testing::ElementsAre(HasSubstr(
                             "; lower --kv-bytes, or stop other programs that use the memory")));
}

TEST_F(Fallback, FullDeviceEvictsPoolFirst) {
  EngineOptions options = Room(100);
  options.memory.pool_bytes = kPoolBytes;
  TestWorker worker(Dir(), options, nullptr, false);
  worker.Run(AskFor("", 60, /*seed=*/2));  // the pool keeps its blocks
  std::vector<std::unique_ptr<Collector>> runs;
  RunUntilFull(&worker, {AskFor("", 60)}, &runs);
  ExpectSame(*runs[0], *want_);
  EXPECT_EQ(worker.Counter("kv_offloads"), 0u);
  EXPECT_EQ(worker.Counter("preemptions"), 0u);
  EXPECT_THAT(warnings_, testing::IsEmpty());
}

TEST_F(Fallback, FullDevicePreemptsYoungerRequest) {
  const std::vector<EngineRequest> requests = {AskFor("", 60), AskFor("", 60, /*seed=*/2)};
  TestWorker cpu(Dir(), OnCpu(), nullptr, false), worker(Dir(), WithoutHost(100), nullptr, false);
  std::vector<std::unique_ptr<Collector>> runs;
  RunUntilFull(&worker, requests, &runs);
  for (size_t i = 0; i < runs.size(); ++i) ExpectSame(*runs[i], *cpu.Run(requests[i]));
  EXPECT_EQ(worker.Counter("preemptions"), 1u);
  EXPECT_EQ(worker.Counter("kv_offloads"), 0u);
  EXPECT_THAT(warnings_, testing::ElementsAre(HasSubstr(
                             "; lower --kv-bytes, or stop other programs that use the memory")));
}

TEST_F(Fallback, FullDeviceFailsLoneRequest) {
  TestWorker worker(Dir(), WithoutHost(100), nullptr, false);
  std::vector<std::unique_ptr<Collector>> runs;
  RunUntilFull(&worker, {AskFor("", 60)}, &runs);
  EXPECT_EQ(runs[0]->error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(runs[0]->error.message()),
              HasSubstr("; lower --kv-bytes, or stop other programs that use the memory"));
  EmulatedDevice::SetFull(false);
  EXPECT_TRUE(worker.Run(AskFor("", 60))->error.ok());
}

TEST_F(Fallback, WithoutHostMemoryRequestIsRefused) {
  EngineOptions options = Room(5);
  options.memory.kv_offload_bytes = 1;
  TestWorker worker(Dir(), options, nullptr, false);
  const auto refused = worker.Run(AskFor("", 60));
  EXPECT_EQ(refused->error.code(), absl::StatusCode::kInvalidArgument) << refused->error;
  EXPECT_THAT(std::string(refused->error.message()), HasSubstr("kv-bytes: "));
  EXPECT_EQ(worker.Counter("kv_offloads"), 0u);
}

}  // namespace
}  // namespace hearth
