// Tests the parsing of config.json and generation_config.json, and the errors of invalid files.
#include "worker/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "nlohmann/json.hpp"
#include "tests/support/test_folder.h"
#include "tests/worker/model/file_kit.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Json = nlohmann::json;

struct Published {
  const char* name;
  int layers, global_layers, kv_heads, head_dim, window;
  double scalar, factor;
};

int64_t GlobalLayers(const ModelConfig& config) {
  return std::count(config.layer_types.begin(), config.layer_types.end(), LayerGroup::kGlobal);
}

TEST(ModelConfig, ReadsPublishedGemmaConfigs) {
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
    EXPECT_EQ(GlobalLayers(*config), one.global_layers) << one.name;
    EXPECT_EQ(config->attention.num_kv_heads, one.kv_heads) << one.name;
    EXPECT_EQ(config->attention.head_dim, one.head_dim) << one.name;
    EXPECT_EQ(config->attention.sliding_window, one.window) << one.name;
    EXPECT_EQ(config->attention.query_pre_attn_scalar, one.scalar) << one.name;
    EXPECT_EQ(config->rope.global.factor, one.factor) << one.name;
    EXPECT_EQ(config->rope.local.factor, 1.0) << one.name;
    EXPECT_EQ(config->rope.local.theta, 10000.0) << one.name;
  }
}

