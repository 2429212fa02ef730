// Tests the reader of safetensors files and their index, and the errors of invalid files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/test_folder.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/worker/model/file_kit.h"
#include "worker/model/tensor_files.h"
#include "worker/model/thread_pool.h"
#include "worker/model/weights.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Entry(int begin, int end) {
  return R"({"dtype":"F32","shape":[)" + std::to_string((end - begin) / 4) +
         R"(],"data_offsets":[)" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

// Returns the error of OpenFile for a file with this header and `data_bytes` bytes of data; empty
// if the file opens.
std::string ErrorOf(const std::string& header, size_t data_bytes) {
  const TestFolder folder;
  const std::string path = folder.File("model.safetensors");
  WriteAll(path, SafetensorsBytes(header, std::string(data_bytes, 'x')));
  const auto files = TensorFiles::OpenFile(path);
  if (files.ok()) return "";
  EXPECT_EQ(files.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(files.status().message()), HasSubstr(path));
  return std::string(files.status().message());
}

TEST(TensorFile, EveryByteBelongsToOneTensor) {
  EXPECT_THAT(ErrorOf(R"({"a":)" + Entry(0, 8) + R"(,"b":)" + Entry(8, 16) + "}", 16), IsEmpty());
  EXPECT_THAT(ErrorOf(R"({"a":)" + Entry(0, 8) + R"(,"b":)" + Entry(4, 16) + "}", 16),
              AllOf(HasSubstr("tensor b overlaps tensor a")));
  EXPECT_THAT(ErrorOf(R"({"a":)" + Entry(0, 8) + R"(,"b":)" + Entry(12, 16) + "}", 16),
              HasSubstr("tensor b leaves a gap after tensor a"));
  EXPECT_THAT(ErrorOf(R"({"a":)" + Entry(4, 16) + "}", 16),
              HasSubstr("tensor a leaves a gap after the header"));
  EXPECT_THAT(ErrorOf(R"({"a":)" + Entry(0, 8) + "}", 16),
              HasSubstr("8 bytes after tensor a are unused"));
  EXPECT_THAT(ErrorOf(R"({"a":)" + Entry(0, 16) + "}", 12), HasSubstr("12 data bytes"));
}

TEST(TensorFile, RepeatedTensorNameIsRefused) {
  EXPECT_THAT(ErrorOf(R"({"a":)" + Entry(0, 8) + R"(,"a":)" + Entry(8, 16) + "}", 16),
              HasSubstr("header has the key \"a\" twice"));
  // The field names of an entry are valid tensor names too.
  EXPECT_THAT(ErrorOf(R"({"shape":)" + Entry(0, 8) + R"(,"dtype":)" + Entry(8, 16) + "}", 16),
              IsEmpty());
}

TEST(TensorFile, InvalidShapesAreRefused) {
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],)"
                      R"("data_offsets":[0,8]}})",
                      8),
              HasSubstr("too large"));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"BF16","shape":[3],"data_offsets":[0,8]}})", 8),
              AllOf(HasSubstr("tensor a"), HasSubstr("[3]"), HasSubstr("BF16")));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8),
              HasSubstr("shape"));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8),
              HasSubstr("data_offsets"));
  EXPECT_THAT(ErrorOf(R"({"a":{"dtype":"F32","shape":[2]}})", 8), HasSubstr("data_offsets"));
  EXPECT_THAT(ErrorOf(R"(["a"])", 0), HasSubstr("JSON object"));
}

// A checkpoint of two files and an index.
class ShardedTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = NewTinyCheckpoint(TinyGeometry(),
                             testing::UnitTest::GetInstance()->current_test_info()->name());
    index_ = dir_ + "/model.safetensors.index.json";
    const SafetensorsParts whole(ReadAll(dir_ + "/model.safetensors"));
    std::map<int, SafetensorsParts> parts;
    for (int i = 0; i < 2; ++i) {
      SafetensorsParts part(SafetensorsBytes("{}", ""));
      parts.emplace(i, part);
    }
    int number = 0;
    for (const auto& [name, entry] : whole.header.items()) {
      SafetensorsParts& part = parts.at(number % 2);
      const size_t begin = entry["data_offsets"][0], end = entry["data_offsets"][1];
      part.header[name] = entry;
      part.header[name]["data_offsets"] = {part.data.size(), part.data.size() + end - begin};
      part.data += whole.data.substr(begin, end - begin);
      map_["weight_map"][name] = File(number % 2);
      ++number;
    }
    for (const auto& [i, part] : parts) WriteAll(dir_ + "/" + File(i), part.Bytes());
    single_ = ReadAll(dir_ + "/model.safetensors");
    std::filesystem::remove(dir_ + "/model.safetensors");
    WriteIndex();
  }
  static std::string File(int i) { return i == 0 ? "one.safetensors" : "two.safetensors"; }
  void WriteIndex() { WriteAll(index_, map_.dump()); }
  std::string OpenError() {
    const auto files = TensorFiles::Open(dir_);
    return files.ok() ? std::string() : std::string(files.status().message());
  }

  std::string dir_, index_, single_;
  nlohmann::json map_;
};

