// The exactness class that a worker chooses, on machines that pass or fail the self-test.

#include "worker/engine/runner/exactness_choice.h"

#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/worker/engine/engine_harness.h"
#include "worker/device/open_device.h"
#include "worker/kernels/targets.h"
#include "worker/model/invariant/invariant_gemma.h"
#include "worker/model/invariant/invariant_weights.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

const std::string& ChoiceDir() { return ModelDir(Geometries()[0].geometry); }

// Makes the results of a product depend on the step: flips a bit in steps of `rows` rows.
void DependOn(int64_t rows) {
  InvariantGemma::ReplaceProduct([rows](const ConstRows& x, const PackedWeights& weights,
                                        const Rows& y, Workspace* workspace, ParallelFor parallel) {
    Product(x, weights, y, workspace, parallel);
    if (x.rows == rows) *y.Row(0) = std::nextafter(*y.Row(0), 1e9F);
  });
}

TEST(ExactnessChoiceTest, StepDependentBitsRefuseInvariantClass) {
  EngineOptions options = InvariantOptions();
  options.model_dir = ChoiceDir();
  options.digest_cache_dir = "";
  DependOn(5);
  const auto engine = Engine::Create(options);
  InvariantGemma::ReplaceProduct(nullptr);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(engine.status().message()),
              testing::AllOf(HasSubstr("exactness: invariant does not hold"),
                             HasSubstr("product q, k, v"), HasSubstr("M = 5 ")));
  EXPECT_TRUE(Engine::Create(options).ok());
}

