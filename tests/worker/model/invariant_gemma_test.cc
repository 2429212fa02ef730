#include "worker/model/invariant/invariant_gemma.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <filesystem>
#include <fstream>
#include <sstream>

#include "nlohmann/json.hpp"
#include "tests/support/tiny_checkpoint.h"
#include "tests/worker/kernels/kernel_kit.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<InvariantGemma> LoadOrDie(const std::string& dir) {
  auto gemma = InvariantGemma::Load(dir, {/*threads=*/1, /*chunk=*/16});
  EXPECT_TRUE(gemma.ok()) << gemma.status();
  if (!gemma.ok()) std::abort();
  return *std::move(gemma);
}

TinyGeometry OneLayer() {
  TinyGeometry geometry;
  geometry.layer_types = "g";
  geometry.context_tokens = 20;
  return geometry;
}

std::string StepError(const InvariantGemma& gemma, InvariantGemma::Kv* kv, size_t tokens,
                      int want = 0, int32_t token = 5) {
  std::vector<float> logits;
  const int length = kv->length();
  const absl::Status status = gemma.Step(kv, std::vector<int32_t>(tokens, token), want, &logits);
  EXPECT_EQ(kv->length(), status.ok() ? length + static_cast<int>(tokens) : length);
  if (!status.ok()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  }
  return std::string(status.message());
}

TEST(InvariantGemma, StepBeyondContextIsRefused) {
  const auto gemma = LoadOrDie(NewTinyCheckpoint(OneLayer(), "positions"));
  InvariantGemma::Kv kv = gemma->NewKv();
  EXPECT_THAT(StepError(*gemma, &kv, 21), HasSubstr("21 tokens after 0"));
  EXPECT_EQ(StepError(*gemma, &kv, 19), "");
  EXPECT_THAT(StepError(*gemma, &kv, 2), HasSubstr("20 positions (max_position_embeddings)"));
  EXPECT_EQ(StepError(*gemma, &kv, 1, 1), "");
  EXPECT_THAT(StepError(*gemma, &kv, 1), HasSubstr("1 tokens after 20"));
}

