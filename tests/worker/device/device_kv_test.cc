// Tests the KV strategies on the emulated device: offloaded and quantized sequences have the bits
// of the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/random_requests.h"
#include "tests/support/tiny_checkpoint.h"
#include "worker/device/emulated_device.h"
#include "worker/device/program_list.h"
#include "worker/model/invariant/invariant_gemma.h"

namespace hearth {
namespace {

constexpr int kChunk = 16;

const std::string& Dir() {
  static const std::string* const dir = [] {
    TinyGeometry geometry;
    geometry.layer_types = "lggl";
    geometry.window = 24;
    geometry.heads = 2;
    geometry.kv_heads = 2;
    geometry.head_dim = 32;
    geometry.context_tokens = 400;
    geometry.bfloat16 = true;
    return new std::string(NewTinyCheckpoint(geometry, "device_kv"));
  }();
  return *dir;
}

// The device refuses three allocations, beginning with number `fails_at`, counted from Arm. The
// caller repeats a failed allocation once or twice.
class ShortDevice : public EmulatedDevice {
 public:
  using EmulatedDevice::EmulatedDevice;
  void Arm(int at) {
    fails_at = at;
    allocations = 0;
  }
  void Launch(int program, const void* arguments, int blocks) override {
    steps += program == kProgramNumber<EmbedProgram> ? 1 : 0;
    EmulatedDevice::Launch(program, arguments, blocks);
  }
  void* Allocate(size_t bytes) override {
    ++allocations;
    const bool fails = fails_at > 0 && allocations >= fails_at && allocations < fails_at + 3;
    return fails ? nullptr : EmulatedDevice::Allocate(bytes);
  }
  int allocations = 0, fails_at = 0, steps = 0;
};

std::vector<int32_t> Text(int begin, int end) {
  std::vector<int32_t> tokens;
  for (int i = begin; i < end; ++i) tokens.push_back((i * 29 + i / 7) % 150);
  return tokens;
}

class DeviceKv : public testing::Test {
 protected:
  std::unique_ptr<InvariantGemma> Load(std::shared_ptr<Device> device,
                                       uint64_t offload_bytes = uint64_t{1} << 30) const {
    InvariantGemmaOptions options{2, kChunk};
    options.device = std::move(device);
    options.kv_offload_bytes = offload_bytes;
    return InvariantGemma::Load(Dir(), options).value();
  }
  static InvariantGemma::Kv Offloaded(const InvariantGemma& gemma) {
    InvariantGemma::Kv kv = gemma.NewKv();
    kv.Offload(gemma.offload_blocks());
    return kv;
  }
  // Appends the text up to `end` in steps; returns the logits of each step's last token.
  static absl::StatusOr<std::vector<float>> Run(const InvariantGemma& gemma, int end, int step,
                                                InvariantGemma::Kv* kv) {
    std::vector<float> all, logits;
    while (kv->length() < end) {
      const std::vector<int32_t> tokens = Text(kv->length(), std::min(end, kv->length() + step));
      if (absl::Status s = gemma.Step(kv, tokens, 1, &logits); !s.ok()) return s;
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }
};

// Cold, restored, alone, among others; restored from and by a CPU.
TEST_F(DeviceKv, OffloadedRandomRequestsMatchCpuBits) {
  for (const bool late : {false, true}) {
    auto requests =
        RandomRequests::Open(Dir(), kChunk, /*longest=*/110, /*first=*/1, WeightForm::kStored,
                             KvDtype::kFloat32, std::make_shared<EmulatedDevice>(late));
    ASSERT_TRUE(requests.ok()) << requests.status();
    requests->StoreKv({}, /*offloads=*/true);
    for (int i = 0; i < 6; ++i) EXPECT_EQ(requests->Next(), "");
  }
  const auto at_once = std::make_shared<EmulatedDevice>();  // later tests copy at once
  auto bf16 = RandomRequests::Open(Dir(), kChunk, /*longest=*/60, /*first=*/1, WeightForm::kStored,
                                   KvDtype::kBFloat16, at_once, Arithmetic::kBFloat16);
  ASSERT_TRUE(bf16.ok()) << bf16.status();
  bf16->StoreKv({}, /*offloads=*/true);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(bf16->Next(), "");
}

// Groups of channels and of tokens, in keys and in values. If products are in bfloat16, attention
// reads dequantized blocks in bfloat16; else in float32, also if the KV blocks are bfloat16.
TEST_F(DeviceKv, QuantizedRandomRequestsMatchCpuBits) {
  struct Case {
    const char* options;
    KvDtype dtype = KvDtype::kFloat32;
    WeightForm weights = WeightForm::kStored;
    Arithmetic arithmetic = Arithmetic::kInt8;
    bool late = false;
  };
  constexpr KvDtype kNarrow = KvDtype::kBFloat16;
  const Case cases[] = {
      {"bits=8,group=16"},
      {"bits=4,group=32,axis_key=0"},
      {"bits=2,group=16,axis_key=0,axis_value=-1"},
      {"bits=4,group=8,axis_value=-1"},
      {"bits=8,group=16", kNarrow},
      {"bits=2,group=16,axis_key=0,axis_value=-1", kNarrow, WeightForm::kStored, Arithmetic::kInt8,
       true},
      {"bits=4,group=32,axis_key=0", kNarrow, WeightForm::kQ8_0},
      {"bits=4,group=8,axis_value=-1", kNarrow, WeightForm::kStored, Arithmetic::kBFloat16},
      {"bits=2,group=16", kNarrow, WeightForm::kStored, Arithmetic::kBFloat16, true},
  };
  for (const Case& of : cases) {
    const auto device = std::make_shared<EmulatedDevice>(of.late);
    auto requests = RandomRequests::Open(Dir(), kChunk, /*longest=*/80, /*first=*/4, of.weights,
                                         of.dtype, device, of.arithmetic);
    ASSERT_TRUE(requests.ok()) << requests.status();
    uint32_t residual = 0;
    requests->StoreKv(ParseKvQuantization(of.options, &residual).value(), /*offloads=*/false);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(requests->Next(), "") << of.options;
  }
}

// Sequences with and without quantized KV in turn: those whose blocks are widened take a second
// step. Greedy tokens belong to their sequences.
TEST_F(DeviceKv, MixedSequencesTakeTwoSteps) {
  const auto device = std::make_shared<ShortDevice>();
  InvariantGemmaOptions options{2, kChunk};
  options.weights = WeightForm::kQ8_0;
  options.arithmetic = Arithmetic::kInt8;
  options.kv_dtype = KvDtype::kBFloat16;
  const auto cpu = InvariantGemma::Load(Dir(), options).value();
  options.device = device;
  const auto gemma = InvariantGemma::Load(Dir(), options).value();
  uint32_t residual = 0;
  const KvQuantization form = ParseKvQuantization("bits=4,group=16", &residual).value();
  std::vector<InvariantGemma::Kv> ours, theirs;
  std::vector<StepLogits> our_logits(5), their_logits(5);
  std::vector<InvariantGemma::Part> our_parts, their_parts;
  for (int i = 0; i < 5; ++i) {
    const KvQuantization of = i % 2 == 0 ? form : KvQuantization();
    ours.push_back(gemma->NewKv(of));
    theirs.push_back(cpu->NewKv(of));
    ASSERT_TRUE(Run(*gemma, 30 + 5 * i, 30, &ours.back()).ok());
    ASSERT_TRUE(Run(*cpu, 30 + 5 * i, 30, &theirs.back()).ok());
  }
  const std::vector<int32_t> token = {7};
  for (size_t i = 0; i < 5; ++i) {
    our_parts.push_back({&ours[i], token, 1, &our_logits[i], /*greedy=*/i != 3});
    their_parts.push_back({&theirs[i], token, 1, &their_logits[i]});
  }
  device->steps = 0;
  ASSERT_TRUE(gemma->Step(our_parts).ok());
  EXPECT_EQ(device->steps, 2);
  ASSERT_TRUE(cpu->Step(their_parts).ok());
  for (size_t i = 0; i < 5; ++i) {
    const absl::Span<float> want = their_logits[i].values();
    if (i == 3) {
      EXPECT_EQ(our_logits[i].values(), want);
      continue;
    }
    const auto greatest = std::max_element(want.begin(), want.end()) - want.begin();
    EXPECT_EQ(our_logits[i].Row(0, 1).greedy->id, greatest) << i;
  }
}

TEST_F(DeviceKv, OffloadedHoldsOnlyStepAndWindowOnDevice) {
  const auto gemma = Load(std::make_shared<EmulatedDevice>());
  InvariantGemma::Kv kv = Offloaded(*gemma);
  ASSERT_TRUE(Run(*gemma, 200, 40, &kv).ok());
  ASSERT_TRUE(Run(*gemma, 203, 1, &kv).ok());
  const KvLayout& layout = kv.layout();
  const uint64_t global = layout.ObjectBytes(kChunk, LayerGroup::kGlobal);
  const uint64_t local = layout.ObjectBytes(kChunk, LayerGroup::kLocal);
  EXPECT_EQ(gemma->kv_blocks().used_bytes(), global + 2 * local);  // positions from 179 on
  EXPECT_EQ(gemma->offload_blocks()->used_bytes(), 12 * global);
  InvariantGemma::Kv fork = gemma->NewKv();
  fork.ShareAll(kv);
  EXPECT_TRUE(fork.is_offloaded());
  EXPECT_EQ(gemma->offload_blocks()->used_bytes(), 12 * global);
}

// Guessed tokens are removed again, also if they complete a chunk.
TEST_F(DeviceKv, OffloadedRewindsAndForksKeepBits) {
  const auto cpu = InvariantGemma::Load(Dir(), {2, kChunk}).value();
  const auto gemma = Load(std::make_shared<EmulatedDevice>());
  InvariantGemma::Kv want_kv = cpu->NewKv(), kv = Offloaded(*gemma), fork = gemma->NewKv();
  std::vector<float> logits;
  for (int end = 30; end < 100; end += 7) {
    const auto want = Run(*cpu, end, 7, &want_kv);
    ASSERT_EQ(*Run(*gemma, end, 7, &kv), *want) << end;
    ASSERT_TRUE(gemma->Step(&kv, std::vector<int32_t>(20, 9), 0, nullptr).ok());
    kv.Rewind(end);
    kv.ReleaseRoom();
    if (end == 44) fork.ShareAll(kv);
  }
  InvariantGemma::Kv want_fork = cpu->NewKv();
  ASSERT_TRUE(Run(*cpu, 44, 44, &want_fork).ok());
  EXPECT_EQ(*Run(*gemma, 70, 5, &fork), *Run(*cpu, 70, 5, &want_fork));
}

// Two sequences whose staged blocks exceed one staging area run in two passes.
TEST_F(DeviceKv, StepWithTooManyStagedBlocksIsDivided) {
  const auto cpu = InvariantGemma::Load(Dir(), {2, kChunk}).value();
  const auto gemma = Load(std::make_shared<EmulatedDevice>());
  std::vector<InvariantGemma::Kv> ours, theirs;
  std::vector<StepLogits> our_logits(4), their_logits(4);
  std::vector<InvariantGemma::Part> our_parts, their_parts;
  for (int i = 0; i < 4; ++i) {
    ours.push_back(i == 1 ? gemma->NewKv() : Offloaded(*gemma));
    theirs.push_back(cpu->NewKv());
    ASSERT_TRUE(Run(*gemma, 390 - 20 * i, 390, &ours.back()).ok());
    ASSERT_TRUE(Run(*cpu, 390 - 20 * i, 390, &theirs.back()).ok());
  }
  const std::vector<int32_t> token = {7};
  for (size_t i = 0; i < 4; ++i) {
    our_parts.push_back({&ours[i], token, 1, &our_logits[i]});
    their_parts.push_back({&theirs[i], token, 1, &their_logits[i]});
  }
  ASSERT_TRUE(gemma->Step(our_parts).ok());
  ASSERT_TRUE(cpu->Step(their_parts).ok());
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(our_logits[i].values(), their_logits[i].values()) << i;
}

// Without host memory, complete chunks stay on the device.
TEST_F(DeviceKv, FullHostMemoryKeepsChunksOnDevice) {
  const auto cpu = InvariantGemma::Load(Dir(), {2, kChunk}).value();
  InvariantGemma::Kv plain = cpu->NewKv();
  const uint64_t block = plain.layout().ObjectBytes(kChunk, LayerGroup::kGlobal);
  const auto gemma = Load(std::make_shared<EmulatedDevice>(), 3 * block);
  InvariantGemma::Kv kv = Offloaded(*gemma);
  EXPECT_EQ(*Run(*gemma, 130, 10, &kv), *Run(*cpu, 130, 10, &plain));
  EXPECT_EQ(gemma->offload_blocks()->used_bytes(), 3 * block);
}

// If an allocation fails, the step fails or has the same bits, and can be repeated.
TEST_F(DeviceKv, FailedAllocationsNeverChangeBits) {
  const auto device = std::make_shared<ShortDevice>();
  const auto gemma = Load(device);
  InvariantGemma::Kv first = Offloaded(*gemma);
  const std::vector<float> want = *Run(*gemma, 120, 30, &first);
  const size_t row = static_cast<size_t>(gemma->config().vocab_size);
  int failures = 0;
  for (int at = 1; at <= 12; ++at) {
    const auto small = Load(device);  // without free blocks
    InvariantGemma::Kv kv = Offloaded(*small);
    device->Arm(at);
    std::vector<float> all;
    for (int end = 30; end <= 120;) {
      const auto logits = Run(*small, end, 30, &kv);
      if (!logits.ok()) {
        EXPECT_TRUE(absl::IsUnavailable(logits.status()) ||
                    absl::IsResourceExhausted(logits.status()))
            << logits.status();
        ++failures;
        continue;
      }
      all.insert(all.end(), logits->begin(), logits->end());
      end += 30;
    }
    ASSERT_EQ(all.size(), 4 * row);
    EXPECT_EQ(all, want) << at;
    device->Arm(0);
  }
  EXPECT_GT(failures, 5);
}

}  // namespace
}  // namespace hearth