TEST(ExactnessChoiceTest, SelfTestWithoutMemoryIsInconclusive) {
  const absl::Status failed = SelfTestFailure(absl::ResourceExhaustedError("kv-bytes: no memory"));
  EXPECT_EQ(failed.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(failed.message(),
            "exactness: invariant could not be tested on this machine: kv-bytes: no memory; "
            "use --exactness exact");
  EXPECT_THAT(std::string(SelfTestFailure(absl::FailedPreconditionError("x")).message()),
              HasSubstr("invariant does not hold on this machine: x;"));
}

bool HasFastKernels() { return ChosenTarget() != KernelTarget::kPlain; }

TEST(ExactnessChoiceTest, AutoChoosesInvariantIfPossible) {
  if (!HasFastKernels()) GTEST_SKIP() << "this CPU has no FMA: auto is exact";
  EngineOptions options = InvariantOptions();
  options.exactness = ExactnessChoice::kAuto;
  TestWorker taken(ChoiceDir(), options, nullptr, /*with_cache=*/false);
  EXPECT_EQ(taken->layout().exactness, Exactness::kInvariant);
  EXPECT_EQ(taken->why_not_invariant(), "");
  options.dtype = "bfloat16";
  TestWorker other(ChoiceDir(), options, nullptr, /*with_cache=*/false);
  EXPECT_EQ(other->layout().exactness, Exactness::kExact);
  EXPECT_THAT(other->why_not_invariant(), HasSubstr("got dtype bfloat16"));
  EXPECT_THAT(other->warnings(), testing::IsEmpty());
  options.step_tokens = 64;
  TestWorker stepped(ChoiceDir(), options, nullptr, /*with_cache=*/false);
  EXPECT_THAT(stepped->warnings(),
              testing::ElementsAre(HasSubstr("(so --step-tokens has no effect)")));
  options.memory.kv_offload_bytes = uint64_t{64} << 20;
  TestWorker bounded(ChoiceDir(), options, nullptr, /*with_cache=*/false);
  EXPECT_THAT(bounded->warnings(),
              testing::ElementsAre(HasSubstr("--kv-offload-bytes has no effect"),
                                   "exact, not invariant: " + bounded->why_not_invariant()));
  EXPECT_THAT(bounded->notes(), testing::Not(testing::Contains(HasSubstr("invariant"))))
      << "the notes must not repeat the warning";
}

TEST(ExactnessChoiceTest, FailedSelfTestMakesAutoExact) {
  if (!HasFastKernels()) GTEST_SKIP() << "this CPU has no FMA: auto is exact";
  EngineOptions options = InvariantOptions();
  options.exactness = ExactnessChoice::kAuto;
  options.digest_cache_dir = "";
  DependOn(5);
  TestWorker worker(ChoiceDir(), options, nullptr, /*with_cache=*/false);
  InvariantGemma::ReplaceProduct(nullptr);
  EXPECT_EQ(worker->layout().exactness, Exactness::kExact);
  EXPECT_THAT(worker->why_not_invariant(),
              testing::AllOf(HasSubstr("product q, k, v"), HasSubstr("M = 5 ")));
  EXPECT_THAT(worker->notes(), testing::Contains(testing::AllOf(HasSubstr("chose exact because"),
                                                                HasSubstr("M = 5 "))));
  EXPECT_TRUE(worker.Run(Request(Prompt(40)))->error.ok());
}

TEST(ExactnessChoiceTest, AutoReportsModelAndBudgetErrors) {
  EngineOptions options = InvariantOptions();
  options.exactness = ExactnessChoice::kAuto;
  options.model_dir = ChoiceDir();
  options.memory.kv_bytes = 1;
  if (HasFastKernels()) {
    EXPECT_THAT(std::string(Engine::Create(options).status().message()), HasSubstr("--kv-bytes"));
  }
  options.model_dir = "/nowhere";
  EXPECT_FALSE(Engine::Create(options).ok());
}

std::string Refusal(const EngineOptions& options) {
  return std::string(options.Validate().message());
}

// Returns a bfloat16 checkpoint: devices need bfloat16 weights.
const std::string& DeviceDir() {
  static const std::string* const dir = [] {
    TinyGeometry geometry;
    geometry.bfloat16 = true;
    return new std::string(NewTinyCheckpoint(geometry, "device_choice"));
  }();
  return *dir;
}

EngineOptions Emulated() {
  EngineOptions options = InvariantOptions();
  options.model_dir = DeviceDir();
  options.exactness = ExactnessChoice::kAuto;
  options.device = "emulated";
  return options;
}

TEST(ExactnessChoiceTest, EmulatedDeviceHasCpuFingerprint) {
  for (const WeightsChoice weights : {WeightsChoice::kAuto, WeightsChoice::kQ4_0}) {
    EngineOptions on_device = Emulated(), on_cpu = InvariantOptions();
    on_device.weights = on_cpu.weights = weights;
    TestWorker device(DeviceDir(), on_device), cpu(DeviceDir(), on_cpu);
    EXPECT_EQ(device->device(), "emulated");
    EXPECT_EQ(device->arithmetic(), weights == WeightsChoice::kAuto ? "float32" : "int8/32/1");
    EXPECT_EQ(device->fingerprint().digest(), cpu->fingerprint().digest());
  }
}

// An option that a device does not support is an error; the worker must not ignore it.
TEST(ExactnessChoiceTest, EmulatedDeviceRefusesUnsupportedOptions) {
  EngineOptions options = Emulated();
  options.model_dir = ChoiceDir();  // a float32 checkpoint; devices need bfloat16
  EXPECT_EQ(Engine::Create(options).status().code(), absl::StatusCode::kUnimplemented);
  options = Emulated();
  options.exactness = ExactnessChoice::kExact;
  EXPECT_THAT(Refusal(options), HasSubstr("use --exactness auto"));
  options = Emulated();
  options.dtype = "bfloat16";
  EXPECT_THAT(Refusal(options), HasSubstr("needs dtype float32 or auto; got dtype bfloat16"));
  options = Emulated();
  options.weights = WeightsChoice::kStored;
  options.kv_dtype = KvDtypeChoice::kFloat32;
  EXPECT_EQ(Refusal(options), "");
  options.kv_dtype = KvDtypeChoice::kBFloat16;
  EXPECT_EQ(Refusal(options), "");
}

// `auto` must not choose CUDA before its bits are verified on a GPU.
TEST(ExactnessChoiceTest, CudaNeedsExplicitInvariant) {
  EXPECT_THAT(std::string(CheckAutoInvariant("cuda:1", "auto").message()),
              HasSubstr("--exactness invariant computes the bits of the CPU"));
  EXPECT_TRUE(CheckAutoInvariant("cpu", "auto").ok());
  EngineOptions options = Emulated();
  options.exactness = ExactnessChoice::kInvariant;
  options.device = "cuda";
  EXPECT_EQ(Refusal(options), "");
  if (OpenDevice("cuda").ok()) GTEST_SKIP() << "this machine and this build have cuda";
  const absl::Status lacks = Engine::Create(options).status();  // no CUDA in the build, or no GPU
  EXPECT_FALSE(lacks.ok());
  EXPECT_THAT(std::string(lacks.message()), HasSubstr("device: cuda"));
}

TEST(WeightsChoiceTest, ContradictoryOptionsAreBothNamed) {
  EngineOptions options = InvariantOptions();
  options.model_dir = ChoiceDir();
  options.weights = WeightsChoice::kQ8_0;
  options.exactness = ExactnessChoice::kAuto;
  EXPECT_EQ(Refusal(options), "");
  options.dtype = "bfloat16";
  EXPECT_THAT(Refusal(options), testing::AllOf(HasSubstr("weights: q8_0"), HasSubstr("dtype")));
  options.dtype = "float32";
  for (const auto& [exactness, name] : {std::pair(ExactnessChoice::kExact, "exactness is exact"),
                                        {ExactnessChoice::kPortable, "exactness is portable"}}) {
    options.exactness = exactness;
    for (const WeightsChoice weights : {WeightsChoice::kQ8_0, WeightsChoice::kQ4_0,
                                        WeightsChoice::kFloat32, WeightsChoice::kStored}) {
      options.weights = weights;
      EXPECT_THAT(Refusal(options),
                  testing::AllOf(HasSubstr(WeightsChoiceName(weights)), HasSubstr(name)));
    }
    options.weights = WeightsChoice::kAuto;
    EXPECT_EQ(Refusal(options), "");
  }
}

// The checkpoint has float32 weights.
TEST(WeightsChoiceTest, QuantizedWeightsTakeLessMemory) {
  const uint64_t stored = *InvariantWeightBytes(ChoiceDir(), WeightForm::kStored);
  EXPECT_GT(stored, 0u);
  EXPECT_EQ(*InvariantWeightBytes(ChoiceDir(), WeightForm::kFloat32), stored);
  const uint64_t narrow = *InvariantWeightBytes(ChoiceDir(), WeightForm::kQ8_0);
  EXPECT_GT(narrow, stored / 4);
  EXPECT_LT(narrow, stored / 3) << "the embedding must not be stored twice";
}

// Runs with --exactness auto on a machine that fails the self-test.
TEST(WeightsChoiceTest, FailedSelfTestRefusesExplicitWeights) {
  if (!HasFastKernels()) GTEST_SKIP() << "this CPU has no FMA: auto is exact";
  EngineOptions options = InvariantOptions();
  options.exactness = ExactnessChoice::kAuto;
  options.model_dir = ChoiceDir();
  options.weights = WeightsChoice::kQ8_0;
  options.digest_cache_dir = "";
  DependOn(5);
  const auto engine = Engine::Create(options);
  InvariantGemma::ReplaceProduct(nullptr);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(engine.status().message()),
              testing::AllOf(HasSubstr("weights: q8_0"), HasSubstr("M = 5 ")));
}