TEST(InvariantGemma, InvalidStepArgumentsAreRefused) {
  const auto gemma = LoadOrDie(NewTinyCheckpoint(OneLayer(), "wishes"));
  InvariantGemma::Kv kv = gemma->NewKv();
  EXPECT_THAT(StepError(*gemma, &kv, 0), HasSubstr("0 tokens"));
  EXPECT_THAT(StepError(*gemma, &kv, 2, 3), HasSubstr("want = 3"));
  EXPECT_THAT(StepError(*gemma, &kv, 2, -1), HasSubstr("want = -1"));
  EXPECT_THAT(StepError(*gemma, &kv, 2, 0, 160), HasSubstr("token id 160 is not in [0, 160)"));
  EXPECT_THAT(StepError(*gemma, &kv, 2, 0, -1), HasSubstr("token id -1"));
  EXPECT_EQ(gemma->Step(&kv, {1, 2}, 1, nullptr).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(gemma->Step(&kv, {1, 2}, 0, nullptr).ok());
}

TEST(InvariantGemma, TooManyLogitsAreRefused) {
  TinyGeometry geometry = OneLayer();
  geometry.vocab_size = 1 << 18;
  geometry.hidden_size = 4;
  geometry.context_tokens = 2000;
  const auto gemma = LoadOrDie(NewTinyCheckpoint(geometry, "logits"));
  InvariantGemma::Kv kv = gemma->NewKv();
  EXPECT_THAT(StepError(*gemma, &kv, 2000, 1025), HasSubstr("at most 1024 tokens"));
}

TEST(InvariantGemma, KvOfOtherModelIsRefused) {
  const std::string dir = NewTinyCheckpoint(OneLayer(), "own");
  const auto gemma = LoadOrDie(dir), other = LoadOrDie(dir);
  InvariantGemma::Kv kv = gemma->NewKv(), nobodys;
  EXPECT_THAT(StepError(*other, &kv, 1), HasSubstr("another model"));
  EXPECT_THAT(StepError(*gemma, &nobodys, 1), HasSubstr("NewKv did not create it"));
  EXPECT_EQ(StepError(*gemma, &kv, 3), "");
  InvariantGemma::Kv moved = std::move(kv);
  EXPECT_THAT(StepError(*gemma, &kv, 1), HasSubstr("moved from"));
  EXPECT_EQ(moved.length(), 3);
  EXPECT_EQ(StepError(*gemma, &moved, 1), "");
}

TEST(InvariantGemma, UnsupportedHeadShapeIsRefused) {
  for (const auto& [head_dim, heads] : {std::pair<int, int>{24, 4}, {528, 4}, {16, 34}}) {
    TinyGeometry geometry = OneLayer();
    geometry.head_dim = head_dim;
    geometry.heads = heads;
    const auto gemma = InvariantGemma::Load(NewTinyCheckpoint(geometry, "heads"), {1, 16});
    EXPECT_EQ(gemma.status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(gemma.status().message()),
                HasSubstr("head_dim is " + std::to_string(head_dim)));
  }
}

std::string ReadFile(const std::string& path) {
  std::stringstream read;
  read << std::ifstream(path, std::ios::binary).rdbuf();
  return read.str();
}

// Thetas that overflow or underflow as float32, or whose angles are outside the supported range.
TEST(InvariantGemma, UnsupportedRopeThetaIsRefused) {
  for (const double theta : {1e300, 1e-50, 0.5}) {
    const std::string dir = NewTinyCheckpoint(OneLayer(), "rotations");
    auto config = nlohmann::json::parse(ReadFile(dir + "/config.json"));
    config["rope_theta"] = theta;
    std::ofstream(dir + "/config.json") << config;
    const auto gemma = InvariantGemma::Load(dir, {1, 16});
    EXPECT_EQ(gemma.status().code(), absl::StatusCode::kUnimplemented) << theta;
    EXPECT_THAT(std::string(gemma.status().message()), HasSubstr("config.json: rope_theta"));
  }
}

#if defined(__x86_64__)
// Writes a tiny float16 checkpoint with subnormal norms; in a mode that flushes subnormal numbers,
// the norms would be 0.
std::string NewFloat16Checkpoint() {
  const std::string dir = NewTinyCheckpoint(OneLayer(), "float16");
  const std::string file = ReadFile(dir + "/model.safetensors");
  uint64_t header_bytes;
  std::memcpy(&header_bytes, file.data(), 8);
  auto header = nlohmann::json::parse(file.substr(8, header_bytes));
  std::string data((file.size() - 8 - header_bytes) / 2, '\0');
  Numbers numbers(1);
  for (auto& [name, tensor] : header.items()) {
    const size_t begin = tensor["data_offsets"][0].get<size_t>() / 2;
    const size_t end = tensor["data_offsets"][1].get<size_t>() / 2;
    tensor["data_offsets"] = {begin, end};
    tensor["dtype"] = "F16";
    const bool is_norm = name.find("norm") != std::string::npos;
    for (size_t at = begin; at < end; at += 2) {
      const auto draw = static_cast<uint16_t>(numbers.Next());
      const auto bits = static_cast<uint16_t>(is_norm ? draw & 0x83ff : (draw & 0x83ff) | 0x3000);
      std::memcpy(&data[at], &bits, 2);
    }
  }
  const std::string text = header.dump();
  const uint64_t text_bytes = text.size();
  std::ofstream out(dir + "/model.safetensors", std::ios::binary);
  out.write(reinterpret_cast<const char*>(&text_bytes), 8) << text << data;
  return dir;
}

std::vector<float> LogitsOf(const InvariantGemma& gemma) {
  std::vector<float> logits;
  InvariantGemma::Kv kv = gemma.NewKv();
  EXPECT_TRUE(gemma.Step(&kv, {2, 30, 7}, 1, &logits).ok());
  return logits;
}

// The test includes loading, because loading widens the weights.
TEST(InvariantGemma, SubnormalsSurviveFlushToZeroMode) {
  const std::string dir = NewFloat16Checkpoint();
  const std::vector<float> want = LogitsOf(*LoadOrDie(dir));
  const unsigned before = _mm_getcsr();
  _mm_setcsr(0x9fc0);  // flushes subnormal results and operands to 0
  const auto gemma = LoadOrDie(dir);
  const std::vector<float> got = LogitsOf(*gemma);
  EXPECT_EQ(_mm_getcsr() & 0x8040, 0x8040);
  _mm_setcsr(before);
  ASSERT_EQ(got.size(), want.size());
  EXPECT_EQ(FirstDifference(got.data(), want.data(), static_cast<int64_t>(want.size())), "");
}
#endif

TEST(InvariantGemma, OutOfMemoryErrorNamesPart) {
  const std::string dir = NewTinyCheckpoint(OneLayer(), "lacking");
  const uint64_t block = LoadOrDie(dir)->NewKv().layout().ObjectBytes(16, LayerGroup::kGlobal);
  InvariantGemmaOptions options;
  options.chunk = 16;
  options.kv_bytes = block + 1;
  const auto gemma = InvariantGemma::Load(dir, options);
  ASSERT_TRUE(gemma.ok()) << gemma.status();
  InvariantGemma::Kv one = (*gemma)->NewKv(), two = (*gemma)->NewKv();
  const std::vector<int32_t> tokens = {3, 1, 4};
  const std::vector<InvariantGemma::Part> parts = {{&one, tokens, 0, nullptr},
                                                   {&two, tokens, 0, nullptr}};
  const absl::Status status = (*gemma)->Step(parts);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("part 1 of 2"));
}

// The checkpoint is overwritten in place, as `cp` and rsync do.
TEST(InvariantGemma, OverwritingFilesDoesNotChangeLogits) {
  const std::string dir = NewTinyCheckpoint(OneLayer(), "overwritten");
  const std::string file = dir + "/model.safetensors";
  for (const WeightForm form :
       {WeightForm::kStored, WeightForm::kFloat32, WeightForm::kQ8_0, WeightForm::kQ4_0}) {
    InvariantGemmaOptions options;
    options.chunk = 16;
    options.weights = form;
    WriteTinyCheckpoint(OneLayer(), dir);
    const auto gemma = InvariantGemma::Load(dir, options);
    ASSERT_TRUE(gemma.ok()) << gemma.status();
    const std::vector<float> before = LogitsOf(**gemma);
    TinyGeometry other = OneLayer();
    other.seed = 2;
    WriteTinyCheckpoint(other, dir);
    EXPECT_EQ(LogitsOf(**gemma), before);
    std::filesystem::resize_file(file, 16);
    EXPECT_EQ(LogitsOf(**gemma), before);
  }
}

}  // namespace
}  // namespace hearth
