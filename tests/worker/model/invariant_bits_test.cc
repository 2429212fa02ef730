// Compares logits of the exactness class invariant with recorded bits. If a bit changes, increment
// kKernelsVersion: otherwise old and new workers would store different bytes under the same key.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "proto/fingerprint.h"
#include "tests/support/sanitized.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/worker/kernels/kernel_kit.h"
#include "worker/model/invariant/invariant_gemma.h"

namespace hearth {
namespace {

std::string FileOf(const std::string& path) {
  std::stringstream read;
  read << std::ifstream(path, std::ios::binary).rdbuf();
  return read.str();
}

// Returns the digest of all logits of a fixed text, computed in steps of `step` tokens.
std::string AllLogitsSha256(const InvariantGemma& gemma, int tokens, int step) {
  InvariantGemma::Kv kv = gemma.NewKv();
  std::string all;
  for (int at = 0; at < tokens; at += step) {
    std::vector<int32_t> text;
    for (int i = at; i < std::min(tokens, at + step); ++i) {
      text.push_back((i * 37 + i * i % 11) % gemma.config().vocab_size);
    }
    std::vector<float> logits;
    EXPECT_TRUE(gemma.Step(&kv, text, static_cast<int>(text.size()), &logits).ok());
    all.append(reinterpret_cast<const char*>(logits.data()), logits.size() * sizeof(float));
  }
  return DigestHex(Sha256(all));
}

struct WrittenDown {
  std::string layers;
  int window, heads, kv_heads, head_dim, hidden;
  double softcap;  // softcap of scores and of logits; 0: no softcap
  const char* sha256;
};

std::string CheckpointOf(const WrittenDown& model) {
  TinyGeometry geometry;
  geometry.layer_types = model.layers;
  geometry.window = model.window;
  geometry.heads = model.heads;
  geometry.kv_heads = model.kv_heads;
  geometry.head_dim = model.head_dim;
  geometry.hidden_size = model.hidden;
  geometry.bfloat16 = true;
  const std::string dir = NewTinyCheckpoint(geometry, "bits");
  if (model.softcap > 0) {
    auto config = nlohmann::json::parse(FileOf(dir + "/config.json"));
    config["attn_logit_softcapping"] = config["final_logit_softcapping"] = model.softcap;
    std::ofstream(dir + "/config.json") << config;
  }
  return dir;
}

// The head shapes of Gemma 3 270M and 1B, of 4B, and small heads without shared KV heads.
TEST(InvariantBits, LogitsHaveRecordedBits) {
  if (kIsSanitized) GTEST_SKIP() << "WidenedWeightsGiveSameBits runs the same code";
  ASSERT_EQ(InvariantGemma::kKernelsVersion, 1) << "write the new bits down";
  const WrittenDown models[] = {
      {"llg", 24, 4, 1, 256, 64, 0,
       "ec37f54f474a7e18ed754bc822b4d7cac7623052a2cb70a98b33925e12ed5487"},
      {"lg", 100, 8, 4, 256, 48, 0,
       "e7070092f1a7f2ba685fa4f936a4bb647352a37e0113bc5e9c098790800f2bd8"},
      {"gl", 40, 8, 8, 16, 70, 20,
       "cf591c8296968b519424eefd30302e975569bd66e3c6de79f50d38f9c5d3a996"},
  };
  for (const WrittenDown& model : models) {
    const std::string dir = CheckpointOf(model);
    for (const int threads : {1, 3}) {
      const auto gemma = InvariantGemma::Load(dir, {threads, /*chunk=*/16});
      ASSERT_TRUE(gemma.ok()) << gemma.status();
      ForEachTarget([&](const std::string& target) {
        for (const int step : {1, 7, 130}) {
          const bool slow = step == 1 || target == "plain";
          // slow: tested with only one step size and thread count
          if (slow && (threads > 1 || step == 130)) continue;
          EXPECT_EQ(AllLogitsSha256(**gemma, 130, step), model.sha256)
              << model.layers << ", " << target << ", " << threads << " threads, steps of " << step;
        }
      });
    }
  }
}

InvariantGemmaOptions With(WeightForm form, int threads,
                           Arithmetic arithmetic = Arithmetic::kFloat32) {
  InvariantGemmaOptions options{threads, /*chunk=*/16};
  options.weights = form;
  options.arithmetic = arithmetic;
  if (arithmetic == Arithmetic::kBFloat16) options.kv_dtype = std::nullopt;
  return options;
}

TEST(InvariantBits, WidenedWeightsGiveSameBits) {
  const std::string dir = CheckpointOf({"lg", 100, 8, 4, 256, 48, 0, ""});
  const auto stored = InvariantGemma::Load(dir, With(WeightForm::kStored, 2));
  const auto wide = InvariantGemma::Load(dir, With(WeightForm::kFloat32, 2));
  ASSERT_TRUE(stored.ok() && wide.ok());
  EXPECT_EQ(AllLogitsSha256(**wide, 130, 7), AllLogitsSha256(**stored, 130, 7));
}

// If these bits change, change the field `weights` of the model fingerprint.
void ExpectBits(WeightForm form, const std::string& sha256) {
  const std::string dir = CheckpointOf({"llg", 24, 4, 1, 256, 160, 0, ""});
  for (const int threads : {1, 3}) {
    const auto gemma = InvariantGemma::Load(dir, With(form, threads));
    ASSERT_TRUE(gemma.ok()) << gemma.status();
    EXPECT_TRUE((*gemma)->SelfTest("").ok());
    ForEachTarget([&](const std::string& target) {
      for (const int step : {1, 7, 130}) {
        if ((step == 1 || target == "plain") && (threads > 1 || step == 130)) continue;
        EXPECT_EQ(AllLogitsSha256(**gemma, 130, step), sha256)
            << target << ", " << threads << " threads, steps of " << step;
      }
    });
  }
}
// If these bits change, change the version in ArithmeticName.
void ExpectIntegerBits(WeightForm form, const std::string& sha256) {
  const std::string dir = CheckpointOf({"llg", 24, 4, 1, 256, 160, 0, ""});
  for (const int threads : {1, 3}) {
    const auto gemma = InvariantGemma::Load(dir, With(form, threads, Arithmetic::kInt8));
    ASSERT_TRUE(gemma.ok()) << gemma.status();
    EXPECT_EQ((*gemma)->arithmetic(), Arithmetic::kInt8);
    EXPECT_TRUE((*gemma)->SelfTest("").ok());
    ForEachIntegerKernel([&](const std::string& kernel) {
      for (const int step : {1, 7, 130}) {
        if ((step == 1 || kernel == "plain") && (threads > 1 || step == 130)) continue;
        EXPECT_EQ(AllLogitsSha256(**gemma, 130, step), sha256)
            << kernel << ", " << threads << " threads, steps of " << step;
      }
    });
  }
}
TEST(InvariantBits, IntegerProductsHaveRecordedBits) {
  if (kIsSanitized) GTEST_SKIP() << "the tests of the kernels check the memory";
  ExpectIntegerBits(WeightForm::kQ8_0,
                    "16566b33ab1b553c3af2a2936ed8c7121a4134ebd7319fc12f1f49c0ff6c26c6");
  ExpectIntegerBits(WeightForm::kQ4_0,
                    "ec43eda0b68fcdb9032652a0cf15ebcfd6b39803b6e9fa976f2cc26bf1c15b5a");
}
// If these bits change, change the version in ArithmeticName. The target "plain" computes them with
// FusedDot.
TEST(InvariantBits, Bf16HasRecordedBits) {
  if (kIsSanitized) GTEST_SKIP() << "the tests of the kernels check the memory";
  const std::string dir = CheckpointOf({"llg", 24, 4, 1, 256, 160, 0, ""});
  const auto gemma = InvariantGemma::Load(dir, With(WeightForm::kStored, 2, Arithmetic::kBFloat16));
  ASSERT_TRUE(gemma.ok()) << gemma.status();
  EXPECT_EQ((*gemma)->arithmetic(), Arithmetic::kBFloat16);
  EXPECT_TRUE((*gemma)->SelfTest("").ok());
  ForEachTarget([&](const std::string& target) {
    for (const int step : {1, 7, 130}) {
      if (target == "plain" && step != 7) continue;
      EXPECT_EQ(AllLogitsSha256(**gemma, 130, step),
                "0e8233c39322fa94ff113ac5f9e12889a220cf04dbcfc44685ffd76073097d28")
          << target << ", steps of " << step;
    }
  });
}
// In a checkpoint without quantized matrices, kInt8 has no effect.
TEST(InvariantBits, UnquantizedMatricesMultiplyInFloat32) {
  const std::string dir = CheckpointOf({"lg", 100, 8, 4, 256, 48, 0, ""});
  const auto plain = InvariantGemma::Load(dir, With(WeightForm::kStored, 2));
  const auto asked = InvariantGemma::Load(dir, With(WeightForm::kStored, 2, Arithmetic::kInt8));
  ASSERT_TRUE(plain.ok() && asked.ok());
  EXPECT_EQ((*asked)->arithmetic(), Arithmetic::kFloat32);
  EXPECT_EQ(AllLogitsSha256(**asked, 130, 7), AllLogitsSha256(**plain, 130, 7));
}

TEST(InvariantBits, QuantizedWeightsHaveRecordedBits) {
  if (kIsSanitized) GTEST_SKIP() << "the tests of the kernels check the memory";
  ExpectBits(WeightForm::kQ8_0, "af6cd00c9adc2356cfae7107479495f065504ae0ffd2f22c080c384bec148a98");
  ExpectBits(WeightForm::kQ4_0, "ac69e891bae84afe0b30b62a20032be7a8dd79405242c9194bf5de0ffe293092");
}

}  // namespace
}  // namespace hearth