TEST_F(ShardedTest, ShardsEqualSingleFile) {
  const auto sharded = TensorFiles::Open(dir_);
  ASSERT_TRUE(sharded.ok()) << sharded.status();
  EXPECT_EQ(sharded->files().size(), 2);
  WriteAll(dir_ + "/model.safetensors", single_);
  const auto single = TensorFiles::Open(dir_);  // a single file takes precedence over an index
  ASSERT_TRUE(single.ok()) << single.status();
  EXPECT_EQ(single->files().size(), 1);
  ASSERT_EQ(single->tensors().size(), sharded->tensors().size());
  ThreadPool pool(1);
  WeightsReader of_single(*single, {}, "", &pool), of_sharded(*sharded, {}, "", &pool);
  for (const auto& [name, tensor] : single->tensors()) {
    TensorView view = tensor, other = sharded->tensors().at(name);
    ASSERT_TRUE(of_single.Read({&view}).ok() && of_sharded.Read({&other}).ok()) << name;
    EXPECT_EQ(view.shape, other.shape) << name;
    ASSERT_EQ(view.bytes, other.bytes) << name;
    EXPECT_EQ(std::memcmp(view.data.get(), other.data.get(), view.bytes), 0) << name;
  }
}

TEST_F(ShardedTest, MissingShardErrorNamesIndex) {
  std::filesystem::remove(dir_ + "/two.safetensors");
  EXPECT_THAT(OpenError(), AllOf(HasSubstr("two.safetensors: cannot be opened"),
                                 HasSubstr(index_ + " lists this file")));
}

// As in the library transformers: an index may list a tied lm_head, or files of an earlier save.
TEST_F(ShardedTest, WrongIndexEntriesAreIgnored) {
  map_["weight_map"]["model.norm.weight"] =
      map_["weight_map"]["model.norm.weight"] == File(0) ? File(1) : File(0);
  map_["weight_map"]["lm_head.weight"] = File(0);
  map_["weight_map"].erase("model.layers.0.mlp.up_proj.weight");
  WriteIndex();
  const auto files = TensorFiles::Open(dir_);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->tensors().size(), SafetensorsParts(single_).header.size());
}

TEST_F(ShardedTest, PartsWithoutIndexAreFound) {
  std::filesystem::remove(index_);
  const auto part = [this](int number, int parts) {
    return absl::StrCat(dir_, "/model-0000", number, "-of-0000", parts, ".safetensors");
  };
  std::filesystem::rename(dir_ + "/one.safetensors", part(1, 2));
  EXPECT_THAT(OpenError(), AllOf(HasSubstr(part(2, 2) + ": cannot be opened"),
                                 HasSubstr("has other parts of the model")));
  std::filesystem::rename(dir_ + "/two.safetensors", part(2, 2));
  WriteAll(dir_ + "/model-1-of-2.safetensors", "not a part");
  const auto files = TensorFiles::Open(dir_);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->tensors().size(), SafetensorsParts(single_).header.size());
  for (const std::string& other : {part(1, 3), part(3, 2)}) {
    WriteAll(other, "of another save");
    EXPECT_THAT(OpenError(), HasSubstr("is part of another checkpoint than")) << other;
    std::filesystem::remove(other);
  }
}

TEST_F(ShardedTest, TensorInTwoFilesIsRefused) {
  WriteAll(dir_ + "/two.safetensors", single_);
  EXPECT_THAT(OpenError(), AllOf(HasSubstr("two.safetensors"), HasSubstr("is also in"),
                                 HasSubstr("one.safetensors")));
}

TEST_F(ShardedTest, FilesOutsideFolderAreRefused) {
  for (const char* file : {"../model.safetensors", "/etc/passwd", ""}) {
    map_["weight_map"]["model.norm.weight"] = file;
    WriteIndex();
    EXPECT_THAT(OpenError(), AllOf(HasSubstr("model.norm.weight"), HasSubstr("not a file name")))
        << file;
  }
}

TEST_F(ShardedTest, InvalidIndexIsRefused) {
  for (const char* text : {"", "[]", "{}", R"({"weight_map": 3})", R"({"weight_map": {}})",
                           R"({"weight_map": {"a": 3}})"}) {
    WriteAll(index_, text);
    EXPECT_THAT(OpenError(), AllOf(HasSubstr(index_), HasSubstr("weight_map"))) << text;
  }
  std::filesystem::remove(index_);
  EXPECT_THAT(OpenError(), HasSubstr("has neither model.safetensors, nor"));
}

}  // namespace
}  // namespace hearth
