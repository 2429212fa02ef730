// Compares an engine on a device, whose results come late, with an engine on the CPU: tokens,
// callbacks and their order, failures and cancellation. The device returns the ids of greedy tokens
// instead of logits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "tests/support/late_device.h"
#include "tests/worker/engine/engine_harness.h"
#include "worker/device/open_device.h"

namespace hearth {
namespace {

const std::string& DeviceDir() {
  static const std::string* const dir = [] {
    TinyGeometry geometry;
    geometry.layer_types = "lg";
    geometry.window = 24;
    geometry.bfloat16 = true;
    return new std::string(NewTinyCheckpoint(geometry, "engine_device"));
  }();
  return *dir;
}

// An engine on the CPU, or on a LateDevice.
struct DeviceWorker {
  explicit DeviceWorker(bool on_device, uint64_t kv_bytes = 0) {
    EngineOptions options = InvariantOptions(1);
    options.device = on_device ? kEmulatedDevice : "cpu";
    options.memory.kv_bytes = kv_bytes;
    options.memory.pool_bytes = kv_bytes > 0 ? 0 : kPoolBytes;
    ReplaceEmulatedDevice([this] { return device = std::make_shared<LateDevice>(); });
    engine = std::make_unique<TestWorker>(DeviceDir(), options, nullptr, /*with_cache=*/false);
    ReplaceEmulatedDevice(nullptr);
    if (on_device) device->copied_bytes = 0;
  }
  std::shared_ptr<LateDevice> device;
  std::unique_ptr<TestWorker> engine;
};

EngineRequest DeviceRequest(uint32_t tokens, uint64_t seed, uint32_t speculate = 0) {
  EngineRequest request = Request(Prompt(20 + seed, seed), {}, tokens);
  request.speculate = speculate;
  request.cache = CacheMode::kOff;
  return request;
}

uint64_t BytesOfLogits(const DeviceWorker& worker, uint64_t rows) {
  return rows * sizeof(float) * static_cast<uint64_t>((*worker.engine)->config().vocab_size);
}

TEST(EngineOnDevice, GreedyTokensNeedNoLogits) {
  DeviceWorker cpu(false), device(true);
  for (const uint32_t speculate : {0u, 15u}) {
    device.device->copied_bytes = 0;
    // a text with repetitions, so that guesses are right
    EngineRequest request = DeviceRequest(40, 1, speculate);
    for (int i = 0; i < 30; ++i) request.token_ids.push_back(7 + i % 3);
    const auto want = cpu.engine->Run(request), got = device.engine->Run(request);
    EXPECT_EQ(got->tokens, want->tokens);
    EXPECT_EQ(got->finished.accepted_tokens, want->finished.accepted_tokens);
    EXPECT_EQ(got->finished.first_logits_sha256, want->finished.first_logits_sha256);
    EXPECT_LT(device.device->copied_bytes, BytesOfLogits(device, 2));
  }
}

TEST(EngineOnDevice, OtherRequestsUseLogits) {
  DeviceWorker cpu(false), device(true);
  std::vector<EngineRequest> requests(5, DeviceRequest(12, 2));
  requests[0].sampling.temperature = 1;
  requests[1].sampling.rules.repetition_penalty = 1.5;
  requests[2].sampling.report_logprobs = true;
  requests[3].hash_logits = true;
  requests[4].search.beams = 3;
  for (const EngineRequest& request : requests) {
    device.device->copied_bytes = 0;
    const auto want = cpu.engine->Run(request), got = device.engine->Run(request);
    EXPECT_EQ(got->tokens, want->tokens);
    EXPECT_EQ(got->finished.samples[0].logits_sha256, want->finished.samples[0].logits_sha256);
    EXPECT_GE(device.device->copied_bytes, BytesOfLogits(device, 11));
  }
}

}  // namespace
}  // namespace hearth
