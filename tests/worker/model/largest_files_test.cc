// The largest valid files, and files with 100,000 entries: each file loads or gives one error, in
// time and memory proportional to its size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "tests/support/sanitized.h"
#include "tests/support/test_folder.h"
#include "tests/worker/model/file_kit.h"
#include "tests/worker/model/gguf_kit.h"
#include "tests/worker/model/made_up_model.h"
#include "tests/worker/model/peak_memory.h"
#include "worker/model/gguf.h"
#include "worker/model/invariant/lora_adapter.h"
#include "worker/model/model_config.h"
#include "worker/model/model_file.h"
#include "worker/model/model_json.h"
#include "worker/model/tensor_files.h"
#include "worker/model/thread_pool.h"
#include "worker/text/tokenizer_loader.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kSparedBytes = uint64_t{200} << 20;
constexpr size_t kEntries = 100'000;

// Calls `load` and checks its limits: 10 s of processor time, and memory of three times the file
// size plus 200 MiB.
void ExpectWithinBars(size_t file_bytes, const std::function<void()>& load) {
  const PeakMemory memory;
  const std::clock_t begin = std::clock();
  load();
  const double took_s = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  EXPECT_LT(took_s, kIsSanitized ? 100 : 10);
  EXPECT_LE(memory.Grown(), 3 * file_bytes + kSparedBytes) << "a file of " << file_bytes;
}

// Returns a different character for each `number`, as 4 bytes of UTF-8.
std::string WideCharacter(uint32_t number) {
  const uint32_t code = 0x10000 + number;
  return {static_cast<char>(0xF0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 0x3F)),
          static_cast<char>(0x80 | (code >> 6 & 0x3F)), static_cast<char>(0x80 | (code & 0x3F))};
}

// Returns a JSON object with `entries` empty objects. A parser that iterates over the parent at the
// end of each object takes quadratic time.
std::string ManyObjects(size_t entries, const std::string& before = "") {
  std::string text = absl::StrCat("{", before);
  for (size_t i = 0; i < entries; ++i)
    absl::StrAppend(&text, i + before.size() > 0 ? "," : "", "\"x", i, "\":{}");
  return text + "}";
}

class LargestFiles : public testing::Test {
 protected:
  // Writes a GGUF file with `tokens` vocabulary tokens of `bytes` bytes each, and `merges` merges
  // of 40 bytes.
  std::string WriteGguf(uint64_t tokens, size_t bytes, uint64_t merges) {
    std::string texts, types, scores, pairs;
    std::string token = Text(std::string(bytes, 't'));
    const std::string type = Number<int32_t>(4), merge = Text(std::string(40, 'm'));
    for (uint32_t i = 0; i < tokens; ++i) {
      std::memcpy(&token[8], "0123456789abcdef" + i % 16, 1);
      std::memcpy(&token[9], WideCharacter(i / 16).data(), 4);
      texts += token;
      types += type;
      scores += Number(-static_cast<float>(i));
    }
    for (uint64_t i = 0; i < merges; ++i) pairs += merge;
    const auto list = [](uint32_t type, uint64_t count, const std::string& values) {
      return Number(kList) + Number(type) + Number(count) + values;
    };
    GgufBytes file;
    file.Set("tokenizer.ggml.model", TextValue("llama"))
        .Set("tokenizer.ggml.tokens", list(kText, tokens, texts))
        .Set("tokenizer.ggml.token_type", list(5, tokens, types))
        .Set("tokenizer.ggml.scores", list(kF32, tokens, scores))
        .Set("tokenizer.ggml.merges", list(kText, merges, pairs));
    file.tensors.clear();
    file.data_bytes = 0;
    const std::string whole = file.Bytes();
    file_bytes_ = whole.size();
    return folder_.Write("model.gguf", whole);
  }

  const TestFolder folder_;
  size_t file_bytes_ = 0;
};

TEST_F(LargestFiles, GgufHeaderTakesLittleMemory) {
  const std::string path = WriteGguf(1 << 20, 44, 1 << 20);
  ASSERT_GT(file_bytes_, 100u << 20);
  ExpectWithinBars(file_bytes_, [&] {
    const auto header = ReadGgufHeader(path, /*with_vocabulary=*/true);
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->vocabulary.tokens->size(), 1u << 20);
    EXPECT_EQ((*header->vocabulary.merges)[7], std::string(40, 'm'));
  });
  ExpectWithinBars(file_bytes_, [&] {
    const absl::Status status = LoadTokenizer(path).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("has pieces of more than 16777216 bytes"));
  });
  ExpectWithinBars(0, [&] { EXPECT_TRUE(LoadModelConfig(path).ok()); });
}