TEST(ArithmeticChoiceTest, Int8ChangesTheFingerprint) {
  EngineOptions options = InvariantOptions();
  options.weights = WeightsChoice::kQ8_0;
  options.kv_dtype = KvDtypeChoice::kFloat32;
  options.arithmetic = ArithmeticChoice::kFloat32;
  TestWorker floats(ChoiceDir(), options);
  EXPECT_EQ(floats->arithmetic(), "float32");
  options.arithmetic = ArithmeticChoice::kInt8;
  TestWorker integers(ChoiceDir(), options);
  EXPECT_EQ(integers->arithmetic(), "int8/32/1");
  const auto differences = Compare(floats->fingerprint(), integers->fingerprint());
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].field, "arithmetic");
  EXPECT_EQ(differences[0].theirs, "int8/32/1");
  options.arithmetic = ArithmeticChoice::kAuto;
  TestWorker automatic(ChoiceDir(), options);
  EXPECT_TRUE(Compare(integers->fingerprint(), automatic->fingerprint()).empty());
  const auto request = Request(Prompt(40));
  EXPECT_NE(floats.Run(request)->finished.first_logits_sha256,
            integers.Run(request)->finished.first_logits_sha256);
  EXPECT_EQ(integers.Run(request)->finished.first_logits_sha256,
            automatic.Run(request)->finished.first_logits_sha256);
}