TEST(ModelConfig, UnsupportedValueErrorNamesField) {
  const std::string good = ReadAll(std::string(HEARTH_CONFIGS_DIR) + "/gemma-3-270m.json");
  ASSERT_TRUE(ParseModelConfig(good, "f.json").ok());
  const struct {
    const char *from, *to, *field, *value;
  } changes[] = {
      {"\"gemma3_text\"", "\"llama\"", "model_type", "llama"},
      {"\"attention_bias\": false", "\"attention_bias\": true", "attention_bias", "true"},
      {"gelu_pytorch_tanh", "silu", "hidden_activation", "silu"},
      {"\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"llama3\"}", "rope_type",
       "llama3"},
      {"\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"dynamic\"}", "rope_type",
       "dynamic"},
      {"\"rope_scaling\": null", "\"rope_scaling\": {\"rope_type\": \"longrope\"}", "rope_type",
       "longrope"},
      {"\"sliding_window\": 512", "\"sliding_window\": null", "sliding_window", "null"},
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

TEST(ModelConfig, GenerationConfigOverridesEndTokens) {
  const std::string good = ReadAll(std::string(HEARTH_CONFIGS_DIR) + "/gemma-3-270m.json");
  const auto config = ParseModelConfig(
      good, "f.json", R"({"eos_token_id": [1, 106], "cache_implementation": "hybrid"})", "g.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->eos_token_ids, (std::vector<int32_t>{1, 106}));
  // As in the function generate of transformers, the ids of generation_config.json replace the
  // others.
  EXPECT_EQ(ParseModelConfig(good, "f.json", R"({"eos_token_id": 106})", "g.json")->eos_token_ids,
            (std::vector<int32_t>{106}));
  EXPECT_EQ(ParseModelConfig(good, "f.json", "{}", "g.json")->eos_token_ids,
            (std::vector<int32_t>{1}));
}

TEST(ModelConfig, EndTokenOutsideVocabularyIsIgnored) {
  const std::string good = ReadAll(std::string(HEARTH_CONFIGS_DIR) + "/gemma-3-270m.json");
  const auto config =
      ParseModelConfig(good, "f.json", R"({"eos_token_id": [262144, 106, 262143]})", "g.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->eos_token_ids, (std::vector<int32_t>{106, 262143}));
  EXPECT_THAT(
      config->notes,
      testing::Contains("g.json: eos_token_id: ignores 262144: the vocabulary has 262144 tokens"));
}

TEST(ModelConfig, MissingFieldsTakeHuggingFaceDefaults) {
  // Expected values: the defaults of Gemma3TextConfig in transformers 5.
  for (const char* text : {R"({"model_type": "gemma3_text"})", R"({"text_config": {}})"}) {
    const auto config = ParseModelConfig(text, "f.json");
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->hidden_size, 2304);
    EXPECT_EQ(config->intermediate_size, 9216);
    EXPECT_EQ(config->num_layers, 26);
    EXPECT_EQ(GlobalLayers(*config), 4);
    EXPECT_EQ(config->attention.num_heads, 8);
    EXPECT_EQ(config->attention.num_kv_heads, 4);
    EXPECT_EQ(config->attention.head_dim, 256);
    EXPECT_EQ(config->vocab_size, 262208);
    EXPECT_EQ(config->max_position_embeddings, 131072);
    EXPECT_EQ(config->attention.sliding_window, 4096);
    EXPECT_EQ(config->attention.query_pre_attn_scalar, 256);
    EXPECT_EQ(config->rms_norm_eps, 1e-6);
    EXPECT_EQ(config->rope.global.theta, 1000000.0);
    EXPECT_EQ(config->rope.local.theta, 10000.0);
    EXPECT_EQ(config->attention.logit_softcap, 0);
    EXPECT_TRUE(config->tie_word_embeddings);
    EXPECT_THAT(config->eos_token_ids, ElementsAre(1));
  }
}

TEST(ModelConfig, OldStyleFieldsMatchNewStyle) {
  const Json common = {{"model_type", "gemma3_text"}, {"num_hidden_layers", 7}};
  Json old_style = common, new_style = common;
  old_style["sliding_window_pattern"] = 3;
  old_style["rope_theta"] = 5000.0;
  old_style["rope_local_base_freq"] = 700.0;
  old_style["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 4.0}};
  const std::string local = "sliding_attention", global = "full_attention";
  new_style["layer_types"] = {local, local, global, local, local, global, local};
  new_style["rope_parameters"] = {
      {global, {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 5000.0}}},
      {local, {{"rope_type", "default"}, {"rope_theta", 700.0}}}};
  for (const Json& flat : {old_style, new_style}) {
    for (const Json& json : {flat, Json{{"model_type", "gemma3"}, {"text_config", flat}}}) {
      const auto config = ParseModelConfig(json.dump(), "f.json");
      ASSERT_TRUE(config.ok()) << config.status();
      EXPECT_EQ(config->nested, json.contains("text_config"));
      const LayerGroup l = LayerGroup::kLocal, g = LayerGroup::kGlobal;
      EXPECT_THAT(config->layer_types, ElementsAre(l, l, g, l, l, g, l));
      EXPECT_EQ(config->rope.global.theta, 5000.0);
      EXPECT_EQ(config->rope.global.factor, 4.0);
      EXPECT_EQ(config->rope.local.theta, 700.0);
      EXPECT_EQ(config->rope.local.factor, 1.0);
    }
  }
}

// Expected values: those of Gemma3TextConfig in transformers 5.23.
TEST(ModelConfig, MixedRopeFieldsMatchTransformers) {
  const struct {
    const char* json;
    double theta, factor, local_theta;
    int notes;
  } cases[] = {
      {R"({"rope_parameters": {"full_attention": {"rope_theta": 5e4}, "rope_theta": 3,
           "sliding_attention": {"rope_theta": 700}, "rope_type": "linear", "factor": 3}})",
       5e4, 1, 700, 3},
      {R"({"rope_theta": 33, "rope_local_base_freq": 44, "rope_parameters":
           {"full_attention": {"rope_theta": 5e4}, "sliding_attention": {}}})",
       5e4, 1, 44, 0},
      {R"({"rope_theta": 33, "rope_parameters": {"full_attention": null}})", 33, 1, 1e4, 0},
      {R"({"rope_parameters": {"rope_theta": 3, "rope_type": "default"}})", 1e6, 1, 1e4, 2},
      {R"({"rope_scaling": {"rope_type": "linear", "factor": 4, "rope_theta": 9},
           "rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 5e4}}})",
       9, 4, 1e4, 0},
      {R"({"rope_parameters": {"full_attention": {"type": "linear", "factor": 2}}})", 1e6, 2, 1e4,
       0},
  };
  for (const auto& one : cases) {
    const auto config = ParseModelConfig(one.json, "f.json");
    ASSERT_TRUE(config.ok()) << one.json << config.status();
    EXPECT_EQ(config->rope.global.theta, one.theta) << one.json;
    EXPECT_EQ(config->rope.global.factor, one.factor) << one.json;
    EXPECT_EQ(config->rope.local.theta, one.local_theta) << one.json;
    EXPECT_EQ(config->rope.local.factor, 1) << one.json;
    EXPECT_EQ(config->notes.size(), static_cast<size_t>(one.notes)) << one.json;
  }
}