TEST_F(LargestFiles, GgufVocabularyTakesLittleMemory) {
  // The file has no byte pieces; this error is found only after all pieces have been read.
  const std::string path = WriteGguf(kMaxPieces, kMaxVocabularyBytes / kMaxPieces, 0);
  ExpectWithinBars(file_bytes_, [&] {
    const auto loaded = LoadTokenizer(path);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_THAT(loaded->why_none, HasSubstr("must have 256 byte pieces"));
  });
}

TEST_F(LargestFiles, TokenizerModelTakesLittleMemory) {
  std::string bytes = MadeUpModel().Bytes();
  // Each text has 31 bytes, so that with the byte pieces the vocabulary is about 4,000 bytes below
  // the limit.
  std::string text(31, 't'), piece = "\x0A\x23\x0A\x1F" + text + "\x18\x04";
  for (uint32_t i = 0; i < kMaxPieces - 257; ++i) {
    std::memcpy(&piece[4], "0123456789abcdef" + i % 16, 1);
    std::memcpy(&piece[5], WideCharacter(i / 16).data(), 4);
    bytes += piece;
  }
  folder_.Write("tokenizer.model", bytes);
  ExpectWithinBars(bytes.size(), [&] {
    const auto loaded = LoadTokenizer(folder_.path());
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    ASSERT_NE(loaded->tokenizer, nullptr) << loaded->why_none;
    EXPECT_EQ(loaded->tokenizer->size(), kMaxPieces);
  });
  // A file with the maximum number of pieces: each piece is empty.
  std::string empty;
  while (empty.size() < kMaxTokenizerBytes) empty.append("\x0A\0\x0A\0\x0A\0\x0A\0", 8);
  folder_.Write("tokenizer.model", empty);
  ExpectWithinBars(empty.size(), [&] { EXPECT_FALSE(LoadTokenizer(folder_.path()).ok()); });
}

// The largest valid tokenizer.json: single characters, and merges of two characters.
TEST_F(LargestFiles, TokenizerJsonTakesLittleMemory) {
  nlohmann::json json = SmallJson();
  json["model"]["vocab"] = "VOCAB";
  json["model"]["merges"] = "MERGES";
  json["post_processor"] = "OTHERS";
  std::string others = "[{}";
  for (size_t i = 100; i < kMaxJsonValues; ++i) others += ",{}";
  json["added_tokens"].clear();
  std::string vocabulary = "{", merges = "[";
  uint32_t id = 0;
  for (int byte = 0; byte < 256; ++byte)
    absl::StrAppend(&vocabulary, absl::StrFormat("\"<0x%02X>\":%d,", byte, id++));
  const uint32_t characters = (kMaxPieces - 256) / 2;
  for (uint32_t i = 0; i < characters; ++i)
    absl::StrAppend(&vocabulary, "\"", WideCharacter(i), "\":", id++, ",");
  for (uint32_t i = 0; i < characters; ++i) {
    const std::string half = WideCharacter(i);
    absl::StrAppend(&vocabulary, i > 0 ? "," : "", "\"", half, half, "\":", id++);
    absl::StrAppend(&merges, i > 0 ? "," : "", "[\"", half, "\",\"", half, "\"]");
  }
  std::string text = json.dump();
  text.replace(text.find("\"VOCAB\""), 7, vocabulary + "}");
  text.replace(text.find("\"MERGES\""), 8, merges + "]");
  text.replace(text.find("\"OTHERS\""), 8, others + "]");
  folder_.Write("tokenizer.json", text);
  ExpectWithinBars(text.size(), [&] {
    const auto loaded = LoadTokenizer(folder_.path());
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    ASSERT_NE(loaded->tokenizer, nullptr) << loaded->why_none;
    EXPECT_EQ(loaded->tokenizer->size(), kMaxPieces);
  });
}

