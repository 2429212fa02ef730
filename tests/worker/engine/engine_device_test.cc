// Compares an engine on a device, whose results come late, with an engine on the CPU: all callbacks
// in their order. If greedy tokens suffice, the device copies no logits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/blocking_counter.h"
#include "tests/support/late_device.h"
#include "tests/worker/engine/engine_harness.h"
#include "worker/engine/engine_impl.h"
#include "worker/engine/runner/invariant_runner.h"

namespace hearth {
namespace {

using Log = std::vector<std::string>;

// A request, and the indices of the tokens whose callbacks end or cancel it.
struct Asked {
  EngineRequest request;
  int stops_at = -1, cancels_at = -1;
};

Asked Greedy(uint32_t tokens, uint64_t seed, uint32_t speculate = 0) {
  Asked asked = {Request(Prompt(20 + seed, seed), {}, tokens)};
  asked.request.speculate = speculate;
  // a text with repetitions, so that guesses are right
  for (uint32_t i = 0; i < 2 * speculate; ++i) asked.request.token_ids.push_back(7 + i % 3);
  return asked;
}

class DeviceEngine {
 public:
  explicit DeviceEngine(bool on_device, uint64_t kv_bytes = uint64_t{1} << 30) {
    static const std::string* const dir = [] {
      TinyGeometry geometry;
      geometry.layer_types = "lg";
      geometry.window = 24;
      geometry.bfloat16 = true;
      return new std::string(NewTinyCheckpoint(geometry, "engine_device"));
    }();
    if (on_device) device = std::make_shared<LateDevice>();
    InvariantGemmaOptions of_model{1, 16, kv_bytes};
    of_model.device = device;
    EngineOptions options = TestWorker::SmallOptions();
    options.exactness = ExactnessChoice::kInvariant;
    options.memory.pool_bytes = kPoolBytes;
    options.max_running = 16;
    options.on_device_failure = [this](const std::string& text) {
      failure = text;
      has_failed.Notify();  // aborts if called twice
    };
    engine = std::make_unique<EngineImpl>(
        options,
        std::make_unique<InvariantRunner>(InvariantGemma::Load(*dir, of_model).value(), KvChoice(),
                                          std::vector<std::string>()),
        "");
    EXPECT_TRUE(engine->Start().ok());
  }

  // Runs requests that the engine admits in the same round. Returns their callbacks in order.
  Log Run(const std::vector<Asked>& all) {
    Log log;
    absl::Notification submitted;
    absl::BlockingCounter ended(static_cast<int>(all.size()));
    std::vector<std::shared_ptr<EngineRequestHandle>> handles(all.size());
    for (size_t i = 0; i < all.size(); ++i) {
      EngineCallbacks callbacks;
      callbacks.on_started = [&, i](const StartedInfo& info) {
        if (i == 0) submitted.WaitForNotification();
        log.push_back(absl::StrCat(i, " started at ", info.cached_tokens));
      };
      callbacks.on_token = [&, i, count = 0](const SampledToken& token) mutable {
        log.push_back(absl::StrCat(i, ".", token.sample, ": ", token.id));
        if (device != nullptr && device->is_running()) ++overlapped;
        if (count == all[i].cancels_at) handles[i]->Cancel();
        if (on_token != nullptr) on_token(count);
        return count++ != all[i].stops_at;
      };
      callbacks.on_finished = [&, i](const FinishedInfo& info) {
        log.push_back(absl::StrCat(i, " finished ", static_cast<int>(info.reason), " ",
                                   info.generated_tokens, " ", info.decode_steps, " ",
                                   info.accepted_tokens, " ", DigestHex(info.first_logits_sha256),
                                   " ", DigestHex(info.samples[0].logits_sha256)));
        ended.DecrementCount();
      };
      callbacks.on_error = [&, i](const absl::Status& status) {
        log.push_back(absl::StrCat(i, " failed: ", status.message()));
        ended.DecrementCount();
      };
      EngineRequest request = all[i].request;
      EXPECT_TRUE(engine->Complete(&request).ok());
      handles[i] = engine->Submit(request, callbacks).value();
    }
    submitted.Notify();
    ended.Wait();
    return log;
  }
  int Transfers(CopyWay way) const { return device->counts().transfers[static_cast<size_t>(way)]; }
  uint64_t BytesOfLogits(uint64_t rows) const {
    return rows * sizeof(float) * static_cast<uint64_t>(engine->config().vocab_size);
  }