// Expected values: computed in Python with _compute_yarn_parameters of transformers 5.23.
TEST(ModelConfig, YarnFieldsMatchTransformers) {
  const auto rope = [](const std::string& fields, const char* outer = "") {
    const auto config = ParseModelConfig(
        absl::StrCat(R"({"head_dim": 16, "max_position_embeddings": 2048, "rope_parameters": {)",
                     outer, R"("full_attention": {"rope_type": "yarn", "factor": 4)", fields,
                     "}}}"),
        "f.json");
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? config->rope.global : RopeConfig();
  };
  RopeConfig yarn = rope(R"(, "original_max_position_embeddings": 256)");
  EXPECT_EQ(yarn.factor, 4);
  EXPECT_EQ(yarn.ramp_begin, 0);
  EXPECT_EQ(yarn.ramp_span, 3);
  EXPECT_FLOAT_EQ(yarn.attention_factor, 1.138629436111989f);
  yarn = rope(R"(, "original_max_position_embeddings": 256)", R"("truncate": false, )");
  EXPECT_FLOAT_EQ(yarn.ramp_begin, 0.1398801581784381f);
  EXPECT_FLOAT_EQ(yarn.ramp_begin + yarn.ramp_span, 2.146746795938313f);
  // original_max_position_embeddings defaults to max_position_embeddings
  EXPECT_EQ(rope("").ramp_begin, 1);
  EXPECT_EQ(rope(R"(, "original_max_position_embeddings": 4)").ramp_span, 0.001f);
  EXPECT_FLOAT_EQ(rope(R"(, "mscale": 0.7, "mscale_all_dim": 0.3)").attention_factor,
                  1.0532376815143234f);
  EXPECT_FLOAT_EQ(rope(R"(, "mscale": 0.7, "mscale_all_dim": 0)").attention_factor,
                  1.138629436111989f);
  EXPECT_EQ(rope(R"(, "mscale": 0.7, "attention_factor": 1.5)").attention_factor, 1.5f);
  EXPECT_EQ(rope(R"(, "beta_fast": null, "beta_slow": 0)").ramp_span, rope("").ramp_span);
  EXPECT_NE(rope(R"(, "beta_slow": 0.01)").ramp_span, rope("").ramp_span);
}

TEST(ModelConfig, ReadsKvCacheSettings) {
  const auto plain = ParseModelConfig("{}", "f.json", "{}", "g.json");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->generation.cache_implementation, "");
  const auto config =
      ParseModelConfig("{}", "f.json", R"({"cache_implementation": "hybrid"})", "g.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->generation.cache_implementation, "hybrid");
  const auto quantized = ParseModelConfig(
      "{}", "f.json",
      R"({"cache_config": {"nbits": 8, "residual_length": 64, "axis_key": -1, "device": "cpu"}})",
      "g.json");
  ASSERT_TRUE(quantized.ok()) << quantized.status();
  EXPECT_EQ(quantized->generation.kv_quantization, "bits=8,axis_key=-1,residual=64");
  const auto text =
      ParseModelConfig("{}", "f.json", R"({"cache_config": {"nbits": "8"}})", "g.json");
  EXPECT_EQ(text.status().message(), "g.json: field cache_config.nbits = \"8\": must be a number");
}

