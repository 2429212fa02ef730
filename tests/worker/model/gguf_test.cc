// Tests the reader of GGUF headers; a corrupt header must give one error.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/support/test_folder.h"
#include "tests/worker/model/file_kit.h"
#include "tests/worker/model/gguf_kit.h"
#include "worker/model/model_config.h"
#include "worker/model/weights.h"
#include "worker/text/tokenizer_loader.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class GgufTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& bytes) {
    WriteAll(path_, bytes);
    return path_;
  }
  std::string ErrorOf(const GgufBytes& file) {
    return std::string(TensorFiles::Open(Write(file.Bytes())).status().message());
  }
  ModelConfig ConfigOf(const GgufBytes& file) {
    const auto config = LoadModelConfig(Write(file.Bytes()));
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? *config : ModelConfig();
  }

  const TestFolder folder_;
  const std::string path_ = folder_.path() + "/sha256-of-a-blob";
};

TEST_F(GgufTest, TensorsGetHuggingFaceNames) {
  GgufBytes file;
  file.tensors.push_back({"blk.17.ffn_gate.weight", {32, 1}, 2, 1504});
  file.tensors.push_back({"v.blk.0.attn_q.weight", {32, 1}, 17, 0});
  file.data_bytes += 18;
  const auto files = TensorFiles::Open(Write(file.Bytes()));
  ASSERT_TRUE(files.ok()) << files.status();
  const TensorView& table = files->tensors().at("model.embed_tokens.weight");
  EXPECT_EQ(table.type, ElementType::kQ8_0);
  EXPECT_THAT(table.shape, ElementsAre(40, 32));
  EXPECT_EQ(table.bytes, 40u * 34);
  EXPECT_EQ(table.offset, file.Header().size());
  EXPECT_FALSE(table.is_one_more);
  EXPECT_TRUE(files->tensors().at("model.norm.weight").is_one_more);
  EXPECT_EQ(files->tensors().at("model.layers.17.mlp.gate_proj.weight").type, ElementType::kQ4_0);
  EXPECT_FALSE(files->tensors().at("v.blk.0.attn_q.weight").type.has_value());
}

TEST_F(GgufTest, MissingFieldsTakeArchitectureDefaults) {
  GgufBytes file;
  ModelConfig config = ConfigOf(file);
  EXPECT_EQ(config.vocab_size, 40);
  EXPECT_EQ(config.attention.sliding_window, 1024);
  EXPECT_EQ(config.attention.query_pre_attn_scalar, 16);
  EXPECT_EQ(config.rope.global.theta, 1e6);
  EXPECT_EQ(config.rope.local.theta, 1e4);
  EXPECT_EQ(config.rope.global.factor, 1);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(1));
  EXPECT_TRUE(config.is_local(0));

  // Gemma 3 1B: Google's file has the wrong window 1,024.
  config = ConfigOf(file.Set("gemma3.block_count", U32(26)));
  EXPECT_EQ(config.attention.sliding_window, 512);
  EXPECT_TRUE(config.is_local(4));
  EXPECT_FALSE(config.is_local(5));
  // Gemma 3 27B, with the field names that Ollama writes.
  file.Set("gemma3.block_count", U32(62)).Set("gemma3.context_length", U32(131072));
  file.Set("gemma3.rope.global.freq_base", F32(2e6f));
  config = ConfigOf(file.Set("gemma3.rope.local.freq_base", F32(2e4f)));
  EXPECT_EQ(config.attention.query_pre_attn_scalar, 16);  // hidden_size / heads
  EXPECT_EQ(config.rope.global.theta, 2e6);
  EXPECT_EQ(config.rope.local.theta, 2e4);
  EXPECT_EQ(config.rope.global.factor, 8);
  EXPECT_EQ(config.rope.local.factor, 1);
  file.Set("gemma3.attention.layer_norm_rms_epsilon", F32(1e-5f));
  file.Set("gemma3.rope.scaling.type", TextValue("linear"));
  config = ConfigOf(file.Set("gemma3.rope.scaling.factor", F32(4)));
  EXPECT_EQ(config.rope.global.factor, 4);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  // Gemma 3's vocabulary has an end-of-turn token.
  file.tensors[0].sizes[1] = 262144;
  file.tensors[1].offset = 262144 * 34;
  file.data_bytes = 262144 * 34 + 128;
  config = ConfigOf(file.Set("tokenizer.ggml.eos_token_id", U32(1)));
  EXPECT_THAT(config.eos_token_ids, ElementsAre(1, 106));
}

TEST_F(GgufTest, IgnoredBosEosFlagsAreNoted) {
  GgufBytes file;
  SetVocabulary(&file);
  const auto notes = [&] {
    const auto loaded = LoadTokenizer(Write(file.Bytes()));
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return loaded.ok() ? loaded->notes : std::vector<std::string>();
  };
  const auto flag = [](bool value) { return Number(uint32_t{7}) + Number<uint8_t>(value); };
  const auto is_about_either = HasSubstr("is ignored: a text prompt begins with <bos>");
  EXPECT_THAT(notes(), Not(Contains(is_about_either)));
  file.Set("tokenizer.ggml.add_bos_token", flag(true));
  file.Set("tokenizer.ggml.add_eos_token", flag(false));
  EXPECT_THAT(notes(), Not(Contains(is_about_either))) << "as Gemma's files say";
  file.Set("tokenizer.ggml.add_bos_token", flag(false));
  EXPECT_THAT(notes(), Contains(is_about_either).Times(1));
  EXPECT_THAT(notes(), Contains(HasSubstr("tokenizer: add_bos_token = false is ignored")));
  file.Set("tokenizer.ggml.add_eos_token", flag(true));
  EXPECT_THAT(notes(), Contains(is_about_either).Times(2));
  EXPECT_THAT(notes(), Contains(HasSubstr("tokenizer: add_eos_token = true is ignored")));
}

