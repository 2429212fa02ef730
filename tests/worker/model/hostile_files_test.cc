// Corrupt model files: each file loads, or gives one error, without using much memory.
//
// Environment: HEARTH_HOSTILE_FILES: number of corrupt files of each kind (default 250).
// HEARTH_HOSTILE_SEED: first seed (default 1).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/test_folder.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/worker/model/file_kit.h"
#include "tests/worker/model/gguf_kit.h"
#include "tests/worker/model/made_up_model.h"
#include "tests/worker/model/peak_memory.h"
#include "worker/model/invariant/invariant_gemma.h"
#include "worker/text/tokenizer_loader.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Returns `bytes` with a few bits flipped, with the end removed, or with a piece copied to another
// position. Most changes are within the first `header` bytes, which describe the rest.
std::string Spoiled(std::string bytes, size_t header, std::mt19937_64* random) {
  const auto below = [&](size_t count) { return static_cast<size_t>((*random)() % count); };
  const size_t span = below(4) == 0 ? bytes.size() : std::min(header, bytes.size());
  switch (below(4)) {
    case 0:
      bytes.resize(below(span));
      break;
    case 1: {
      const std::string piece = bytes.substr(below(span), 1 + below(64));
      if (below(2) == 0) {
        bytes.insert(below(span), piece);
      } else {
        bytes.replace(below(span), piece.size(), piece);
      }
      break;
    }
    default:
      for (size_t flips = 1 + below(4); flips > 0; --flips) {
        bytes[below(span)] ^= static_cast<char>(1 << below(8));
      }
  }
  return bytes;
}

// Numbers of failed loads of the model and of the tokenizer.
struct Refused {
  int models = 0, tokenizers = 0;
};

void ExpectOneLine(const absl::Status& status, const std::string& folder) {
  const std::string said(status.message());
  EXPECT_THAT(said, HasSubstr(folder));
  EXPECT_THAT(said, Not(HasSubstr("\n")));
  EXPECT_LT(said.size(), 2000u);
}

// Loads a model and its tokenizer as a worker does, and computes one step.
void LoadAndUse(const std::string& model, const std::string& folder, Refused* refused) {
  const auto gemma = InvariantGemma::Load(model, {1, 16});
  if (gemma.ok()) {
    std::vector<float> logits;
    InvariantGemma::Kv kv = (*gemma)->NewKv();
    // The step fails if the corrupt file has a shorter context; the test ignores the error.
    static_cast<void>((*gemma)->Step(&kv, {1, 0, 1}, 1, &logits));
  } else {
    ++refused->models;
    ExpectOneLine(gemma.status(), folder);
  }
  const auto loaded = LoadTokenizer(model);
  if (!loaded.ok()) {
    ++refused->tokenizers;
    ExpectOneLine(loaded.status(), folder);
  } else if (loaded->tokenizer != nullptr) {
    loaded->tokenizer->Decode(loaded->tokenizer->Encode("ab\n\n  c<bos>\xc3\xa9"), false);
  }
}

class HostileFiles : public testing::Test {
 protected:
  // Loads `model` with draws_ corrupt versions of `file`, one after the other. `header`: number of
  // leading bytes that describe the rest of the file.
  void Try(const std::string& model, const std::string& file, size_t header) {
    const std::string whole = ReadAll(file);
    ASSERT_FALSE(whole.empty());
    Refused none;
    LoadAndUse(model, folder_.path(), &none);
    ASSERT_EQ(none.models + none.tokenizers, 0) << "as it was";
    const uint64_t seed = FromEnvironment("HEARTH_HOSTILE_SEED", 1);
    const PeakMemory memory;
    for (uint64_t draw = seed; draw < seed + draws_ && !HasFailure(); ++draw) {
      SCOPED_TRACE(testing::Message() << "HEARTH_HOSTILE_SEED=" << draw);
      std::mt19937_64 random(draw);
      WriteAll(file, Spoiled(whole, header, &random));
      LoadAndUse(model, folder_.path(), &refused_);
    }
    WriteAll(file, whole);
    EXPECT_LE(memory.Grown(), whole.size() + (64u << 20));
  }

  const uint64_t draws_ = FromEnvironment("HEARTH_HOSTILE_FILES", 250);
  const TestFolder folder_;
  Refused refused_;
};

