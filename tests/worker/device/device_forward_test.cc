// Compares an InvariantGemma on the emulated device with one on the CPU: bits, refused models,
// failures.
#include "worker/model/invariant/device_forward.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/random_requests.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/worker/kernels/kernel_kit.h"
#include "worker/device/emulated_device.h"
#include "worker/device/program_list.h"
#include "worker/kernels/integer_product.h"
#include "worker/model/invariant/invariant_gemma.h"

namespace hearth {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

TinyGeometry Geometry(const std::string& layers, int window, int heads, int kv_heads,
                      int head_dim) {
  TinyGeometry geometry;
  geometry.layer_types = layers;
  geometry.window = window;
  geometry.heads = heads;
  geometry.kv_heads = kv_heads;
  geometry.head_dim = head_dim;
  geometry.bfloat16 = true;
  return geometry;
}

// Head shapes of each published Gemma 3; some have fewer columns.
struct NamedHeads {
  const char* name;
  TinyGeometry geometry;
};
class DeviceForwardHeads : public testing::TestWithParam<NamedHeads> {};

TEST_P(DeviceForwardHeads, RandomRequestsMatchCpuBits) {
  const std::string dir = NewTinyCheckpoint(GetParam().geometry, "device_requests");
  auto requests =
      RandomRequests::Open(dir, /*chunk=*/16, /*longest=*/70, /*first=*/1, WeightForm::kStored,
                           KvDtype::kFloat32, std::make_shared<EmulatedDevice>());
  ASSERT_TRUE(requests.ok()) << requests.status();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(requests->Next(), "");
}

TEST_P(DeviceForwardHeads, RequestsWithBf16KvMatchCpuBits) {
  const std::string dir = NewTinyCheckpoint(GetParam().geometry, "device_kv");
  auto requests =
      RandomRequests::Open(dir, /*chunk=*/16, /*longest=*/70, /*first=*/4, WeightForm::kStored,
                           KvDtype::kBFloat16, std::make_shared<EmulatedDevice>());
  ASSERT_TRUE(requests.ok()) << requests.status();
  for (int i = 0; i < 2; ++i) EXPECT_EQ(requests->Next(), "");
}

// The CPU computes the same bits from panels of weights and with other tiles of attention.
TEST_P(DeviceForwardHeads, Bf16RequestsMatchCpuBits) {
  const std::string dir = NewTinyCheckpoint(GetParam().geometry, "device_bf16");
  auto requests = RandomRequests::Open(dir, /*chunk=*/16, /*longest=*/70, /*first=*/1,
                                       WeightForm::kStored, KvDtype::kBFloat16,
                                       std::make_shared<EmulatedDevice>(), Arithmetic::kBFloat16);
  ASSERT_TRUE(requests.ok()) << requests.status();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(requests->Next(), "");
}

// The device quantizes the rows, and widens the embedding from its blocks.
TEST_P(DeviceForwardHeads, QuantizedRequestsMatchCpuBits) {
  const std::string dir = NewTinyCheckpoint(GetParam().geometry, "device_blocks");
  for (const WeightForm form : {WeightForm::kQ8_0, WeightForm::kQ4_0}) {
    auto requests = RandomRequests::Open(dir, /*chunk=*/16, /*longest=*/70, /*first=*/1, form,
                                         KvDtype::kBFloat16, std::make_shared<EmulatedDevice>());
    ASSERT_TRUE(requests.ok()) << requests.status();
    for (int i = 0; i < 2; ++i) EXPECT_EQ(requests->Next(), "");
  }
}

// If `fails`, the device fails at the end of a step. If `flips`, one bit of the copied logits is
// changed.
class FaultyDevice : public EmulatedDevice {
 public:
  void Wait() override {
    if (fails) Fail("the programs' end: an illegal memory access was encountered");
  }
  void CopyOut(void* to, const void* from, size_t bytes) override {
    EmulatedDevice::CopyOut(to, from, bytes);
    if (flips) static_cast<unsigned char*>(to)[bytes / 2] ^= 1;
  }
  void* Allocate(size_t bytes) override {
    return bytes > most_bytes || !error().empty() ? nullptr : EmulatedDevice::Allocate(bytes);
  }
  std::unique_ptr<DeviceGraph> Capture(const std::function<void()>& launches) override {
    ++captured;
    return captures ? EmulatedDevice::Capture(launches) : nullptr;
  }
  bool has_fused_dot() const override { return fuses; }
  bool fails = false, flips = false, fuses = true, captures = true;
  size_t most_bytes = SIZE_MAX;
  int captured = 0;
};

InvariantGemmaOptions OnDevice(std::shared_ptr<Device> device, int chunk = 16) {
  InvariantGemmaOptions options{1, chunk};
  options.device = std::move(device);
  return options;
}

const std::string& Dir() {
  static const std::string* const dir =
      new std::string(NewTinyCheckpoint(Geometry("lg", 24, 4, 1, 32), "device_forward"));
  return *dir;
}

std::string Refusal(const std::string& dir, const InvariantGemmaOptions& options) {
  const auto gemma = InvariantGemma::Load(dir, options);
  EXPECT_EQ(gemma.status().code(), absl::StatusCode::kUnimplemented);
  return std::string(gemma.status().message());
}

// One model loaded twice: on the CPU and on the emulated device.
struct Pair {
  explicit Pair(const std::string& dir = Dir())
      : cpu(InvariantGemma::Load(dir, {1, 16}).value()),
        device(InvariantGemma::Load(dir, OnDevice(std::make_shared<EmulatedDevice>())).value()) {}
  Pair(const std::string& dir, const InvariantGemmaOptions& options,
       std::unique_ptr<InvariantGemma> on_device)
      : cpu(InvariantGemma::Load(dir, options).value()), device(std::move(on_device)) {}
  std::unique_ptr<InvariantGemma> cpu, device;
};
struct Text {
  explicit Text(const Pair& pair)
      : pair(&pair), cpu(pair.cpu->NewKv()), device(pair.device->NewKv()) {}
  void Step(int seed, int tokens, int want) {
    std::vector<int32_t> text;
    for (int i = 0; i < tokens; ++i) text.push_back((seed * 31 + i * 7) % 160);
    std::vector<float> ours, theirs;
    ASSERT_TRUE(pair->cpu->Step(&cpu, text, want, &ours).ok());
    ASSERT_TRUE(pair->device->Step(&device, text, want, &theirs).ok());
    ASSERT_EQ(ours.size(), theirs.size());
    EXPECT_EQ(FirstDifference(theirs.data(), ours.data(), static_cast<int64_t>(ours.size())), "")
        << "at " << cpu.length();
  }
  void Rewind(int length) {
    for (InvariantKv* kv : {&cpu, &device}) {
      kv->Rewind(length);
      kv->ReleaseRoom();
    }
  }
  const Pair* const pair;
  InvariantGemma::Kv cpu, device;
};

// One step for each size of a graph, and two larger steps. Each step begins three rows before the
// window is full. At most 32 rows have logits, because a step with more such rows would be divided.
TEST_P(DeviceForwardHeads, EveryStepSizeMatchesCpuBits) {
  const Pair pair(NewTinyCheckpoint(GetParam().geometry, "device_rows"));
  Text text(pair);
  const int begin = GetParam().geometry.window - 3;
  text.Step(0, begin, 1);
  for (const int rows : {1, 2, 3, 5, 9, 17, 33, 129}) {
    text.Step(rows, rows, std::min(rows, 32));
    text.Rewind(begin);
  }
}

INSTANTIATE_TEST_SUITE_P(Gemma, DeviceForwardHeads,
                         testing::Values(NamedHeads{"270M", Geometry("llg", 24, 4, 1, 256)},
                                         NamedHeads{"1B", Geometry("lgl", 50, 4, 1, 64)},
                                         NamedHeads{"4B", Geometry("lg", 33, 8, 4, 256)},
                                         NamedHeads{"12B", Geometry("gl", 16, 16, 8, 32)},
                                         NamedHeads{"27B", Geometry("lg", 40, 32, 16, 16)}),
                         [](const auto& info) { return "Of" + std::string(info.param.name); });

// If a forked sequence writes to an incomplete shared block, the block is copied first.
TEST(DeviceForward, ForksAndRewindsMatchCpuBits) {
  const Pair pair;
  Text one(pair), two(pair);
  one.Step(1, 41, 33);
  two.cpu.ShareAll(one.cpu);
  two.device.ShareAll(one.device);
  one.Step(2, 1, 1);
  two.Step(3, 5, 5);
  one.Step(4, 40, 1);
  one.Rewind(50);
  one.Step(5, 1, 1);
  two.Step(6, 129, 129);
}

TEST(DeviceForward, ModelWorksAfterSelfTest) {
  Pair pair;
  ASSERT_TRUE(pair.device->SelfTest("").ok());
  EXPECT_THAT(pair.device->notes().back(), HasSubstr("passed in 3 steps"));
  EXPECT_EQ(pair.device->kv_blocks().used_bytes(), 0u);
  Text(pair).Step(1, 20, 2);
}

TEST(DeviceForward, SelfTestRejectsDifferentLogits) {
  const auto device = std::make_shared<FaultyDevice>();
  auto gemma = InvariantGemma::Load(Dir(), OnDevice(device));
  ASSERT_TRUE(gemma.ok()) << gemma.status();
  device->flips = true;
  const absl::Status held = (*gemma)->SelfTest("");
  EXPECT_EQ(held.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(
      std::string(held.message()),
      HasSubstr("the device and the CPU compute different bits for logits of a step of 2 rows"));
}

// The CPU's integer kernels are not the cause, so the worker keeps them.
TEST(DeviceForward, DifferentIntegerLogitsKeepCpuKernel) {
  const auto device = std::make_shared<FaultyDevice>();
  InvariantGemmaOptions options = OnDevice(device);
  options.weights = WeightForm::kQ8_0;
  options.arithmetic = Arithmetic::kInt8;
  options.kv_dtype = std::nullopt;
  auto gemma = InvariantGemma::Load(Dir(), options);
  ASSERT_TRUE(gemma.ok()) << gemma.status();
  const IntegerKernel kernel = ChosenIntegerKernel();
  const size_t notes = (*gemma)->notes().size();
  device->flips = true;
  EXPECT_EQ((*gemma)->SelfTest("").code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ((*gemma)->notes().size(), notes);
  EXPECT_EQ(ChosenIntegerKernel(), kernel);
}

TEST(DeviceForward, OtherMatrixInstructionRefusesBf16) {
  const auto device = std::make_shared<FaultyDevice>();
  InvariantGemmaOptions options = OnDevice(device);
  // In float32 the model is loaded, and a note says why bf16 is not available.
  device->flips = true;
  const std::string why =
      "arithmetic: float32; bf16 is not available: the device's matrix instruction computes other "
      "bits than those of compute capability 9.0 (1 of 1024 sums differ)";
  EXPECT_EQ(InvariantGemma::Load(Dir(), options).value()->notes().back(), why);
  device->fuses = false;
  EXPECT_THAT(InvariantGemma::Load(Dir(), options).value()->notes().back(),
              HasSubstr("not available: the GPU has a compute capability below 9.0"));
  device->fuses = true;
  options.arithmetic = Arithmetic::kBFloat16;
  options.kv_dtype = std::nullopt;
  EXPECT_THAT(Refusal(Dir(), options),
              HasSubstr("(1 of 1024 sums differ): use --arithmetic auto, which is float32"));
  device->flips = false;
  auto gemma = InvariantGemma::Load(Dir(), options);
  ASSERT_TRUE(gemma.ok()) << gemma.status();
  EXPECT_EQ((*gemma)->arithmetic(), Arithmetic::kBFloat16);
  EXPECT_TRUE((*gemma)->SelfTest("").ok());
}

// Counts launches by program, and loses those of one program. If `fastest` is not negative, the
// device measures: a launch of each tiling with this number takes the shortest time.
class CountingDevice : public EmulatedDevice {
 public:
  void Launch(int program, const void* arguments, int blocks) override {
    last_ = program;
    ++launches[static_cast<size_t>(program)];
    if (program != lost && !is_measuring_) EmulatedDevice::Launch(program, arguments, blocks);
  }
  double Time(const std::function<void()>& work) override {
    if (fastest < 0) return -1;
    is_measuring_ = true;
    work();
    is_measuring_ = false;
    return TilingOf(last_) == fastest ? 1 : 2 + TilingOf(last_);
  }
  // Returns the launches of a kind of product with this tiling.
  int Of(ProductKind kind, int tiling) const {
    if (kind == ProductKind::kInteger) {
      return launches[static_cast<size_t>(IntegerProductNumber(IntegerForm::kInt8, tiling))];
    }
    return launches[static_cast<size_t>(ProductNumber(kind, tiling, false))] +
           launches[static_cast<size_t>(ProductNumber(kind, tiling, true))];
  }
  std::vector<int> launches = std::vector<int>(ProgramList::kCount);
  int lost = -1, fastest = -1;

 private:
  static int TilingOf(int program) {
    const int integer = IntegerProductNumber(IntegerForm::kInt8, 0);
    if (program >= integer && program < integer + IntegerTilings::kCount) return program - integer;
    for (const ProductKind kind :
         {ProductKind::kWarpgroup, ProductKind::kBf16, ProductKind::kFloat}) {
      const int first = ProductNumber(kind, 0, false);
      if (program >= first) return (program - first) % TilingCount(kind);
    }
    return 0;
  }
  int last_ = 0;
  bool is_measuring_ = false;
};

TinyGeometry WideGeometry() {
  TinyGeometry geometry = Geometry("lg", 24, 4, 1, 32);
  geometry.hidden_size = 64;
  geometry.intermediate_size = 128;
  return geometry;
}

// Compares steps of a device with steps of the CPU. `options.device` is not used.
void CompareSteps(const std::string& dir, std::unique_ptr<InvariantGemma> on_device,
                  InvariantGemmaOptions options, const std::vector<int>& steps) {
  options.device = nullptr;
  const Pair pair(dir, options, std::move(on_device));
  Text text(pair);
  for (const int rows : steps) text.Step(rows, rows, 1);
}

TEST(DeviceForward, WarpgroupProductsMatchCpuBits) {
  const std::string dir = NewTinyCheckpoint(WideGeometry(), "device_warpgroups");
  for (const bool broken : {false, true}) {
    const auto device = std::make_shared<CountingDevice>();
    InvariantGemmaOptions options = OnDevice(device);
    options.arithmetic = Arithmetic::kBFloat16;
    options.kv_dtype = std::nullopt;
    auto gemma = InvariantGemma::Load(dir, options);
    ASSERT_TRUE(gemma.ok()) << gemma.status();
    if (broken) device->lost = ProductNumber(ProductKind::kWarpgroup, 1, false);
    ASSERT_TRUE((*gemma)->SelfTest("").ok());
    const auto note = HasSubstr("of wgmma differ from those of mma.sync");
    EXPECT_THAT((*gemma)->notes(), Contains(note).Times(broken ? 1 : 0));
    device->launches.assign(ProgramList::kCount, 0);
    CompareSteps(dir, *std::move(gemma), options, {150, 1, 33});
    // with two layers: two steps of more than 32 rows, three products that need packed rows
    EXPECT_EQ(device->launches[kProgramNumber<PackRowsProgram>], broken ? 0 : 2 * 2 * 3);
  }
}

// Each tiling in turn is the fastest, so the steps use it; the bits stay the CPU's.
void CompareTuned(ProductKind few, InvariantGemmaOptions options) {
  const std::string dir = NewTinyCheckpoint(WideGeometry(), "device_tuned");
  options.kv_dtype = std::nullopt;
  for (int tiling = 0; tiling < TilingCount(few); ++tiling) {
    const auto device = std::make_shared<CountingDevice>();
    device->fastest = tiling;
    options.device = device;
    auto gemma = InvariantGemma::Load(dir, options);
    ASSERT_TRUE(gemma.ok()) << gemma.status();
    ASSERT_TRUE((*gemma)->SelfTest("").ok());
    EXPECT_THAT((*gemma)->notes(),
                Contains(HasSubstr("tilings of the device's products: chosen by ")));
    device->launches.assign(ProgramList::kCount, 0);
    CompareSteps(dir, *std::move(gemma), options, {100, 1, 2, 3, 7, 15, 31});
    EXPECT_GT(device->Of(few, tiling), 0) << tiling;
    EXPECT_TRUE(few != ProductKind::kBf16 || device->Of(ProductKind::kWarpgroup, tiling) > 0)
        << tiling;
  }
}

TEST(DeviceForward, TunedTilingsMatchCpuBits) {
  InvariantGemmaOptions options{1, 16};
  CompareTuned(ProductKind::kFloat, options);
  options.arithmetic = Arithmetic::kBFloat16;
  CompareTuned(ProductKind::kBf16, options);
}

TEST(DeviceForward, TunedIntegerTilingsMatchCpuBits) {
  InvariantGemmaOptions options{1, 16};
  options.weights = WeightForm::kQ8_0;
  options.arithmetic = Arithmetic::kInt8;
  CompareTuned(ProductKind::kInteger, options);
}

TEST(DeviceForward, StepsWithoutGraphMatchCpuBits) {
  const auto device = std::make_shared<FaultyDevice>();
  device->captures = false;
  const InvariantGemmaOptions options = OnDevice(device);
  auto gemma = InvariantGemma::Load(Dir(), options);
  ASSERT_TRUE(gemma.ok()) << gemma.status();
  CompareSteps(Dir(), *std::move(gemma), options, {3, 1, 1, 8, 1});
  EXPECT_EQ(device->captured, 1) << "a step after a refused graph does not try again at once";
}

TEST(DeviceForward, DeviceFailureFailsEveryLaterStep) {
  const auto device = std::make_shared<FaultyDevice>();
  auto gemma = InvariantGemma::Load(Dir(), OnDevice(device));
  ASSERT_TRUE(gemma.ok()) << gemma.status();
  InvariantGemma::Kv kv = (*gemma)->NewKv();
  std::vector<float> logits;
  ASSERT_TRUE((*gemma)->Step(&kv, {1, 2, 3}, 1, &logits).ok());
  const uint64_t used = (*gemma)->kv_blocks().used_bytes();
  device->fails = true;
  // The second step needs more memory than the first step released.
  for (const size_t tokens : {size_t{40}, size_t{100}}) {
    const absl::Status step = (*gemma)->Step(&kv, std::vector<int32_t>(tokens, 5), 1, &logits);
    EXPECT_EQ(step.code(), absl::StatusCode::kInternal);
    EXPECT_EQ(step.message(),
              "device: the programs' end: an illegal memory access was encountered");
    EXPECT_EQ(kv.length(), 3);
    EXPECT_EQ((*gemma)->kv_blocks().used_bytes(), used);
  }
  std::vector<std::byte> slice(kv.layout().PlainSliceBytes(3));
  EXPECT_THROW(kv.CopyOut(0, 0, 3, 0, 3, slice.data()), DeviceError);
}

TEST(DeviceForward, TooLittleDeviceMemoryIsError) {
  const auto device = std::make_shared<FaultyDevice>();
  device->most_bytes = 1000;
  EXPECT_EQ(InvariantGemma::Load(Dir(), OnDevice(device)).status().code(),
            absl::StatusCode::kResourceExhausted);
  const auto later = std::make_shared<FaultyDevice>();
  auto gemma = InvariantGemma::Load(Dir(), OnDevice(later));
  ASSERT_TRUE(gemma.ok()) << gemma.status();
  later->most_bytes = 0;
  InvariantGemma::Kv kv = (*gemma)->NewKv();
  EXPECT_EQ((*gemma)->Step(&kv, {1}, 0, nullptr).code(), absl::StatusCode::kUnavailable);
  later->most_bytes = SIZE_MAX;
  EXPECT_TRUE((*gemma)->Step(&kv, {1}, 0, nullptr).ok());
}

TEST(DeviceForward, UnsupportedModelErrorNamesReason) {
  const auto device = std::make_shared<EmulatedDevice>();
  TinyGeometry wide = Geometry("lg", 24, 4, 1, 32);
  wide.bfloat16 = false;
  EXPECT_THAT(Refusal(NewTinyCheckpoint(wide, "float32"), OnDevice(device)),
              HasSubstr("layer 0: q, k and v: a matrix has values that bfloat16 cannot represent"));
  InvariantGemmaOptions narrow = OnDevice(device);
  narrow.weights = WeightForm::kQ8_0;
  TinyGeometry blocks = Geometry("lg", 24, 4, 1, 32);
  EXPECT_THAT(Refusal(NewTinyCheckpoint(blocks, "blocks"), narrow),
              HasSubstr("weights: layer 0: q, k and v: a matrix is quantized, and the arithmetic "
                        "is float32: leave --arithmetic at auto, or use --device cpu"));
  EXPECT_THAT(Refusal(Dir(), OnDevice(device, 512)), HasSubstr("set --chunk-tokens to 256"));
  const auto earlier = std::make_shared<FaultyDevice>();
  earlier->fuses = false;
  InvariantGemmaOptions bf16 = OnDevice(earlier);
  bf16.arithmetic = Arithmetic::kBFloat16;
  bf16.kv_dtype = KvDtype::kBFloat16;
  EXPECT_THAT(Refusal(Dir(), bf16), HasSubstr("use --arithmetic auto, which is float32"));
  EXPECT_THAT(Refusal(NewTinyCheckpoint(Geometry("lg", 24, 4, 1, 272), "heads"), OnDevice(device)),
              HasSubstr("head_dim must be at most 256; got 272"));
}

// Widening weights to float32 does not change their values.
TEST(DeviceForward, Float32WeightsGiveSameLogits) {
  InvariantGemmaOptions options = OnDevice(std::make_shared<EmulatedDevice>());
  options.weights = WeightForm::kFloat32;
  Pair pair;
  pair.device = InvariantGemma::Load(Dir(), options).value();
  Text(pair).Step(1, 20, 2);
}

// A model with only local layers has no blocks in the global layer group.
TEST(DeviceForward, ModelWithoutGlobalLayersMatchesCpu) {
  const std::string dir = NewTinyCheckpoint(Geometry("ll", 24, 4, 1, 32), "local");
  const Pair pair(dir);
  Text text(pair);
  text.Step(1, 40, 2);
  text.Step(2, 1, 1);
}

}  // namespace
}  // namespace hearth
