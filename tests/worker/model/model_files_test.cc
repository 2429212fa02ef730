// The valid weights of a checkpoint, the errors of all others, and the digest of a checkpoint.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/worker/model/file_kit.h"
#include "worker/model/safetensors.h"
#include "worker/model/thread_pool.h"
#include "worker/model/torch/gemma.h"
#include "worker/model/weights_digest.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Two test programs run at a time, and compute threads spin.
GemmaOptions OneThread() {
  GemmaOptions options;
  options.threads = 1;
  return options;
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
    const auto gemma = Gemma::Load(dir_, OneThread());
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
  const auto first = Gemma::Load(dir_, OneThread());
  const auto again = Gemma::Load(dir_, OneThread());
  ASSERT_TRUE(first.ok() && again.ok());
  EXPECT_EQ((*first)->weights_digest(), (*again)->weights_digest());
  std::string flipped = bytes_;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  WriteAll(file_, flipped);
  const auto changed = Gemma::Load(dir_, OneThread());
  ASSERT_TRUE(changed.ok());
  EXPECT_NE((*first)->weights_digest(), (*changed)->weights_digest());
}

TEST_F(CheckpointTest, RefusesDevicesAndDtypesItDoesNotKnow) {
  GemmaOptions options = OneThread();
  options.device = "tpu";
  EXPECT_EQ(Gemma::Load(dir_, options).status().code(), absl::StatusCode::kInvalidArgument);
  options = OneThread();
  options.dtype = "int4";
  EXPECT_EQ(Gemma::Load(dir_, options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CheckpointTest, ReadsEveryPrefixThatHuggingFaceWrote) {
  const auto plain = Gemma::Load(dir_, OneThread());
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_THAT((*plain)->notes(), IsEmpty());
  for (const char* prefix : {"language_model.model.", "model.language_model."}) {
    SafetensorsParts parts(bytes_);
    const auto original = parts.header.items();
    std::vector<std::string> names;
    for (const auto& [name, entry] : original) names.push_back(name);
    for (const std::string& name : names) {
      parts.Rename(name, absl::StrReplaceAll(name, {{"model.", prefix}}));
    }
    WriteAll(file_, parts.Bytes());
    const auto renamed = Gemma::Load(dir_, OneThread());
    ASSERT_TRUE(renamed.ok()) << prefix << renamed.status();
    // The same weights under another name share their KV.
    EXPECT_EQ((*renamed)->weights_digest(), (*plain)->weights_digest()) << prefix;
  }
}

TEST_F(CheckpointTest, SkipsVisionTensorsWithANoteAndNothingElse) {
  SafetensorsParts parts(bytes_);
  parts.Add("vision_tower.vision_model.encoder.layers.0.mlp.fc1.bias", 8);
  parts.Add("model.vision_tower.vision_model.post_layernorm.weight", 8);
  parts.Add("multi_modal_projector.mm_soft_emb_norm.weight", 8);
  WriteAll(file_, parts.Bytes());
  const auto gemma = Gemma::Load(dir_, OneThread());
  ASSERT_TRUE(gemma.ok()) << gemma.status();
  EXPECT_THAT((*gemma)->notes(), ElementsAre("3 vision tensors skipped: text only"));
  for (const char* name :
       {"model.layers.0.vision_tower.weight", "model.layers.4.mlp.up_proj.weight", "extra"}) {
    SafetensorsParts more(bytes_);
    more.Add(name, 8);
    WriteAll(file_, more.Bytes());
    EXPECT_THAT(LoadError(), AllOf(HasSubstr(name), HasSubstr("not part of the model"))) << name;
  }
}

TEST_F(CheckpointTest, ReadsAnUntiedHeadAndNamesAMissingOne) {
  const std::string config = ReadAll(dir_ + "/config.json");
  const std::string untied = absl::StrReplaceAll(
      config, {{"\"tie_word_embeddings\": true", "\"tie_word_embeddings\": false"}});
  ASSERT_NE(config, untied);
  SafetensorsParts parts(bytes_);
  const TinyGeometry geometry;
  parts.Add("lm_head.weight", size_t(geometry.vocab_size) * geometry.hidden_size);
  parts.header["lm_head.weight"]["shape"] = {geometry.vocab_size, geometry.hidden_size};

  WriteAll(dir_ + "/config.json", untied);
  EXPECT_THAT(LoadError(), HasSubstr("tensor lm_head.weight is missing"));
  WriteAll(file_, parts.Bytes());
  const auto gemma = Gemma::Load(dir_, OneThread());
  ASSERT_TRUE(gemma.ok()) << gemma.status();
  auto kv = (*gemma)->NewKvCache(4);
  ASSERT_TRUE(kv.ok());
  std::vector<float> logits;
  const std::vector<int32_t> tokens = {2, 3};
  ASSERT_TRUE((*gemma)->Step(&*kv, tokens, &logits).ok());
  EXPECT_THAT(logits, ::testing::Each(0.0F));  // the head of zeros, not the embeddings

  WriteAll(dir_ + "/config.json", config);
  const auto tied = Gemma::Load(dir_, OneThread());
  ASSERT_TRUE(tied.ok()) << tied.status();
  EXPECT_THAT((*tied)->notes(), ElementsAre(HasSubstr("lm_head.weight ignored")));
}

// Digests remembered between starts.
class DigestTest : public CheckpointTest {
 protected:
  void SetUp() override {
    CheckpointTest::SetUp();
    cache_ = dir_ + "/made/when/missing";
  }
  RememberedDigest Digest(absl::Time now = absl::Now() + absl::Hours(1)) {
    const auto files = Safetensors::Open(dir_);
    EXPECT_TRUE(files.ok()) << files.status();
    std::vector<TensorView> tensors;
    for (const auto& [name, view] : files->tensors()) tensors.push_back(view);
    const auto digest = DigestOfFiles(tensors, files->files(), cache_, now, &pool_);
    EXPECT_TRUE(digest.ok()) << digest.status();
    return *digest;
  }
  std::string Remembered() {
    std::error_code missing;
    for (const auto& entry : std::filesystem::directory_iterator(cache_, missing)) {
      return entry.path();
    }
    return "";
  }
  ThreadPool pool_{2};
  std::string cache_;
};

TEST_F(DigestTest, IsRememberedForTheSameFiles) {
  const RememberedDigest first = Digest();
  EXPECT_FALSE(first.from_cache);
  const RememberedDigest second = Digest();
  EXPECT_TRUE(second.from_cache);
  EXPECT_EQ(first.digest, second.digest);
}

TEST_F(DigestTest, SeesAFlippedBitBehindTheSameSizeAndTime) {
  const RememberedDigest first = Digest();
  struct stat before {};
  ASSERT_EQ(stat(file_.c_str(), &before), 0);
  std::string flipped = bytes_;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  WriteAll(file_, flipped);
  const timespec times[2] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(utimensat(AT_FDCWD, file_.c_str(), times, 0), 0);
  const RememberedDigest second = Digest();
  EXPECT_FALSE(second.from_cache);
  EXPECT_NE(first.digest, second.digest);
}

TEST_F(DigestTest, IsNotRememberedOfFilesThatJustChanged) {
  Digest(absl::Now());
  EXPECT_EQ(Remembered(), "");
}

TEST_F(DigestTest, TrustsNoDamagedMemory) {
  const RememberedDigest first = Digest();
  const std::string path = Remembered();
  ASSERT_NE(path, "");
  const std::string good = ReadAll(path);
  for (size_t at = 0; at < good.size(); at += 5) {
    std::string bad = good;
    bad[at] = bad[at] == '0' ? '1' : '0';
    WriteAll(path, bad);
    const RememberedDigest again = Digest();
    EXPECT_FALSE(again.from_cache) << at;
    EXPECT_EQ(again.digest, first.digest) << at;
  }
  WriteAll(path, "");
  EXPECT_FALSE(Digest().from_cache);
}

TEST_F(DigestTest, NeedsNoFolderToRememberIn) {
  const RememberedDigest first = Digest();
  cache_ = dir_ + "/config.json/not/a/folder";
  const RememberedDigest again = Digest();
  EXPECT_FALSE(again.from_cache);
  EXPECT_EQ(again.digest, first.digest);
}

}  // namespace
}  // namespace hearth
