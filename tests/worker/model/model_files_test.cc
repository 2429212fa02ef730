// Tests the loading of checkpoint weights, the errors of invalid checkpoints, and the weights
// digest.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "tests/support/tiny_checkpoint.h"
#include "tests/worker/model/file_kit.h"
#include "worker/model/tensor_files.h"
#include "worker/model/thread_pool.h"
#include "worker/model/torch/gemma.h"
#include "worker/model/weights.h"

namespace hearth {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns options with one thread, because two test programs run at a time and compute threads
// spin.
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

TEST(TiedHeadTest, TiedEmbeddingIsStoredOnce) {
  TinyGeometry geometry;
  // the size of Gemma's vocabulary: the embedding is nearly all of the weights
  geometry.vocab_size = 1 << 18;
  const std::string dir = NewTinyCheckpoint(geometry, "tied_head");
  GemmaOptions options = OneThread();
  options.dtype = "bfloat16";
  const auto taken = [] {
    const struct mallinfo2 memory = mallinfo2();
    return memory.uordblks + memory.hblkhd;
  };
  const size_t before = taken();
  const auto gemma = Gemma::Load(dir, options);
  ASSERT_TRUE(gemma.ok()) << gemma.status();
  const size_t matrix = size_t{1} << 18 << 1 << 5;  // 262,144 rows of 32 bfloat16, in bytes
  EXPECT_GE(taken() - before, matrix);
  EXPECT_LT(taken() - before, matrix + matrix / 2);
}

TEST_F(CheckpointTest, BadTensorErrorNamesTensor) {
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

TEST_F(CheckpointTest, CorruptFileNeverCrashes) {
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes_.data(), sizeof(header_bytes));
  const size_t header_end = sizeof(header_bytes) + header_bytes;
  int refused = 0, tried = 0;
  for (size_t length = 0; length < header_end; length += 61) {
    WriteAll(file_, bytes_.substr(0, length));
    ++tried;
    if (!TensorFiles::Open(dir_).ok()) ++refused;
  }
  WriteAll(file_, bytes_.substr(0, bytes_.size() - 1));
  EXPECT_FALSE(TensorFiles::Open(dir_).ok());
  EXPECT_EQ(refused, tried);
  for (size_t at = 0; at < header_end; at += 7) {
    std::string flipped = bytes_;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x55);
    WriteAll(file_, flipped);
    const auto files = TensorFiles::Open(dir_);  // may succeed or fail
    if (!files.ok()) {
      EXPECT_THAT(std::string(files.status().message()), HasSubstr("model.safetensors"));
    }
  }
}

// Code that copies or prints a JSON value is recursive, so deep nesting could overflow the stack.
TEST_F(CheckpointTest, DeepJsonErrorNamesFile) {
  const auto deep = [](const std::string& field, int levels) {
    return "{\"" + field + "\": " + std::string(levels, '[') + std::string(levels, ']') + "}";
  };
  constexpr int kLevels = 1'000'000;
  for (const auto& [name, field] :
       {std::pair("generation_config.json", "eos_token_id"), {"config.json", "hidden_size"}}) {
    const std::string path = absl::StrCat(dir_, "/", name);
    WriteAll(path, deep(field, kLevels));
    EXPECT_THAT(LoadError(), HasSubstr(path));
  }
  WriteAll(file_, SafetensorsBytes(deep("a", kLevels), ""));
  EXPECT_THAT(std::string(TensorFiles::Open(dir_).status().message()), HasSubstr(file_));
  WriteAll(file_, SafetensorsBytes("{\"a\": " + deep("shape", kLevels) + "}", ""));
  EXPECT_THAT(std::string(TensorFiles::Open(dir_).status().message()),
              HasSubstr("header field \"a\": has more than 64 nested levels"));
  std::filesystem::remove(file_);
  WriteAll(file_ + ".index.json", deep("weight_map", kLevels));
  EXPECT_THAT(std::string(TensorFiles::Open(dir_).status().message()), HasSubstr("weight_map"));
}