// A worker never uses KV of another arithmetic. A CPU and a device with the same arithmetic share
// KV.
TEST(ArithmeticChoiceTest, Bf16ChangesTheFingerprint) {
  TinyGeometry geometry = Geometries()[0].geometry;
  geometry.bfloat16 = true;
  const std::string dir = NewTinyCheckpoint(geometry, "bf16");
  EngineOptions options = InvariantOptions();
  options.device = kEmulatedDevice;
  options.kv_dtype = KvDtypeChoice::kBFloat16;
  TestWorker floats(dir, options);
  EXPECT_EQ(floats->arithmetic(), "float32");
  options.arithmetic = ArithmeticChoice::kBFloat16;
  options.kv_dtype = KvDtypeChoice::kAuto;
  TestWorker narrow(dir, options);
  EXPECT_EQ(narrow->arithmetic(), "bf16/16/2");
  EXPECT_EQ(narrow->layout().dtype, KvDtype::kBFloat16);
  const auto differences = Compare(floats->fingerprint(), narrow->fingerprint());
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].field, "arithmetic");
  EXPECT_EQ(differences[0].theirs, "bf16/16/2");
  options.device = "cpu";
  TestWorker on_cpu(dir, options);
  EXPECT_TRUE(Compare(narrow->fingerprint(), on_cpu->fingerprint()).empty());
  const auto request = Request(Prompt(40));
  const Digest logits = narrow.Run(request)->finished.first_logits_sha256;
  EXPECT_NE(floats.Run(request)->finished.first_logits_sha256, logits);
  EXPECT_EQ(on_cpu.Run(request)->finished.first_logits_sha256, logits);
}

TEST(ArithmeticChoiceTest, Bf16NeedsBFloat16Weights) {
  EngineOptions options = InvariantOptions();
  options.model_dir = ChoiceDir();
  options.arithmetic = ArithmeticChoice::kBFloat16;
  const auto engine = Engine::Create(options);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(engine.status().message()),
              testing::AllOf(HasSubstr("arithmetic: bf16 multiplies bfloat16 weights only"),
                             HasSubstr("is used as F32"), HasSubstr("use --arithmetic auto")));
}

TEST(ArithmeticChoiceTest, Bf16NeedsBFloat16KeysAndValues) {
  EngineOptions options = Emulated();
  options.model_dir = DeviceDir();
  options.arithmetic = ArithmeticChoice::kBFloat16;
  options.kv_dtype = KvDtypeChoice::kFloat32;
  const auto engine = Engine::Create(options);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(engine.status().message()), HasSubstr("leave --kv-dtype at auto"));
}

TEST(KvDtypeChoiceTest, BFloat16HalvesKvBytes) {
  EngineOptions options = InvariantOptions();
  options.weights = WeightsChoice::kQ8_0;
  options.arithmetic = ArithmeticChoice::kFloat32;
  options.kv_dtype = KvDtypeChoice::kFloat32;
  TestWorker wide(ChoiceDir(), options);
  options.kv_dtype = KvDtypeChoice::kBFloat16;
  TestWorker narrow(ChoiceDir(), options);
  EXPECT_EQ(2 * narrow->layout().SliceBytes(16), wide->layout().SliceBytes(16));
  const auto differences = Compare(wide->fingerprint(), narrow->fingerprint());
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].field, "kv_dtype");
  EXPECT_EQ(differences[0].theirs, "bfloat16");
  options.kv_dtype = KvDtypeChoice::kAuto;
  TestWorker automatic(ChoiceDir(), options);
  EXPECT_TRUE(Compare(wide->fingerprint(), automatic->fingerprint()).empty());
  options.arithmetic = ArithmeticChoice::kInt8;
  TestWorker integers(ChoiceDir(), options);
  EXPECT_EQ(integers->layout().dtype, KvDtype::kBFloat16);
}

