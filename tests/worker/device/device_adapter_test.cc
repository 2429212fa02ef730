// Compares LoRA adapters on the emulated device with those on the CPU, bit for bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/test_folder.h"
#include "tests/support/tiny_adapter.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/worker/kernels/kernel_kit.h"
#include "worker/device/device_adapters.h"
#include "worker/device/emulated_device.h"
#include "worker/model/invariant/invariant_gemma.h"

namespace hearth {
namespace {

// Counts launches, also those of captures.
class CountingDevice : public EmulatedDevice {
 public:
  explicit CountingDevice(bool late) : EmulatedDevice(late) {}
  void Launch(int program, const void* arguments, int blocks) override {
    ++launches;
    EmulatedDevice::Launch(program, arguments, blocks);
  }
  void* Allocate(size_t bytes) override {
    return bytes > most_bytes ? nullptr : EmulatedDevice::Allocate(bytes);
  }
  size_t free_bytes() const override { return free; }
  int launches = 0;
  size_t most_bytes = SIZE_MAX, free = SIZE_MAX;
};

TinyGeometry Geometry() {
  TinyGeometry geometry;
  geometry.layer_types = "lg";
  geometry.intermediate_size = 456;  // the inputs of `down` wrap around the ring buffer
  geometry.bfloat16 = true;
  return geometry;
}

// A model with three adapters, loaded on the CPU and on the emulated device. Sequence n uses
// adapter n % 4 - 1; -1: none.
class DeviceAdapterTest : public ::testing::TestWithParam<Arithmetic> {
 protected:
  static constexpr int kAdapters = 3;

  explicit DeviceAdapterTest(bool late = true, const TinyGeometry& geometry = Geometry())
      : device_(std::make_shared<CountingDevice>(late)) {
    const std::string dir = NewTinyCheckpoint(geometry, "device_adapters");
    InvariantGemmaOptions options{1, 16};
    options.arithmetic = GetParam();
    if (GetParam() == Arithmetic::kInt8) options.weights = WeightForm::kQ8_0;
    options.kv_dtype = std::nullopt;
    models_[0] = InvariantGemma::Load(dir, options).value();
    options.device = device_;
    models_[1] = InvariantGemma::Load(dir, options).value();
    // the inner values of the first adapter's q, k and v need four thread blocks
    const TinyAdapter adapters[] = {{1, 17, AllProjections(2)}, {2}, {3, 5, {"1.mlp.up_proj"}}};
    for (int i = 0; i < kAdapters; ++i) {
      names_.push_back(folder_.File(absl::StrCat(i)));
      std::filesystem::create_directory(names_.back());
      WriteTinyAdapter(geometry, adapters[i], names_.back());
    }
  }
  ~DeviceAdapterTest() override { LateCopies::SetLate(false); }

  void LoadAdapters() {
    for (int i = 0; i < kAdapters; ++i) {
      for (int on = 0; on < 2; ++on) {
        adapters_[on].push_back(models_[on]->LoadAdapter(names_[static_cast<size_t>(i)]).value());
      }
    }
  }

  struct Sequence {
    int number = 0;
    InvariantGemma::Kv kv[2];  // on the CPU, on the device
    std::vector<int32_t> tokens;
    StepLogits logits[2];
  };
  Sequence NewSequence(int number) {
    Sequence sequence;
    sequence.number = number;
    for (int on = 0; on < 2; ++on) {
      sequence.kv[on] = models_[on]->NewKv();
      if (number % 4 == 0) continue;
      sequence.kv[on].UseAdapter(adapters_[on][static_cast<size_t>(number % 4 - 1)]);
    }
    return sequence;
  }

  // Appends tokens[i] tokens to sequence i in one step of both models, and compares the logits of
  // all tokens.
  void Step(std::vector<Sequence>* sequences, const std::vector<int>& tokens) {
    for (int on = 0; on < 2; ++on) {
      std::vector<InvariantPart> parts;
      for (size_t i = 0; i < tokens.size(); ++i) {
        Sequence& one = (*sequences)[i];
        const int begin = one.kv[on].length();
        one.tokens.clear();
        for (int k = 0; k < tokens[i]; ++k) {
          one.tokens.push_back((one.number * 31 + (begin + k) * 7) % 160);
        }
        if (tokens[i] > 0) parts.push_back({&one.kv[on], one.tokens, tokens[i], &one.logits[on]});
      }
      ASSERT_TRUE(models_[on]->Step(parts).ok());
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
      Sequence& one = (*sequences)[i];
      const absl::Span<float> ours = one.logits[0].values(), theirs = one.logits[1].values();
      ASSERT_EQ(ours.size(), theirs.size());
      EXPECT_EQ(FirstDifference(theirs.data(), ours.data(), static_cast<int64_t>(ours.size())), "")
          << "sequence " << i << ", length " << one.kv[0].length();
    }
  }

