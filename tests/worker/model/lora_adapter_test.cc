// Tests which LoRA adapters are accepted, and the errors of refused ones. adapter_oracle.py tests
// the results.
#include "worker/model/invariant/lora_adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tests/support/test_folder.h"
#include "tests/worker/model/file_kit.h"

namespace hearth {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kHidden = 8, kRank = 2;

class LoraAdapters : public ::testing::Test {
 protected:
  LoraAdapters() {
    model_.hidden_size = kHidden;
    model_.intermediate_size = 12;
    model_.num_layers = 2;
    model_.attention.num_heads = 2;
    model_.attention.num_kv_heads = 1;
    model_.attention.head_dim = 4;
    AddPair("base_model.model.model.layers.1.self_attn.k_proj", kHidden, 4);
  }
  void AddMatrix(const std::string& name, int rows, int columns) {
    tensors_.Add(name, static_cast<size_t>(rows * columns));
    tensors_.header[name]["shape"] = {rows, columns};
  }
  void AddPair(const std::string& name, int inputs, int outputs) {
    AddMatrix(name + ".lora_A.weight", kRank, inputs);
    AddMatrix(name + ".lora_B.weight", outputs, kRank);
  }
  absl::StatusOr<std::shared_ptr<const LoraAdapter>> Load() {
    WriteAll(folder_.File("adapter_config.json"), config_.dump());
    WriteAll(folder_.File("adapter_model.safetensors"), tensors_.Bytes());
    return LoraAdapter::Load(folder_.path(), model_, &pool_);
  }
  std::string Error() {
    const auto loaded = Load();
    EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(loaded.status().message());
  }

  const TestFolder folder_;
  ThreadPool pool_{1};
  ModelConfig model_;
  Json config_ = {{"peft_type", "LORA"},       {"r", kRank},
                  {"lora_alpha", 8},           {"bias", "none"},
                  {"use_dora", false},         {"rank_pattern", Json::object()},
                  {"modules_to_save", nullptr}};
  SafetensorsParts tensors_{SafetensorsBytes("{}", "")};
};

TEST_F(LoraAdapters, AdapterIsAssignedToItsProjection) {
  const auto adapter = Load();
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_EQ((*adapter)->rank(), kRank);
  EXPECT_TRUE((*adapter)->layer(0).qkv.empty());
  const AdapterLayer& layer = (*adapter)->layer(1);
  ASSERT_EQ(layer.qkv.size(), 1u);
  EXPECT_TRUE(layer.out.empty() && layer.gate.empty() && layer.up.empty() && layer.down.empty());
  EXPECT_EQ(layer.qkv[0].first_output, 8);  // the outputs of k follow the outputs of q
  EXPECT_EQ(layer.qkv[0].scale, 4.0f);
  EXPECT_GT((*adapter)->bytes(), 0u);
}

TEST_F(LoraAdapters, DigestIgnoresTrainingOnlyFields) {
  const Digest digest = Load().value()->digest();
  EXPECT_EQ(Load().value()->digest(), digest);
  config_["use_rslora"] = true;
  EXPECT_NE(Load().value()->digest(), digest);
  config_["use_rslora"] = false;
  config_["lora_dropout"] = 0.3;  // this field only affects training
  EXPECT_EQ(Load().value()->digest(), digest);
  tensors_.data[3] = 1;
  EXPECT_NE(Load().value()->digest(), digest);
}

TEST_F(LoraAdapters, UnsupportedAdapterErrorNamesField) {
  const std::pair<std::string, Json> refused[] = {{"peft_type", "LOHA"},
                                                  {"use_dora", true},
                                                  {"bias", "all"},
                                                  {"modules_to_save", Json::array({"lm_head"})},
                                                  {"r", 0},
                                                  {"rank_pattern", Json::object({{"q_proj", 3}})},
                                                  {"r", 2.5},
                                                  {"lora_alpha", "x"},
                                                  {"use_rslora", 7},
                                                  {"init_lora_weights", "pissa"},
                                                  {"lora_alpha", 1e300}};
  for (const auto& [field, value] : refused) {
    const Json before = config_.value(field, Json());
    config_[field] = value;
    EXPECT_THAT(Error(),
                AllOf(HasSubstr("adapter_config.json: field " + field), HasSubstr(value.dump())));
    config_[field] = before;
  }
  config_ = Json::array();
  EXPECT_THAT(Error(), HasSubstr("must be a JSON object"));
  // JSON that is nested too deeply is refused before parsing recurses.
  std::string deep(100000, '[');
  deep += std::string(100000, ']');
  config_ = Json::object();
  EXPECT_FALSE(Load().ok());
  WriteAll(folder_.File("adapter_config.json"), "{\"use_dora\": " + deep + "}");
  const auto loaded = LoraAdapter::Load(folder_.path(), model_, &pool_);
  EXPECT_THAT(std::string(loaded.status().message()),
              HasSubstr("field \"use_dora\": has more than 64 nested levels"));
}

TEST_F(LoraAdapters, MismatchedAdapterErrorNamesTensor) {
  model_.hidden_size = 16;
  EXPECT_THAT(Error(), AllOf(HasSubstr("k_proj.lora_A.weight has shape [2, 8]"),
                             HasSubstr("require [2, 16]")));
  model_.hidden_size = kHidden;
  config_["r"] = 3;
  EXPECT_THAT(Error(), HasSubstr("require [3, 8]"));
  config_["r"] = kRank;
  model_.num_layers = 1;
  EXPECT_THAT(Error(),
              HasSubstr("layers.1.self_attn.k_proj.lora_A.weight belongs to no projection"));
  model_.num_layers = 2;
  AddPair("other.layers.1.self_attn.k_proj", kHidden, 4);
  EXPECT_THAT(Error(), HasSubstr("belong to the same projection"));
}

TEST_F(LoraAdapters, HugeAdapterHeaderIsRefused) {
  std::string header = "{";
  for (int i = 0; i < 300'000; ++i) {
    header += absl::StrCat(i == 0 ? "" : ",", "\"", i,
                           R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})");
  }
  Load().IgnoreError();
  WriteAll(folder_.File("adapter_model.safetensors"), SafetensorsBytes(header + "}", ""));
  const auto loaded = LoraAdapter::Load(folder_.path(), model_, &pool_);
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(loaded.status().message()),
              AllOf(HasSubstr("adapter_model.safetensors"), HasSubstr("8388608-byte limit")));
}

TEST_F(LoraAdapters, NamedPipeAsAdapterIsRefused) {
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    ASSERT_TRUE(Load().ok());
    std::filesystem::remove(folder_.File(name));
    ASSERT_EQ(mkfifo(folder_.File(name).c_str(), 0600), 0);
    const auto loaded = LoraAdapter::Load(folder_.path(), model_, &pool_);
    EXPECT_THAT(std::string(loaded.status().message()),
                AllOf(HasSubstr(name), HasSubstr("is not a regular file")));
    std::filesystem::remove(folder_.File(name));
  }
}

TEST_F(LoraAdapters, MissingTensorOrFileIsRefused) {
  AddMatrix("m.layers.0.mlp.up_proj.lora_A.weight", kRank, kHidden);
  EXPECT_THAT(Error(), HasSubstr("layers.0.mlp.up_proj must have both lora_A and lora_B"));
  tensors_ = SafetensorsParts(SafetensorsBytes("{}", ""));
  EXPECT_THAT(Error(), HasSubstr("has no tensors"));
  const auto missing = LoraAdapter::Load(folder_.File("nowhere"), model_, &pool_);
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr("nowhere/adapter_config.json"));
}

}  // namespace
}  // namespace hearth
