// What a model folder may say, and how each thing that it may not is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_replace.h"
#include "tests/support/tiny_checkpoint.h"
#include "worker/gemma.h"
#include "worker/model_config.h"
#include "worker/safetensors.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

void WriteAll(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

struct Published {
  const char* name;
  int layers, global_layers, kv_heads, head_dim, window;
  double scalar, factor;
};

TEST(ModelConfig, ReadsThePublishedGeometries) {
  const Published all[] = {{"270m", 18, 3, 1, 256, 512, 256, 1},
                           {"1b", 26, 4, 1, 256, 512, 256, 1},
                           {"4b", 34, 5, 4, 256, 1024, 256, 8},
                           {"12b", 48, 8, 8, 256, 1024, 256, 8},
                           {"27b", 62, 10, 16, 128, 1024, 168, 8}};
  for (const Published& one : all) {
    const std::string file = std::string(HEARTH_CONFIGS_DIR) + "/gemma-3-" + one.name + ".json";
    const auto config = ParseModelConfig(ReadAll(file), file);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->num_layers, one.layers) << one.name;
    EXPECT_EQ(config->num_global_layers(), one.global_layers) << one.name;
    EXPECT_EQ(config->num_kv_heads, one.kv_heads) << one.name;
    EXPECT_EQ(config->head_dim, one.head_dim) << one.name;
    EXPECT_EQ(config->sliding_window, one.window) << one.name;
    EXPECT_EQ(config->query_pre_attn_scalar, one.scalar) << one.name;
    EXPECT_EQ(config->global_rope.linear_factor, one.factor) << one.name;
    EXPECT_EQ(config->local_rope.linear_factor, 1.0) << one.name;
    EXPECT_EQ(config->local_rope.theta, 10000.0) << one.name;
  }
}

TEST(ModelConfig, RefusesWhatItDoesNotSupportByNameValueAndFile) {
  const std::string good = ReadAll(std::string(HEARTH_CONFIGS_DIR) + "/gemma-3-270m.json");
  ASSERT_TRUE(ParseModelConfig(good, "f.json").ok());
  const struct {
    const char *from, *to, *field, *value;
  } changes[] = {
      {"\"gemma3_text\"", "\"llama\"", "model_type", "llama"},
      {"\"attention_bias\": false", "\"attention_bias\": true", "attention_bias", "true"},
      {"gelu_pytorch_tanh", "silu", "hidden_activation", "silu"},
      {"\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"yarn\"}", "rope_type",
       "yarn"},
      {"\"full_attention\"", "\"chunked_attention\"", "layer_types", "chunked_attention"},
      {"\"head_dim\": 256", "\"head_dim\": \"wide\"", "head_dim", "wide"},
      {"\"use_bidirectional_attention\": false", "\"use_bidirectional_attention\": true",
       "use_bidirectional_attention", "true"},
  };
  for (const auto& change : changes) {
    const std::string text = absl::StrReplaceAll(good, {{change.from, change.to}});
    ASSERT_NE(text, good) << change.from;
    const auto config = ParseModelConfig(text, "f.json");
    ASSERT_FALSE(config.ok()) << change.field;
    EXPECT_THAT(std::string(config.status().message()),
                AllOf(HasSubstr(change.field), HasSubstr(change.value), HasSubstr("f.json")));
  }
}

TEST(ModelConfig, JoinsEndTokensAndIgnoresTheGenerationsCache) {
  const std::string good = ReadAll(std::string(HEARTH_CONFIGS_DIR) + "/gemma-3-270m.json");
  const auto config = ParseModelConfig(
      good, "f.json", R"({"eos_token_id": [1, 106], "cache_implementation": "hybrid"})", "g.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->eos_token_ids, (std::vector<int32_t>{1, 106}));
}

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = NewTinyCheckpoint(TinyGeometry(),
                             testing::UnitTest::GetInstance()->current_test_info()->name());
    file_ = dir_ + "/model.safetensors";
    bytes_ = ReadAll(file_);
  }
  std::string LoadError() {
    const auto gemma = Gemma::Load(dir_, GemmaOptions());
    return gemma.ok() ? std::string() : std::string(gemma.status().message());
  }
  std::string dir_, file_, bytes_;
};

TEST_F(CheckpointTest, NamesAMissingAndAMisshapenTensor) {
  ASSERT_EQ(LoadError(), "");
  const std::string name = "model.norm.weight";
  WriteAll(file_, absl::StrReplaceAll(bytes_, {{name, "model.norm.weigh_"}}));
  EXPECT_THAT(LoadError(), HasSubstr("norm.weigh"));
  WriteAll(dir_ + "/config.json",
           absl::StrReplaceAll(ReadAll(dir_ + "/config.json"),
                               {{"\"intermediate_size\": 64", "\"intermediate_size\": 32"}}));
  WriteAll(file_, bytes_);
  EXPECT_THAT(LoadError(), AllOf(HasSubstr("_proj.weight"), HasSubstr("64")));
}

TEST_F(CheckpointTest, SurvivesEveryTruncationAndEveryFlippedHeaderByte) {
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes_.data(), sizeof(header_bytes));
  const size_t header_end = sizeof(header_bytes) + header_bytes;
  int refused = 0, tried = 0;
  for (size_t length = 0; length < header_end; length += 61) {
    WriteAll(file_, bytes_.substr(0, length));
    ++tried;
    if (!Safetensors::Open(dir_).ok()) ++refused;
  }
  WriteAll(file_, bytes_.substr(0, bytes_.size() - 1));
  EXPECT_FALSE(Safetensors::Open(dir_).ok());
  EXPECT_EQ(refused, tried);
  for (size_t at = 0; at < header_end; at += 7) {
    std::string flipped = bytes_;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x55);
    WriteAll(file_, flipped);
    const auto files = Safetensors::Open(dir_);  // a status, whatever it says
    if (!files.ok()) {
      EXPECT_THAT(std::string(files.status().message()), HasSubstr("model.safetensors"));
    }
  }
}

TEST_F(CheckpointTest, FollowsTheBytesAndNothingElseInItsDigest) {
  const auto first = Gemma::Load(dir_, GemmaOptions());
  const auto again = Gemma::Load(dir_, GemmaOptions());
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_EQ((*first)->weights_digest(), (*again)->weights_digest());
  std::string flipped = bytes_;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  WriteAll(file_, flipped);
  const auto changed = Gemma::Load(dir_, GemmaOptions());
  ASSERT_TRUE(changed.ok());
  EXPECT_NE((*first)->weights_digest(), (*changed)->weights_digest());
}

TEST_F(CheckpointTest, RefusesDevicesAndDtypesItDoesNotKnow) {
  GemmaOptions options;
  options.device = "tpu";
  EXPECT_EQ(Gemma::Load(dir_, options).status().code(), absl::StatusCode::kInvalidArgument);
  options = GemmaOptions();
  options.dtype = "int4";
  EXPECT_EQ(Gemma::Load(dir_, options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace hearth