// The type of q and k differs from that of v, as in Google's file of the 270M; every block type
// occurs.
ElementType MixedTypes(const std::string& name) {
  const std::pair<const char*, ElementType> kTypes[] = {
      {"attn_q.", ElementType::kQ5_0},   {"attn_k.", ElementType::kQ5_0},
      {"attn_v.", ElementType::kQ8_0},   {"attn_output.", ElementType::kQ4_K},
      {"ffn_down.", ElementType::kQ6_K}, {"ffn_gate.", ElementType::kQ5_K},
      {"ffn_up.", ElementType::kQ4_1}};
  for (const auto& [part, type] : kTypes) {
    if (name.find(part) != std::string::npos) return type;
  }
  return ElementType::kQ8_0;
}

TEST_F(HostileFiles, CorruptGgufLoadsOrFailsCleanly) {
  const GgufBytes gguf = WholeGguf(MixedTypes);
  const std::string path = folder_.Write("model", gguf.Bytes());
  Try(path, path, gguf.Header().size());
  EXPECT_GT(refused_.models, static_cast<int>(draws_) / 4);
  EXPECT_LT(refused_.models, static_cast<int>(draws_));
  EXPECT_GT(refused_.tokenizers, 0);
}

TEST_F(HostileFiles, CorruptFolderLoadsOrFailsCleanly) {
  TinyGeometry geometry;
  geometry.layer_types = "l";
  WriteTinyCheckpoint(geometry, folder_.path());
  MadeUpModel pieces;
  for (const char* text : {"a", "b", "ab"}) pieces.Add(text, -1);
  const std::string tokenizer = folder_.Write("tokenizer.model", pieces.Bytes());
  const std::string weights = folder_.File("model.safetensors"),
                    config = folder_.File("config.json");
  Try(folder_.path(), weights, ReadAll(weights).find('}', 8) + 1000);
  EXPECT_GT(refused_.models, static_cast<int>(draws_) / 4);
  const std::string generation = folder_.Write(
      "generation_config.json", R"({"eos_token_id": [1, 106], "top_k": 64, "top_p": 0.95,)"
                                R"( "cache_config": {"nbits": 4}, "use_cache": true})");
  const std::string chats = folder_.Write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "default", "template": "{{ x }}"}], "added": {"0": {}}})");
  for (const std::string& file : {config, generation, chats})
    Try(folder_.path(), file, std::numeric_limits<size_t>::max());
  Try(folder_.path(), tokenizer, std::numeric_limits<size_t>::max());
  EXPECT_GT(refused_.tokenizers, static_cast<int>(draws_) / 8);
  std::filesystem::remove(tokenizer);
  Try(folder_.path(), folder_.Write("tokenizer.json", SmallJson().dump()),
      std::numeric_limits<size_t>::max());
}

// A layer of quantized weights of mixed types must give the same bits as its float32 values.
TEST(MixedGguf, GivesBitsOfFloat32Weights) {
  const TestFolder folder;
  std::vector<std::vector<float>> logits;
  for (const bool is_widened : {false, true}) {
    const auto gemma = InvariantGemma::Load(
        folder.Write("model", WholeGguf(MixedTypes, is_widened).Bytes()), {1, 16});
    ASSERT_TRUE(gemma.ok()) << gemma.status();
    InvariantGemma::Kv kv = (*gemma)->NewKv();
    logits.emplace_back();
    ASSERT_TRUE((*gemma)->Step(&kv, {2, 30, 7, 200, 3, 4, 5, 6, 7, 8}, 10, &logits.back()).ok());
  }
  ASSERT_EQ(logits[0].size(), logits[1].size());
  EXPECT_EQ(
      FirstDifference(logits[0].data(), logits[1].data(), static_cast<int64_t>(logits[0].size())),
      "");
}

TEST(MixedGguf, NonFiniteNormErrorNamesTensor) {
  const TestFolder folder;
  GgufBytes file = WholeGguf(MixedTypes);
  for (const GgufBytes::Tensor& tensor : file.tensors) {
    if (tensor.sizes.size() > 1) continue;
    GgufBytes broken = file;
    const float bad = tensor.name < "c" ? std::numeric_limits<float>::quiet_NaN()
                                        : -std::numeric_limits<float>::infinity();
    std::memcpy(broken.data.data() + tensor.offset + 8, &bad, sizeof bad);
    const auto gemma = InvariantGemma::Load(folder.Write("model", broken.Bytes()), {1, 16});
    ASSERT_FALSE(gemma.ok()) << tensor.name;
    EXPECT_THAT(std::string(gemma.status().message()),
                testing::AllOf(HasSubstr("norm.weight has a value that is not finite"),
                               HasSubstr(folder.path())));
  }
}

}  // namespace
}  // namespace hearth