// Opening a pipe would wait until a process opens it for writing.
TEST_F(CheckpointTest, OnlyRegularFilesAndLinksLoad) {
  for (const char* name : {"config.json", "generation_config.json", "model.safetensors"}) {
    const std::string path = absl::StrCat(dir_, "/", name), kept = path + ".kept";
    const bool is_there = std::filesystem::exists(path);
    if (is_there) std::filesystem::rename(path, kept);
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    EXPECT_THAT(LoadError(), HasSubstr(path + ": is not a regular file"));
    std::filesystem::remove(path);
    std::filesystem::create_symlink("/dev/zero", path);
    EXPECT_THAT(LoadError(), HasSubstr(path + ": is not a regular file"));
    std::filesystem::remove(path);
    if (is_there) std::filesystem::create_symlink(kept, path);
    EXPECT_EQ(LoadError(), "");
  }
}

TEST_F(CheckpointTest, DigestChangesWithWeightBytes) {
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

TEST_F(CheckpointTest, UnknownDeviceOrDtypeIsRefused) {
  GemmaOptions options = OneThread();
  options.device = "tpu";
  EXPECT_EQ(Gemma::Load(dir_, options).status().code(), absl::StatusCode::kInvalidArgument);
  options = OneThread();
  options.dtype = "int4";
  EXPECT_EQ(Gemma::Load(dir_, options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CheckpointTest, KnownNamePrefixesAreAccepted) {
  const auto plain = Gemma::Load(dir_, OneThread());
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_THAT((*plain)->notes(), IsEmpty());
  for (const char* prefix :
       {"", "language_model.model.", "model.language_model.", "language_model.", "model.model.",
        "base_model.model.model.", "_orig_mod.model.", "module._orig_mod.model."}) {
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
    // The same weights under other tensor names must have the same digest.
    EXPECT_EQ((*renamed)->weights_digest(), (*plain)->weights_digest()) << prefix;
  }
}

TEST_F(CheckpointTest, DuplicateTensorNameIsRefused) {
  SafetensorsParts parts(bytes_);
  parts.Add("language_model.model.norm.weight", 8);
  WriteAll(file_, parts.Bytes());
  EXPECT_THAT(LoadError(),
              AllOf(HasSubstr("language_model.model.norm.weight and model.norm.weight"),
                    HasSubstr("are both the tensor norm.weight")));
}

// The function save_model of safetensors writes only one of two tied tensors.
TEST_F(CheckpointTest, TiedHeadServesAsEmbedding) {
  const auto plain = Gemma::Load(dir_, OneThread());
  ASSERT_TRUE(plain.ok()) << plain.status();
  SafetensorsParts parts(bytes_);
  parts.Rename("model.embed_tokens.weight", "lm_head.weight");
  WriteAll(file_, parts.Bytes());
  const auto gemma = Gemma::Load(dir_, OneThread());
  ASSERT_TRUE(gemma.ok()) << gemma.status();
  EXPECT_EQ((*gemma)->weights_digest(), (*plain)->weights_digest());
}

TEST_F(CheckpointTest, NotesNameUnusedTensors) {
  SafetensorsParts parts(bytes_);
  parts.Add("vision_tower.vision_model.encoder.layers.0.mlp.fc1.bias", 8);
  parts.Add("model.vision_tower.vision_model.post_layernorm.weight", 8);
  parts.Add("multi_modal_projector.mm_soft_emb_norm.weight", 8);
  parts.Add("model.layers.0.self_attn.rotary_emb.inv_freq", 8);
  parts.Add("v_head.summary.weight", 8);
  WriteAll(file_, parts.Bytes());
  const auto gemma = Gemma::Load(dir_, OneThread());
  ASSERT_TRUE(gemma.ok()) << gemma.status();
  EXPECT_THAT((*gemma)->notes(),
              ElementsAre("3 vision tensors are ignored: text only",
                          "tensors outside the text model are ignored (2): "
                          "model.layers.0.self_attn.rotary_emb.inv_freq, v_head.summary.weight"));
  for (const char* name :
       {"model.layers.0.vision_tower.weight", "model.layers.4.mlp.up_proj.weight",
        "layers.0.self_attn.q_proj.lora_A.weight", "model.norm.bias"}) {
    SafetensorsParts more(bytes_);
    more.Add(name, 8);
    WriteAll(file_, more.Bytes());
    EXPECT_THAT(LoadError(), AllOf(HasSubstr(name), HasSubstr("not part of the model"))) << name;
  }
}

TEST_F(CheckpointTest, UntiedHeadIsRequiredAndUsed) {
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
  // the output matrix of zeros is used, not the embedding
  EXPECT_THAT(logits, ::testing::Each(0.0F));

  // If the config ties the weights but lm_head differs from the embedding, lm_head is used, as in
  // the library transformers.
  WriteAll(dir_ + "/config.json", config);
  const auto differs = Gemma::Load(dir_, OneThread());
  ASSERT_TRUE(differs.ok()) << differs.status();
  EXPECT_THAT((*differs)->notes(), ElementsAre(HasSubstr("lm_head.weight is used")));
  auto its_kv = (*differs)->NewKvCache(4);
  ASSERT_TRUE(its_kv.ok());
  ASSERT_TRUE((*differs)->Step(&*its_kv, tokens, &logits).ok());
  EXPECT_THAT(logits, ::testing::Each(0.0F));

  const auto& at = parts.header["model.embed_tokens.weight"]["data_offsets"];
  parts.data.replace(parts.header["lm_head.weight"]["data_offsets"][0].get<size_t>(),
                     at[1].get<size_t>() - at[0].get<size_t>(), parts.data, at[0].get<size_t>(),
                     at[1].get<size_t>() - at[0].get<size_t>());
  WriteAll(file_, parts.Bytes());
  const auto tied = Gemma::Load(dir_, OneThread());
  ASSERT_TRUE(tied.ok()) << tied.status();
  EXPECT_THAT((*tied)->notes(), ElementsAre(HasSubstr("lm_head.weight is ignored")));
}

// Tests the weights digest that is cached on disk for later starts.
class DigestTest : public CheckpointTest {
 protected:
  void SetUp() override {
    CheckpointTest::SetUp();
    cache_ = dir_ + "/made/when/missing";
  }
  struct RememberedDigest {
    Digest digest{};
    bool from_cache = false;
  };
  // Reads all tensors. Calls `before_end` before the reader checks whether the files have changed.
  absl::StatusOr<RememberedDigest> Load(absl::Time now, const std::function<void()>& before_end) {
    const auto files = TensorFiles::Open(dir_);
    EXPECT_TRUE(files.ok()) << files.status();
    std::vector<TensorView> tensors;
    std::vector<TensorView*> all;
    for (const auto& [name, view] : files->tensors()) tensors.push_back(view);
    for (TensorView& tensor : tensors) all.push_back(&tensor);
    WeightsReader reader(*files, tensors, cache_, &pool_);
    if (absl::Status read = reader.Read(all); !read.ok()) return read;
    before_end();
    const auto digest = reader.Finish(now);
    if (!digest.ok()) return digest.status();
    return RememberedDigest{*digest, reader.remembers()};
  }
  RememberedDigest Digest(absl::Time now = absl::Now() + absl::Hours(1)) {
    const auto loaded = Load(now, [] {});
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return *loaded;
  }
  // Returns the time of the last change of the weights' file, from the file system's clock.
  absl::Time ChangedAt() const {
    struct stat info {};
    EXPECT_EQ(stat(file_.c_str(), &info), 0);
    return absl::TimeFromTimespec(info.st_ctim);
  }
  // Writes the weights' file. Two changes within one tick of the file system's clock have the same
  // time, so this function writes the file until its time differs.
  void Change(const std::string& bytes) const {
    const absl::Time before = ChangedAt();
    do {
      WriteAll(file_, bytes);
    } while (ChangedAt() == before);
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

TEST_F(DigestTest, CacheFileIsReadableByOthers) {
  const mode_t before = umask(022);
  Digest();
  umask(before);
  const std::filesystem::file_status file = std::filesystem::status(Remembered());
  EXPECT_EQ(file.permissions(), std::filesystem::perms(0644)) << Remembered();
}

TEST_F(DigestTest, UnchangedFilesReuseDigest) {
  const RememberedDigest first = Digest();
  EXPECT_FALSE(first.from_cache);
  const RememberedDigest second = Digest();
  EXPECT_TRUE(second.from_cache);
  EXPECT_EQ(first.digest, second.digest);
}

TEST_F(DigestTest, ChangeWithSameMtimeIsDetected) {
  const RememberedDigest first = Digest();
  struct stat before {};
  ASSERT_EQ(stat(file_.c_str(), &before), 0);
  std::string flipped = bytes_;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  Change(flipped);
  const timespec times[2] = {before.st_atim, before.st_mtim};
  ASSERT_EQ(utimensat(AT_FDCWD, file_.c_str(), times, 0), 0);
  const RememberedDigest second = Digest();
  EXPECT_FALSE(second.from_cache);
  EXPECT_NE(first.digest, second.digest);
}

TEST_F(DigestTest, FileChangeDuringLoadAborts) {
  std::string other = bytes_;
  other.back() = static_cast<char>(other.back() ^ 1);
  const auto later = absl::Now() + absl::Hours(1);
  for (const bool is_remembered : {false, true}) {
    if (is_remembered) Digest();
    const auto loaded = Load(later, [&] { Change(other); });
    EXPECT_EQ(loaded.status().code(), absl::StatusCode::kAborted) << is_remembered;
    EXPECT_THAT(std::string(loaded.status().message()), HasSubstr(file_ + ": changed while"));
    WriteAll(file_, bytes_);
  }
  const auto files = TensorFiles::Open(dir_);
  ASSERT_TRUE(files.ok()) << files.status();
  TensorView last = files->tensors().begin()->second;
  for (const auto& [name, view] : files->tensors()) {
    if (view.offset > last.offset) last = view;
  }
  WeightsReader reader(*files, {last}, "", &pool_);
  std::filesystem::resize_file(file_, bytes_.size() - 1);
  const absl::Status read = reader.Read({&last});
  EXPECT_EQ(read.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(read.message()), HasSubstr(last.name));
}

TEST_F(DigestTest, RecentlyChangedFilesAreNotCached) {
  const absl::Time old_enough = ChangedAt() + absl::Seconds(2);
  Digest(old_enough - absl::Nanoseconds(1));
  EXPECT_EQ(Remembered(), "");
  Digest(old_enough);
  EXPECT_NE(Remembered(), "");
}

TEST_F(DigestTest, DamagedCacheFileIsIgnored) {
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

TEST_F(DigestTest, LinkAtCachePathIsReplaced) {
  const RememberedDigest first = Digest();
  const std::string path = Remembered(), kept = dir_ + "/kept";
  ASSERT_NE(path, "");
  const std::string good = ReadAll(path);
  WriteAll(kept, "kept");
  for (const bool is_pipe : {false, true}) {
    std::filesystem::remove(path);
    ASSERT_EQ(is_pipe ? mkfifo(path.c_str(), 0600) : symlink(kept.c_str(), path.c_str()), 0);
    const RememberedDigest again = Digest();
    EXPECT_FALSE(again.from_cache);
    EXPECT_EQ(again.digest, first.digest);
    EXPECT_EQ(ReadAll(kept), "kept");
    EXPECT_EQ(ReadAll(Remembered()), good);
    EXPECT_TRUE(Digest().from_cache);
  }
}

TEST_F(DigestTest, UnusableCacheFolderIsIgnored) {
  const RememberedDigest first = Digest();
  cache_ = dir_ + "/config.json/not/a/folder";
  const RememberedDigest again = Digest();
  EXPECT_FALSE(again.from_cache);
  EXPECT_EQ(again.digest, first.digest);
}

}  // namespace
}  // namespace hearth