// A worker with unquantized weights can still use cache entries that were stored before
// --arithmetic and --kv-dtype existed.
TEST(ArithmeticChoiceTest, UnquantizedWeightsUseFloat32Only) {
  EngineOptions options = InvariantOptions();
  TestWorker automatic(ChoiceDir(), options);
  EXPECT_EQ(automatic->arithmetic(), "float32");
  options.arithmetic = ArithmeticChoice::kFloat32;
  options.kv_dtype = KvDtypeChoice::kFloat32;
  TestWorker floats(ChoiceDir(), options);
  EXPECT_TRUE(Compare(floats->fingerprint(), automatic->fingerprint()).empty());
  options.kv_dtype = KvDtypeChoice::kAuto;
  options.model_dir = ChoiceDir();
  options.arithmetic = ArithmeticChoice::kInt8;
  options.digest_cache_dir = "";
  const auto engine = Engine::Create(options);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(engine.status().message()),
              testing::AllOf(HasSubstr("arithmetic: int8"), HasSubstr("--weights q8_0")));
}

TEST(ArithmeticChoiceTest, QuantizedWeightsDefaultToInt8) {
  EngineOptions options = InvariantOptions();
  options.weights = WeightsChoice::kQ4_0;
  TestWorker automatic(ChoiceDir(), options);
  EXPECT_EQ(automatic->arithmetic(), "int8/32/1");
  EXPECT_EQ(automatic->layout().dtype, KvDtype::kBFloat16);
  options.arithmetic = ArithmeticChoice::kFloat32;
  TestWorker floats(ChoiceDir(), options);
  EXPECT_EQ(floats->arithmetic(), "float32");
  EXPECT_EQ(floats->layout().dtype, KvDtype::kFloat32);
}

TEST(ArithmeticChoiceTest, ExplicitChoiceNeedsInvariantClass) {
  EngineOptions options = InvariantOptions();
  options.model_dir = ChoiceDir();
  const auto expect_refused = [&](const std::string& choice) {
    options.exactness = ExactnessChoice::kInvariant;
    EXPECT_EQ(Refusal(options), "");
    options.exactness = ExactnessChoice::kExact;
    EXPECT_EQ(Refusal(options),
              choice +
                  " needs exactness invariant, and exactness is exact, which uses "
                  "--dtype for weights, products, keys and values: leave --" +
                  choice.substr(0, choice.find(':')) + " at auto, or --exactness at auto");
  };
  for (const auto& [arithmetic, choice] : {std::pair(ArithmeticChoice::kInt8, "arithmetic: int8"),
                                           {ArithmeticChoice::kFloat32, "arithmetic: float32"},
                                           {ArithmeticChoice::kBFloat16, "arithmetic: bf16"}}) {
    options.arithmetic = arithmetic;
    expect_refused(choice);
  }
  options.arithmetic = ArithmeticChoice::kAuto;
  for (const bool narrow : {true, false}) {
    options.kv_dtype = narrow ? KvDtypeChoice::kBFloat16 : KvDtypeChoice::kFloat32;
    expect_refused(narrow ? "kv-dtype: bfloat16" : "kv-dtype: float32");
  }
  options.kv_dtype = KvDtypeChoice::kAuto;
  EXPECT_EQ(Refusal(options), "");
}

TEST(WeightsChoiceTest, Q80WeightsChangeTheFingerprint) {
  EngineOptions options = InvariantOptions();
  TestWorker automatic(ChoiceDir(), options);
  EXPECT_EQ(automatic->weights(), "stored");
  options.weights = WeightsChoice::kFloat32;
  TestWorker wide(ChoiceDir(), options);
  EXPECT_EQ(wide->weights(), "float32");
  EXPECT_TRUE(Compare(automatic->fingerprint(), wide->fingerprint()).empty());
  options.arithmetic = ArithmeticChoice::kFloat32;
  options.weights = WeightsChoice::kQ8_0;
  TestWorker narrow(ChoiceDir(), options);
  EXPECT_EQ(narrow->weights(), "q8_0");
  EXPECT_EQ(narrow->layout().exactness, Exactness::kInvariant);
  const auto differences = Compare(automatic->fingerprint(), narrow->fingerprint());
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].field, "weights");
  EXPECT_EQ(differences[0].theirs, "q8_0 by quantizer 1");
  // Different weights give different logits.
  const auto request = Request(Prompt(40));
  EXPECT_EQ(automatic.Run(request)->finished.first_logits_sha256,
            wide.Run(request)->finished.first_logits_sha256);
  EXPECT_NE(automatic.Run(request)->finished.first_logits_sha256,
            narrow.Run(request)->finished.first_logits_sha256);
}

}  // namespace
}  // namespace hearth
