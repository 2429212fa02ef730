// Compares DeviceStep on the emulated device with InvariantGemma: logits, keys and values must have
// the same bits.
#include "worker/device/device_step.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/seeded_device_model.h"
#include "tests/worker/kernels/kernel_kit.h"
#include "worker/device/emulated_device.h"
#include "worker/model/invariant/invariant_gemma.h"

namespace hearth {
namespace {

constexpr int kSplit = 16;

SeededGeometry Geometry(const std::string& layers, int window, int heads, int kv_heads,
                        int head_dim = 32) {
  return {"tiny", layers, window, heads, kv_heads, head_dim, 40, 72, 150, 512};
}

// One model loaded twice: on the CPU kernels and on an emulated device.
class Pair {
 public:
  explicit Pair(const SeededGeometry& geometry, bool late = false,
                const DeviceStepLimits& limits = {256, 64, 512, 1024}, int split = kSplit,
                KvDtype kv_dtype = KvDtype::kFloat32, Arithmetic arithmetic = Arithmetic::kFloat32)
      : device_(late) {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "hearth_device_XXXXXX").string();
    dir_ = mkdtemp(pattern.data());
    WriteSeededModel(geometry, dir_);
    InvariantGemmaOptions options{1, split, uint64_t{1} << 30};
    options.kv_dtype = kv_dtype;
    options.arithmetic = arithmetic;
    auto loaded = InvariantGemma::Load(dir_, options);
    if (!loaded.ok()) std::abort();
    gemma_ = *std::move(loaded);
    model_ = MakeSeededModel(&device_, geometry, split, 512,
                             [this](const auto& rows, int inputs, bool is_pair) {
                               return MakeSeededMatrix(&device_, rows, inputs, is_pair);
                             });
    model_.shape.kv_is_bf16 = kv_dtype == KvDtype::kBFloat16;
    model_.multiplies_bf16 = arithmetic == Arithmetic::kBFloat16;
    step_ = std::make_unique<DeviceStep>(&device_, &model_, limits);
  }
  ~Pair() { std::filesystem::remove_all(dir_); }

  const InvariantGemma& gemma() const { return *gemma_; }
  EmulatedDevice* device() { return &device_; }
  const DeviceShape& shape() const { return model_.shape; }
  DeviceStep* step() { return step_.get(); }

 private:
  std::string dir_;
  std::unique_ptr<InvariantGemma> gemma_;
  EmulatedDevice device_;
  DeviceModel model_;
  std::unique_ptr<DeviceStep> step_;
};

// A sequence that both models compute.
struct Text {
  int number = 0, length = 0;
  InvariantGemma::Kv kv;
  std::array<std::vector<std::byte*>, 2> blocks;
  std::vector<int32_t> tokens;  // tokens of the current step
  StepLogits logits;
};

class Texts {
 public:
  Texts(Pair* pair, int count) : pair_(pair), texts_(static_cast<size_t>(count)) {
    for (int i = 0; i < count; ++i) {
      texts_[static_cast<size_t>(i)].number = i;
      texts_[static_cast<size_t>(i)].kv = pair->gemma().NewKv();
    }
  }

  struct Some {
    int text, tokens, want;
  };
  // Appends tokens to some sequences in one step of both models, and compares the results.
  void Step(const std::vector<Some>& some) {
    std::vector<InvariantPart> parts;
    std::vector<DevicePart> device_parts;
    size_t wanted = 0;
    for (const Some& one : some) {
      Text& text = texts_[static_cast<size_t>(one.text)];
      text.tokens.clear();
      for (int i = 0; i < one.tokens; ++i) {
        text.tokens.push_back(SeededToken(text.number, text.length + i, pair_->shape().vocabulary));
      }
      GrowBlocks(&text, text.length + one.tokens);
      parts.push_back({&text.kv, text.tokens, one.want, &text.logits});
      device_parts.push_back(
          {text.tokens, text.length, one.want, {text.blocks[0], text.blocks[1]}});
      text.length += one.tokens;
      wanted += static_cast<size_t>(one.want);
    }
    ASSERT_TRUE(pair_->gemma().Step(parts).ok());
    const auto vocabulary = static_cast<size_t>(pair_->shape().vocabulary);
    std::vector<float> logits(wanted * vocabulary, std::numeric_limits<float>::quiet_NaN());
    pair_->step()->Run(device_parts, logits.data());
    for (const float logit : logits) ASSERT_TRUE(std::isfinite(logit));
    size_t at = 0;
    for (const Some& one : some) {
      const Text& text = texts_[static_cast<size_t>(one.text)];
      const size_t count = static_cast<size_t>(one.want) * vocabulary;
      EXPECT_EQ(FirstDifference(logits.data() + at, text.logits.values().data(),
                                static_cast<int64_t>(count)),
                "")
          << "text " << one.text << ", length " << text.length;
      at += count;
      CompareKv(text);
    }
  }