TEST_F(GgufTest, UnsupportedFileErrorNamesReason) {
  const auto with = [](const std::string& name, const std::string& value) {
    return GgufBytes().Set(name, value);
  };
  EXPECT_THAT(ErrorOf(with("general.architecture", TextValue("llama"))),
              AllOf(HasSubstr(path_), HasSubstr("must be gemma3; got \"llama\"")));
  EXPECT_THAT(ErrorOf(with("general.architecture", TextValue("clip"))), HasSubstr("mmproj"));
  EXPECT_THAT(ErrorOf(with("general.type", TextValue("mmproj"))), HasSubstr("mmproj"));
  EXPECT_THAT(ErrorOf(with("split.count", U32(3))), HasSubstr("one of 3 parts"));
  GgufBytes file;
  file.version = 1;
  EXPECT_THAT(ErrorOf(file), HasSubstr("GGUF version 1 is not supported"));
  file.version = 3U << 24;
  EXPECT_THAT(ErrorOf(file), HasSubstr("big endian"));
  const auto config =
      LoadModelConfig(Write(with("gemma3.rope.scaling.type", TextValue("yarn")).Bytes()));
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("rope.scaling.type"));
  file = GgufBytes();
  file.tensors[0].type = 16;
  const auto files = TensorFiles::Open(Write(file.Bytes()));
  ASSERT_TRUE(files.ok()) << files.status();  // only FindTensors checks the type
  const auto tensors = FindTensors(*files, *LoadModelConfig(path_));
  EXPECT_THAT(std::string(tensors.status().message()),
              AllOf(HasSubstr("embed_tokens"), HasSubstr("IQ2_XXS")));
}

TEST_F(GgufTest, InconsistentHeaderIsRefused) {
  GgufBytes file;
  file.tensors[1].offset = 1024;
  EXPECT_THAT(ErrorOf(file), HasSubstr("overlaps"));
  file.tensors[1].offset = uint64_t{1} << 63;
  EXPECT_THAT(ErrorOf(file), HasSubstr("lie outside the file"));
  file = GgufBytes();
  file.tensors[0].sizes = {uint64_t{1} << 40, uint64_t{1} << 40};
  EXPECT_THAT(ErrorOf(file), HasSubstr("is empty or too large"));
  file.tensors[0].sizes = {33, 1};
  EXPECT_THAT(ErrorOf(file), HasSubstr("whole number of blocks"));
  file.tensors[0].sizes = {1, 1, 1, 1, 1};
  EXPECT_THAT(ErrorOf(file), HasSubstr("rank 5"));
  file = GgufBytes();
  file.tensors[1].name = file.tensors[0].name;
  EXPECT_THAT(ErrorOf(file), HasSubstr("twice"));
  file = GgufBytes();
  file.fields.push_back(file.fields[3]);
  EXPECT_THAT(ErrorOf(file), HasSubstr("block_count occurs twice"));
  // A list that claims to have 2^60 texts.
  const std::string endless = Number(kList) + Number(kText) + Number(uint64_t{1} << 60);
  EXPECT_THAT(ErrorOf(GgufBytes().Set("a", endless)), HasSubstr("exceeds the header"));
  const std::string of_lists = Number(kList) + Number(kList) + Number(uint64_t{1});
  EXPECT_THAT(ErrorOf(GgufBytes().Set("a", of_lists)), HasSubstr("the type is not supported"));
  EXPECT_THAT(ErrorOf(GgufBytes().Set("a b", U32(1))), HasSubstr("must be printable ASCII"));
  EXPECT_THAT(ErrorOf(GgufBytes().Set("general.alignment", U32(24))), HasSubstr("alignment 24"));
}

TEST_F(GgufTest, MissingTensorErrorNamesFile) {
  const GgufBytes file;
  const ModelConfig config = ConfigOf(file);
  const auto files = TensorFiles::Open(Write(file.Bytes()));
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT(std::string(FindTensors(*files, config).status().message()),
              AllOf(HasSubstr(path_ + ": tensor model.layers.0."), HasSubstr("is missing")));
}

TEST_F(GgufTest, CorruptHeaderNeverCrashes) {
  const std::string whole = GgufBytes().Bytes();
  const size_t header = GgufBytes().Header().size();
  for (size_t bytes = 4; bytes < whole.size(); bytes += bytes < header ? 1 : 97) {
    const auto files = TensorFiles::Open(Write(whole.substr(0, bytes)));
    ASSERT_FALSE(files.ok()) << bytes;
    EXPECT_THAT(std::string(files.status().message()), HasSubstr(path_));
  }
  std::mt19937_64 random(3);
  for (int round = 0; round < 3000; ++round) {
    std::string broken = whole;
    for (int flips = 1 + static_cast<int>(random() % 3); flips > 0; --flips) {
      broken[4 + random() % (header - 4)] ^= static_cast<char>(1 << random() % 8);
    }
    if (round % 3 == 0) broken.insert(4 + random() % header, broken, random() % header, 24);
    Write(broken);
    for (const absl::Status& status :
         {TensorFiles::Open(path_).status(), LoadModelConfig(path_).status()}) {
      if (status.ok()) continue;
      ASSERT_THAT(std::string(status.message()), HasSubstr(path_));
    }
  }
}

}  // namespace
}  // namespace hearth