  const TestFolder folder_;
  const std::shared_ptr<CountingDevice> device_;
  std::unique_ptr<InvariantGemma> models_[2];
  std::vector<std::string> names_;
  std::vector<std::shared_ptr<const LoraAdapter>> adapters_[2];
};

TEST_P(DeviceAdapterTest, EveryStepSizeMatchesCpuBits) {
  LoadAdapters();
  std::vector<Sequence> one;
  one.push_back(NewSequence(1));
  for (const int rows : {1, 2, 3, 5, 9, 17, 33}) Step(&one, {rows});
}

// The runs of adapters begin and end within tiles, and some tiles have eight runs.
TEST_P(DeviceAdapterTest, MixedAdaptersMatchCpuBits) {
  LoadAdapters();
  std::vector<Sequence> all;
  for (int i = 0; i < 13; ++i) all.push_back(NewSequence(i));
  Step(&all, {5, 11, 3, 2, 20});
  Step(&all, {1, 0, 0, 1});
  Step(&all, {0, 1, 1, 1, 9, 1, 1, 1, 1, 1, 1, 1, 1});
  Step(&all, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
  Step(&all, {1, 0, 0, 0, 1});  // no adapters: the other graph
  Step(&all, {0, 0, 17});
}

TEST_P(DeviceAdapterTest, PrefillEqualsDecode) {
  LoadAdapters();
  std::vector<Sequence> whole, split;
  for (int i = 0; i < 4; ++i) {
    whole.push_back(NewSequence(i));
    split.push_back(NewSequence(i));
  }
  Step(&whole, {12, 12, 12, 12});
  for (int at = 0; at < 12; ++at) Step(&split, {1, 1, 1, 1});
  for (size_t i = 0; i < 4; ++i) {
    const absl::Span<float> logits = split[i].logits[1].values();
    const auto count = static_cast<int64_t>(logits.size());
    const float* last = whole[i].logits[1].values().data() + 11 * count;
    EXPECT_EQ(FirstDifference(logits.data(), last, count), "") << i;
  }
  // each adapter changes the logits
  for (size_t i = 1; i < 4; ++i) {
    const absl::Span<float> plain = split[0].logits[1].values();
    EXPECT_NE(split[i].logits[1].values().subspan(0, plain.size()), plain);
  }
}

// A step without adapters replays the graph that was captured before the adapter was loaded.
TEST_P(DeviceAdapterTest, OnlyChangedProductsHaveMoreLaunches) {
  const auto launches = [&](int number) {
    std::vector<Sequence> one;
    one.push_back(NewSequence(number));
    device_->launches = 0;
    Step(&one, {9});
    return device_->launches;
  };
  const int plain = launches(0);
  adapters_[0].resize(1);
  adapters_[1].resize(1);
  for (int on = 0; on < 2; ++on) {
    adapters_[on].push_back(models_[on]->LoadAdapter(names_[1]).value());
  }
  EXPECT_EQ(launches(2), plain + 2 * 2 * 2);  // two programs, products and layers
  EXPECT_EQ(launches(0), 0);
}

TEST_P(DeviceAdapterTest, TooLittleMemoryIsError) {
  device_->most_bytes = 1000;
  const auto adapter = models_[1]->LoadAdapter(names_[0]);
  EXPECT_EQ(adapter.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(adapter.status().message()),
              ::testing::HasSubstr("too little memory for the adapter"));
}

TEST(DeviceAdapterMemory, AdapterLowersChosenKvBudget) {
  const auto device = std::make_shared<CountingDevice>(false);
  const std::string dir = NewTinyCheckpoint(Geometry(), "device_adapters");
  const TestFolder folder;
  WriteTinyAdapter(Geometry(), {1}, folder.path());
  for (const uint64_t given : {uint64_t{0}, uint64_t{5000}}) {
    InvariantGemmaOptions options{1, 16, given};
    options.device = device;
    device->free = 4000;
    const auto gemma = InvariantGemma::Load(dir, options).value();
    EXPECT_EQ(gemma->kv_blocks().budget_bytes(), given > 0 ? given : 3000);
    device->free = 1000;
    ASSERT_TRUE(gemma->LoadAdapter(folder.path()).ok());
    EXPECT_EQ(gemma->kv_blocks().budget_bytes(), given > 0 ? given : 750);
  }
}

// A model whose steps of many rows use warpgroup instructions if no row has an adapter.
class WideAdapterTest : public DeviceAdapterTest {
 protected:
  static TinyGeometry Wide() {
    TinyGeometry geometry = Geometry();
    geometry.hidden_size = 64;
    geometry.intermediate_size = 448;
    return geometry;
  }
  WideAdapterTest() : DeviceAdapterTest(true, Wide()) {}
};

TEST_P(WideAdapterTest, StepsOfManyRowsMatchCpuBits) {
  ASSERT_TRUE(models_[1]->SelfTest("").ok());
  LoadAdapters();
  std::vector<Sequence> all;
  for (int i = 0; i < 4; ++i) all.push_back(NewSequence(i));
  Step(&all, {35});
  Step(&all, {40, 5, 1, 3});
  Step(&all, {33});
}

INSTANTIATE_TEST_SUITE_P(Arithmetics, DeviceAdapterTest,
                         testing::Values(Arithmetic::kFloat32, Arithmetic::kBFloat16,
                                         Arithmetic::kInt8),
                         [](const auto& info) {
                           if (info.param == Arithmetic::kInt8) return "Int8";
                           return info.param == Arithmetic::kFloat32 ? "Float32" : "Bf16";
                         });
INSTANTIATE_TEST_SUITE_P(Bf16, WideAdapterTest, testing::Values(Arithmetic::kBFloat16));

}  // namespace
}  // namespace hearth