 private:
  // New blocks contain NaN, like all new memory of the emulated device. Local blocks before the
  // next row's window are filled with NaN too.
  void GrowBlocks(Text* text, int length) {
    for (int group = 0; group < 2; ++group) {
      const int64_t bytes = pair_->shape().LayersIn(group == 1) * pair_->shape().SliceBytes();
      const int split = pair_->shape().split;
      const int passed = group == 1 ? 0 : (text->length + 1 - pair_->shape().window) / split;
      for (int i = 0; i < passed; ++i) {
        std::memset(text->blocks[0][static_cast<size_t>(i)], 0xff, static_cast<size_t>(bytes));
      }
      while (static_cast<int>(text->blocks[static_cast<size_t>(group)].size()) * split < length) {
        text->blocks[static_cast<size_t>(group)].push_back(
            static_cast<std::byte*>(pair_->device()->Allocate(static_cast<size_t>(bytes))));
      }
    }
  }

  void CompareKv(const Text& text) {
    const int begin = text.length - static_cast<int>(text.tokens.size());  // of this step
    const DeviceShape& shape = pair_->shape();
    for (int layer = 0; layer < shape.layers(); ++layer) {
      const bool is_global = shape.is_global[static_cast<size_t>(layer)];
      const std::vector<const std::byte*> splits = text.kv.SplitsOf(layer);
      for (size_t split = 0; split < splits.size(); ++split) {
        const int keys_end = (static_cast<int>(split) + 1) * shape.split;
        if (splits[split] == nullptr) continue;
        if (!is_global && keys_end <= begin + 1 - shape.window) continue;
        const int tokens =
            std::min(shape.split, text.length - static_cast<int>(split) * shape.split);
        const std::byte* mine =
            text.blocks[is_global][split] + shape.LayersBefore(layer) * shape.SliceBytes();
        const int64_t run_bytes = shape.SliceBytes() / (2 * shape.kv_heads);
        for (int run = 0; run < 2 * shape.kv_heads; ++run) {
          const int64_t at = run * run_bytes;
          ASSERT_EQ(std::memcmp(mine + at, splits[split] + at,
                                static_cast<size_t>(run_bytes / shape.split * tokens)),
                    0)
              << "layer " << layer << ", split " << split << ", run " << run;
        }
      }
    }
  }