  std::shared_ptr<LateDevice> device;  // null: the CPU computes
  absl::Notification has_failed;
  std::string failure;  // passed to on_device_failure
  std::unique_ptr<EngineImpl> engine;
  std::function<void(int)> on_token;  // called with the index of each token
  int overlapped = 0;                 // number of tokens that were sent while a step was running
};

TEST(EngineOnDevice, GreedyTokensNeedNoLogits) {
  DeviceEngine cpu(false), device(true);
  for (const uint32_t speculate : {0u, 15u}) {
    const uint64_t before = device.device->copied_bytes;
    EXPECT_EQ(device.Run({Greedy(40, 1, speculate)}), cpu.Run({Greedy(40, 1, speculate)}));
    EXPECT_LT(device.device->copied_bytes - before, device.BytesOfLogits(10));
  }
}

// If the device computes in Start, a token is sent before the next step is started.
TEST(EngineOnDevice, SynchronousDeviceStartsNoStepEarly) {
  EXPECT_FALSE(EmulatedDevice().is_asynchronous());
  DeviceEngine cpu(false), device(true);
  for (const bool is_late : {true, false}) {
    device.device->is_late = is_late;
    device.overlapped = 0;
    EXPECT_EQ(device.Run({Greedy(10, 1)}), cpu.Run({Greedy(10, 1)}));
    EXPECT_EQ(device.overlapped > 0, is_late);
  }
}

TEST(EngineOnDevice, OtherRequestsUseLogits) {
  DeviceEngine cpu(false), device(true);
  std::vector<Asked> all(5, Greedy(12, 2));
  all[0].request.sampling.temperature = 1;
  all[1].request.sampling.rules.repetition_penalty = 1.5;
  all[2].request.sampling.report_logprobs = true;
  all[3].request.hash_logits = true;
  all[4].request.search.beams = 3;
  for (const Asked& asked : all) {
    const uint64_t before = device.device->copied_bytes;
    EXPECT_EQ(device.Run({asked}), cpu.Run({asked}));
    EXPECT_GE(device.device->copied_bytes - before, device.BytesOfLogits(11));
  }
}

int TokenIn(const std::string& line) { return std::atoi(line.substr(line.find(' ')).c_str()); }

std::vector<Asked> ManyKinds() {
  std::vector<Asked> all = {Greedy(1, 1),  Greedy(12, 2), Greedy(30, 3, 15), Greedy(9, 4),
                            Greedy(20, 5), Greedy(20, 6), Greedy(20, 7, 15), Greedy(8, 8)};
  all[3].request.samples = 3;
  all[3].request.sampling.temperature = 1;
  all[3].cancels_at = 20;
  all[4].stops_at = 5;
  all[5].cancels_at = 4;
  all[6].stops_at = 9;
  all[7].request.search.beams = 3;
  all.push_back(Greedy(15, 9));
  all[8].request.sampling.rules.repetition_penalty = 1.5;
  all[8].request.hash_logits = true;
  // ends with a stop token, which is not sent, before any other answer ends: tokens of earlier
  // requests are held
  all[8].request.sampling.rules.stop_ids = {TokenIn(DeviceEngine(false).Run({all[8]})[6])};
  return all;
}

TEST(EngineOnDevice, CallbacksKeepTheirOrder) {
  DeviceEngine cpu(false), device(true);
  EXPECT_EQ(device.Run(ManyKinds()), cpu.Run(ManyKinds()));
  EXPECT_GT(device.overlapped, 40);
  EXPECT_FALSE(device.device->is_running());
}

// An answer that its caller ends is saved without the rows of the running step.
TEST(EngineOnDevice, StoppedAnswerIsSavedForNextTurn) {
  DeviceEngine cpu(false), device(true);
  for (const int stops_at : {10, 11, 12, 13}) {  // some answers end a chunk
    Asked first = Greedy(30, 20 + static_cast<uint64_t>(stops_at)), next = first;
    first.stops_at = stops_at;
    const Log log = device.Run({first});
    EXPECT_EQ(log, cpu.Run({first}));
    for (int i = 0; i <= stops_at; ++i) {
      next.request.token_ids.push_back(TokenIn(log[static_cast<size_t>(i) + 1]));
    }
    next.request.token_ids.push_back(3);
    const Log got = device.Run({next});
    EXPECT_EQ(got, cpu.Run({next}));
    EXPECT_THAT(got[0], testing::EndsWith(absl::StrCat(first.request.token_ids.size() + stops_at)));
  }
  EXPECT_GT(device.Transfers(CopyWay::kIn), 0);
  EXPECT_GT(device.Transfers(CopyWay::kOut), 0);
  EXPECT_EQ(device.device->error(), "");
}

// Offloaded chunks are transferred to the device in each step.
TEST(EngineOnDevice, OffloadedRequestsKeepCallbacks) {
  DeviceEngine cpu(false), device(true);
  std::vector<Asked> all = {Greedy(40, 1), Greedy(40, 2, 15), Greedy(40, 3)};
  for (const size_t i : {0, 1}) all[i].request.requested_kv.cache = "offloaded";
  EXPECT_EQ(device.Run(all), cpu.Run(all));
  EXPECT_GT(device.Transfers(CopyWay::kIn), 40);
  EXPECT_GT(device.overlapped, 40);
  EXPECT_EQ(device.device->error(), "");
}

TEST(EngineOnDevice, PreemptionKeepsCallbacks) {
  const uint64_t bytes = 12 * ChunkBytes(DeviceEngine(false).engine->layout());
  DeviceEngine cpu(false, bytes), device(true, bytes);
  const std::vector<Asked> all = {Greedy(60, 1), Greedy(60, 2), Greedy(60, 3, 15), Greedy(60, 4)};
  EXPECT_EQ(device.Run(all), cpu.Run(all));
  EXPECT_GT(device.engine->Stats().counters.at("preemptions"), 0u);
  EXPECT_GT(device.overlapped, 60);
}

TEST(EngineOnDevice, FailureOfRunningStepEndsRequests) {
  DeviceEngine device(true);
  device.on_token = [&](int index) {
    if (index == 3) device.device->fails = true;
  };
  const Log log = device.Run({Greedy(20, 1), Greedy(20, 2)});
  ASSERT_EQ(log.size(), 12u);  // 4 tokens of each request
  const std::string error = "device: the programs' end: an illegal memory access was encountered";
  EXPECT_EQ(log[10], "0 failed: " + error);
  EXPECT_EQ(log[11], "1 failed: " + error);
  device.has_failed.WaitForNotification();
  EXPECT_EQ(device.failure, error);
  EXPECT_EQ(device.Run({Greedy(2, 3)}).back(), "0 failed: " + error);
}

TEST(EngineOnDevice, OtherErrorsAreNoDeviceFailure) {
  DeviceEngine device(true);
  device.on_token = [](int) { throw std::runtime_error("a callback failed"); };
  EXPECT_EQ(device.Run({Greedy(20, 1)}).back(), "0 failed: a callback failed");
  device.on_token = nullptr;
  device.Run({Greedy(2, 3)});
  EXPECT_FALSE(device.has_failed.HasBeenNotified());
}

// Sealing waits for copies of the device. A request whose memory the pool can free at once does not
// wait for it.
TEST(EngineOnDevice, AdmissionWaitsForNoSeal) {
  DeviceEngine device(true, 14 * ChunkBytes(DeviceEngine(false).engine->layout()));
  const auto pool_after = [&](uint32_t prompt, uint32_t tokens, uint64_t seed, CacheMode mode) {
    Asked asked = {Request(Prompt(prompt, seed), {}, tokens)};
    asked.request.cache = mode;
    EXPECT_THAT(device.Run({asked}).back(), testing::HasSubstr("finished"));
    return device.engine->Stats().pool_bytes;
  };
  const uint64_t one = pool_after(100, 2, 1, CacheMode::kDefault);
  EXPECT_EQ(pool_after(100, 2, 2, CacheMode::kDefault), 2 * one);
  // Grows above the free memory: waits for the seals, then evicts the first prompt.
  EXPECT_EQ(pool_after(100, 140, 3, CacheMode::kOff), one);
  absl::Notification release;
  device.device->on_event_wait = [&] { release.WaitForNotification(); };
  EXPECT_EQ(pool_after(100, 2, 4, CacheMode::kDefault), 2 * one);
  EXPECT_EQ(pool_after(120, 2, 5, CacheMode::kOff), one);
  release.Notify();
}

TEST(EngineOnDevice, DrainEndsRequestsOfRunningStep) {
  DeviceEngine device(true);
  device.on_token = [&](int index) {
    if (index != 3) return;
    EXPECT_TRUE(device.device->is_running());
    device.engine->Drain(absl::InfinitePast());
  };
  EXPECT_THAT(device.Run({Greedy(20, 1)}).back(), testing::HasSubstr("shutting down"));
}

}  // namespace
}  // namespace hearth