TEST(ModelConfig, IgnoredFieldsAreNoted) {
  const auto notes = [](const char* config, const char* generation) {
    const auto parsed = ParseModelConfig(config, "f.json", generation, "g.json");
    EXPECT_TRUE(parsed.ok()) << parsed.status();
    return parsed.ok() ? parsed->notes : std::vector<std::string>();
  };
  EXPECT_THAT(notes(R"({"use_cache": true})", R"({"use_cache": null, "do_sample": true,
                    "repetition_penalty": 1.0, "bad_words_ids": [], "top_k": 64, "min_p": 0})"),
              IsEmpty());
  EXPECT_THAT(notes(R"({"use_cache": false})", R"({"use_cache": false})"),
              ElementsAre(HasSubstr("f.json: use_cache = false is ignored"),
                          HasSubstr("g.json: use_cache = false is ignored")));
  EXPECT_THAT(notes(R"({"text_config": {"use_cache": false}})", "{}"),
              ElementsAre(HasSubstr("f.json: use_cache = false")));
  EXPECT_THAT(
      notes("{}", R"({"repetition_penalty": 1.3, "do_sample": false, "stop_strings": ["###"]})"),
      ElementsAre("g.json: do_sample = false is ignored: give this option in each request",
                  HasSubstr("repetition_penalty = 1.3 is ignored"),
                  HasSubstr("stop_strings = [\"###\"] is ignored")));
}

TEST(ModelConfig, MultimodalQuantizationConfigIsRefused) {
  const auto refused = ParseModelConfig(
      R"({"text_config": {}, "quantization_config": {"quant_method": "awq"}})", "f.json");
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("f.json: field quantization_config"));
}

TEST(ModelConfig, ReadsSamplingDefaults) {
  const auto plain = ParseModelConfig("{}", "f.json", R"({"top_k": null})", "g.json");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->generation.temperature, 1);
  EXPECT_EQ(plain->generation.top_k, 0);
  EXPECT_EQ(plain->generation.top_p, 1);
  const auto said = ParseModelConfig(
      "{}", "f.json", R"({"temperature": 0.6, "top_k": 64, "top_p": 0.95})", "g.json");
  ASSERT_TRUE(said.ok()) << said.status();
  EXPECT_EQ(said->generation.temperature, 0.6);
  EXPECT_EQ(said->generation.top_k, 64);
  EXPECT_EQ(said->generation.top_p, 0.95);
  const auto wrong = ParseModelConfig("{}", "f.json", R"({"top_p": 2})", "g.json");
  EXPECT_EQ(wrong.status().message(), "g.json: field top_p = 2: must be a number in [0, 1]");
}

TEST(ModelConfig, ReadsSoftcapsOrNull) {
  const auto capped = ParseModelConfig(
      R"({"attn_logit_softcapping": 50, "final_logit_softcapping": 30.5})", "f.json");
  ASSERT_TRUE(capped.ok()) << capped.status();
  EXPECT_EQ(capped->attention.logit_softcap, 50);
  EXPECT_EQ(capped->final_logit_softcap, 30.5);
  const auto plain = ParseModelConfig(
      R"({"attn_logit_softcapping": null, "final_logit_softcapping": null})", "f.json");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->attention.logit_softcap, 0);
  EXPECT_EQ(plain->final_logit_softcap, 0);
}

TEST(ModelConfig, NestedTieFieldIsIgnored) {
  const struct {
    const char* json;
    bool tied;
  } cases[] = {
      {R"({"tie_word_embeddings": false})", false},
      {R"({"text_config": {"tie_word_embeddings": false}})", true},
      {R"({"tie_word_embeddings": true, "text_config": {"tie_word_embeddings": false}})", true},
      {R"({"tie_word_embeddings": false, "text_config": {"tie_word_embeddings": true}})", false},
  };
  for (const auto& one : cases) {
    const auto config = ParseModelConfig(one.json, "f.json");
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->tie_word_embeddings, one.tied) << one.json;
  }
}