TEST_F(LargestFiles, SafetensorsHeaderTakesLittleMemory) {
  std::string header = "{";
  int tensors = 0;
  for (; header.size() < (8u << 20) - 200; ++tensors) {
    absl::StrAppend(&header, tensors > 0 ? "," : "", "\"", std::string(60, 't'), tensors,
                    R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})");
  }
  const std::string bytes = SafetensorsBytes(header + "}", "");
  const std::string path = folder_.Write("model.safetensors", bytes);
  ExpectWithinBars(bytes.size(), [&] {
    const auto files = TensorFiles::OpenFile(path);
    ASSERT_TRUE(files.ok()) << files.status();
    EXPECT_EQ(files->tensors().size(), static_cast<size_t>(tensors));
  });
}

TEST_F(LargestFiles, ExcessJsonValuesAreRefusedEarly) {
  for (const char* value : {"{},", "0,"}) {
    std::string text = "{\"a\":[";
    while (text.size() < 4 * kMaxJsonValues) text += value;
    ExpectWithinBars(0, [&] {
      EXPECT_THAT(std::string(ParseModelJson(text + "0]}").status().message()),
                  HasSubstr("field \"a\": has more than 524288 values"));
    });
  }
  const std::string text = absl::StrCat("\"", std::string(kMaxJsonFileBytes - 10, 'x'), "\"");
  ExpectWithinBars(text.size(), [&] { EXPECT_TRUE(ParseModelJson(text).ok()); });
}

// Each file has about 900 kB.
TEST_F(LargestFiles, HundredThousandEntriesLoadInSeconds) {
  const std::string many = ManyObjects(kEntries);
  ExpectWithinBars(many.size(), [&] {
    const auto config = ParseModelConfig(many, "config.json", many, "generation_config.json");
    EXPECT_TRUE(config.ok()) << config.status();
  });
  folder_.Write("tokenizer_config.json", ManyObjects(kEntries, R"("chat_template":"{{ x }}")"));
  ExpectWithinBars(many.size(), [&] {
    const auto loaded = LoadTokenizer(folder_.path(), ChatTemplateChoice::kGemma);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_THAT(loaded->notes, testing::ElementsAre(HasSubstr("is ignored")));
  });
  folder_.Write("tokenizer.json", many);
  ExpectWithinBars(many.size(), [&] { EXPECT_FALSE(LoadTokenizer(folder_.path()).ok()); });
  const std::string weights =
      folder_.Write("adapter_model.safetensors", SafetensorsBytes(many, ""));
  ExpectWithinBars(many.size(), [&] {
    EXPECT_THAT(std::string(TensorFiles::OpenFile(weights).status().message()),
                HasSubstr("data_offsets is missing"));
  });
  folder_.Write("model.safetensors.index.json", absl::StrCat("{\"weight_map\":", many, "}"));
  ExpectWithinBars(many.size(), [&] {
    EXPECT_THAT(std::string(TensorFiles::Open(folder_.path()).status().message()),
                HasSubstr("is not a file name"));
  });
  folder_.Write("adapter_config.json", many);
  ThreadPool pool(1);
  ExpectWithinBars(many.size(), [&] {
    EXPECT_THAT(
        std::string(LoraAdapter::Load(folder_.path(), ModelConfig(), &pool).status().message()),
        HasSubstr("peft_type"));
  });
}

TEST(ModelJson, InvalidOrDeepJsonIsRefused) {
  const auto error = [](const std::string& text) {
    return std::string(ParseModelJson(text).status().message());
  };
  EXPECT_EQ(error(R"({"a": [1, -2, 0.5, null, true, "x", {"a": {}}], "b": []})"), "");
  EXPECT_EQ(*ParseModelJson(R"({"a": [1, {"b": [2, {}]}, 3]})"),
            nlohmann::json::parse(R"({"a": [1, {"b": [2, {}]}, 3]})"));
  EXPECT_EQ(error(R"({"a": 1, "a": 1})"), "has the key \"a\" twice");
  EXPECT_EQ(error(R"({"a": {"b\n": 1, "b\n": 1}})"), "field \"a\": has the key \"b\\n\" twice");
  EXPECT_EQ(error(R"({"a": 1)"), "is not JSON at byte 8");
  EXPECT_THAT(error("{\"a\": \"\xff\"}"), HasSubstr("is not JSON"));
  EXPECT_THAT(error("[1e999]"), HasSubstr("is not JSON"));
  EXPECT_EQ(error(std::string(64, '[') + std::string(64, ']')), "");
  EXPECT_EQ(error(std::string(65, '[') + std::string(65, ']')), "has more than 64 nested levels");
  EXPECT_EQ(JsonExcerpt(std::string(300, 'x')).size(), 200u);
}

}  // namespace
}  // namespace hearth