  Pair* const pair_;
  std::vector<Text> texts_;
};

// Prefill in small and large steps, then decoding. The windows end inside a KV block.
TEST(DeviceStep, PrefillAndDecodeMatchCpuBits) {
  for (const SeededGeometry& geometry :
       {Geometry("lg", 24, 4, 1), Geometry("llg", 33, 4, 2, 16), Geometry("gl", 16, 2, 2, 64)}) {
    Pair pair(geometry);
    Texts texts(&pair, 3);
    texts.Step({{0, 1, 1}});
    texts.Step({{0, 1, 1}});
    texts.Step({{0, 33, 2}});
    texts.Step({{1, 129, 3}});
    texts.Step({{0, 1, 1}, {1, 1, 1}});
    texts.Step({{2, 70, 0}, {0, 1, 1}, {1, 2, 2}});
    for (int i = 0; i < 18; ++i) texts.Step({{0, 1, 1}, {2, 1, 1}, {1, 1, 1}});
  }
}

TEST(DeviceStep, SoftcapsMatchCpuBits) {
  SeededGeometry geometry = Geometry("lg", 24, 4, 1);
  geometry.attention_softcap = 1.5;
  geometry.logit_softcap = 2;
  Pair pair(geometry);
  Texts texts(&pair, 2);
  texts.Step({{0, 40, 3}});
  texts.Step({{0, 1, 1}, {1, 3, 2}});
}

// Keys and values in bfloat16. The last geometry's split has more keys than the ring buffer for
// values.
TEST(DeviceStep, Bf16KeysAndValuesMatchCpuBits) {
  const std::pair<SeededGeometry, int> cases[] = {{Geometry("lg", 24, 4, 4), kSplit},
                                                  {Geometry("llg", 33, 4, 2, 16), kSplit},
                                                  {Geometry("gl", 16, 4, 1, 64), 32},
                                                  {Geometry("lg", 150, 8, 1), 128}};
  for (const auto& [geometry, split] : cases) {
    Pair pair(geometry, true, {256, 64, 512, 1024}, split, KvDtype::kBFloat16);
    Texts texts(&pair, 3);
    texts.Step({{0, 33, 2}});
    texts.Step({{1, 170, 3}});
    texts.Step({{2, 70, 0}, {0, 1, 1}, {1, 2, 2}});
    for (int i = 0; i < 5; ++i) texts.Step({{0, 1, 1}, {2, 1, 1}, {1, 1, 1}});
  }
  LateCopies::SetLate(false);
}

struct AttentionCase {
  SeededGeometry geometry;
  int split;
};
class DeviceStepInBf16 : public testing::TestWithParam<AttentionCase> {};

// Prompts of one row to more than two tiles, over several splits, alone and together; then
// decoding.
TEST_P(DeviceStepInBf16, AttentionMatchesCpuBits) {
  Pair pair(GetParam().geometry, true, {256, 64, 512, 1024}, GetParam().split, KvDtype::kBFloat16,
            Arithmetic::kBFloat16);
  Texts texts(&pair, 4);
  for (const int rows : {1, 2, 4, 8, 16, 33}) texts.Step({{0, rows, std::min(rows, 2)}});
  texts.Step({{1, 135, 1}});
  texts.Step({{1, 1, 1}, {2, 33, 2}, {0, 90, 0}});
  for (int i = 0; i < 3; ++i) texts.Step({{0, 1, 1}, {2, 1, 1}, {1, 1, 1}, {3, 2, 1}});
  LateCopies::SetLate(false);
}

SeededGeometry Softcapped() {
  SeededGeometry geometry = Geometry("lg", 40, 6, 2);
  geometry.attention_softcap = 1.5;
  return geometry;
}

INSTANTIATE_TEST_SUITE_P(Shapes, DeviceStepInBf16,
                         testing::Values(AttentionCase{Geometry("lg", 24, 1, 1, 64), 32},
                                         AttentionCase{Geometry("gl", 100, 4, 2, 128), 128},
                                         AttentionCase{Geometry("lg", 33, 4, 1, 256), 64},
                                         AttentionCase{Softcapped(), 16},
                                         AttentionCase{Geometry("lg", 17, 9, 1, 16), 16},
                                         AttentionCase{Geometry("lg", 150, 16, 1, 48), 256}),
                         [](const auto& info) {
                           return "HeadsOf" + std::to_string(info.param.geometry.head_dim) +
                                  "SplitsOf" + std::to_string(info.param.split);
                         });

TEST(DeviceStep, EveryRowCountInBf16MatchesCpuBits) {
  Pair pair(Geometry("lg", 20, 4, 1), false, {256, 64, 40, 1024}, kSplit, KvDtype::kBFloat16,
            Arithmetic::kBFloat16);
  Texts texts(&pair, 34);
  for (int rows = 1; rows <= 33; rows += rows < 9 ? 1 : 6) {
    std::vector<Texts::Some> some;
    for (int i = 0; i < rows; ++i) some.push_back({i, 1, 1});
    texts.Step(some);
  }
  texts.Step({{33, 33, 33}});
}

// If the buffer for softmax states is too small, one item computes all splits of a row.
TEST(DeviceStep, SmallStateBufferMatchesCpuBits) {
  Pair pair(Geometry("lg", 24, 4, 1), false, {256, 64, 40, 1024});
  Texts texts(&pair, 3);
  texts.Step({{0, 100, 1}, {1, 60, 1}});
  texts.Step({{0, 1, 1}, {1, 1, 1}, {2, 2, 1}});
}

TEST(DeviceStep, EveryRowCountMatchesCpuBits) {
  Pair pair(Geometry("lg", 20, 4, 1));
  Texts texts(&pair, 34);
  for (int rows = 1; rows <= 33; ++rows) {
    std::vector<Texts::Some> some;
    for (int i = 0; i < rows; ++i) some.push_back({i, 1, 1});
    texts.Step(some);
  }
  texts.Step({{33, 33, 33}});
}

TEST(DeviceStep, DelayedCopiesGiveSameBits) {
  Pair pair(Geometry("lg", 20, 4, 2), true);
  Texts texts(&pair, 2);
  texts.Step({{0, 40, 1}});
  texts.Step({{0, 1, 1}, {1, 3, 1}});
  LateCopies::SetLate(false);
}

TEST(DeviceStep, DelayedCopiesInBf16GiveSameBits) {
  Pair pair(Geometry("lg", 20, 4, 2), true, {256, 64, 512, 1024}, 128, KvDtype::kBFloat16,
            Arithmetic::kBFloat16);
  Texts texts(&pair, 2);
  texts.Step({{0, 140, 1}});
  texts.Step({{0, 1, 1}, {1, 3, 1}});
  LateCopies::SetLate(false);
}

// A split has more keys than the ring buffer for values, so the ring buffer wraps around.
TEST(DeviceStep, WrappedRingBufferGivesSameBits) {
  for (const int kv_heads : {1, 4}) {
    Pair pair(Geometry("lg", 150, 4, kv_heads), true, {256, 64, 512, 1024}, 128);
    Texts texts(&pair, 1);
    texts.Step({{0, 250, 1}});
    for (int i = 0; i < 8; ++i) texts.Step({{0, 1, 1}});
  }
  LateCopies::SetLate(false);
}

}  // namespace
}  // namespace hearth