TEST(ModelConfig, InvalidValueErrorNamesField) {
  const struct {
    const char *json, *field;
  } cases[] = {
      {R"({"head_dim": 15})", "head_dim"},
      {R"({"num_attention_heads": 6, "num_key_value_heads": 4})", "num_key_value_heads"},
      {R"({"num_hidden_layers": 0})", "num_hidden_layers"},
      {R"({"num_hidden_layers": 99999999999999999999})", "num_hidden_layers"},
      {R"({"hidden_size": -1})", "hidden_size"},
      {R"({"hidden_size": 1.5})", "hidden_size"},
      {R"({"sliding_window": 0})", "sliding_window"},
      {R"({"num_hidden_layers": 2, "layer_types": ["full_attention"]})", "layer_types"},
      {R"({"rms_norm_eps": 0})", "rms_norm_eps"},
      {R"({"rope_theta": "high"})", "rope_theta"},
      {R"({"rope_scaling": {"rope_type": "linear"}})", "factor"},
      {R"({"rope_scaling": {"type": "linear", "factor": 2}})", "rope_scaling"},
      {R"({"rope_scaling": 3})", "rope_scaling"},
      {R"({"rope_parameters": 3})", "rope_parameters"},
      {R"({"rope_parameters": {"full_attention": 3}})", "rope_parameters"},
      {R"({"rope_parameters": {"truncate": 3}})", "truncate"},
      {R"({"rope_scaling": {"rope_type": "yarn"}})", "factor"},
      {R"({"rope_scaling": {"rope_type": "yarn", "factor": 0.5}})", "factor"},
      {R"({"rope_scaling": {"rope_type": "yarn", "factor": 2, "attention_factor": 0}})",
       "attention_factor"},
      {R"({"rope_scaling": {"rope_type": "yarn", "factor": 2, "truncate": false}})", "truncate"},
      {R"({"rope_scaling": {"rope_type": "yarn", "factor": 2, "rope_theta": 1}})", "rope_theta"},
      {R"({"transformers_weights": "other.safetensors"})", "transformers_weights"},
      {R"({"tie_word_embeddings": 1})", "tie_word_embeddings"},
      {R"({"eos_token_id": -1})", "eos_token_id"},
      {R"({"quantization_config": {"bits": 4}})", "quantization_config"},
      {R"({"text_config": []})", "text_config"},
      {R"({"model_type": "paligemma", "text_config": {}})", "model_type"},
      {R"({"text_config": {"model_type": "gemma2"}})", "model_type"},
  };
  for (const auto& one : cases) {
    const auto config = ParseModelConfig(one.json, "f.json");
    ASSERT_FALSE(config.ok()) << one.json;
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(config.status().message()),
                AllOf(HasSubstr("f.json"), HasSubstr(one.field)))
        << one.json;
  }
}

TEST(ModelConfig, HuggingFaceRepoIdIsRefused) {
  const absl::Status status = LoadModelConfig("google/gemma-3-270m").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("google/gemma-3-270m is neither"), HasSubstr("Hugging Face model")));
}

TEST(ModelConfig, NonJsonFilesAreRefused) {
  const TestFolder folder;
  const std::string& dir = folder.path();
  const std::string file = dir + "/config.json", generation = dir + "/generation_config.json";
  const auto error = [&dir] {
    const auto config = LoadModelConfig(dir);
    return config.ok() ? std::string() : std::string(config.status().message());
  };
  EXPECT_THAT(error(), AllOf(HasSubstr(file), HasSubstr("cannot be opened")));
  WriteAll(file, "[1]");
  EXPECT_THAT(error(), AllOf(HasSubstr(file), HasSubstr("not a JSON object")));
  WriteAll(file, "{}");
  EXPECT_EQ(error(), "");  // generation_config.json is optional
  WriteAll(generation, "");
  EXPECT_THAT(error(), AllOf(HasSubstr(generation), HasSubstr("not a readable JSON object")));
  WriteAll(generation, R"({"eos_token_id": "end"})");
  EXPECT_THAT(error(), AllOf(HasSubstr(generation), HasSubstr("eos_token_id")));
  std::filesystem::remove(generation);
  std::filesystem::create_directory(generation);
  EXPECT_THAT(error(), AllOf(HasSubstr(generation), HasSubstr("not a regular file")));
}

}  // namespace
}  // namespace hearth
