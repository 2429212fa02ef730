// The canary (a digest of KV in the fingerprint): which differences between machines change the
// fingerprint.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/hash_gemma.h"
#include "tests/worker/engine/engine_harness.h"
#include "worker/engine/runner/model_fingerprint.h"

namespace hearth {
namespace {

using ::testing::ElementsAre;

// Returns a checkpoint whose context has more than 4,096 keys, with a sliding window.
const std::string& LongDir() {
  TinyGeometry geometry;
  geometry.context_tokens = 8192;
  return ModelDir(geometry);
}

Fingerprint FingerprintOn(const std::string& model_dir, OddBits bits,
                          const std::string& cpu_capability = "hash") {
  const OddMachine machine(bits, cpu_capability);
  return TestWorker(model_dir)->fingerprint();
}

std::vector<std::string> FieldsThatDiffer(const Fingerprint& ours, const Fingerprint& theirs) {
  std::vector<std::string> fields;
  for (const FieldDifference& difference : Compare(ours, theirs)) {
    fields.push_back(difference.field);
  }
  return fields;
}

TEST(CanaryTest, OneRowStepDifferenceChangesFingerprint) {
  const Fingerprint usual = FingerprintOn(LongDir(), OddBits::kNowhere);
  EXPECT_THAT(FieldsThatDiffer(usual, FingerprintOn(LongDir(), OddBits::kOneRow)),
              ElementsAre("canary_sha256"));
}

TEST(CanaryTest, DifferenceAfterWindowSlidesChangesFingerprint) {
  TinyGeometry geometry;
  geometry.window = 512;  // as in Gemma 3 270M; longer than two chunks plus a few rows
  geometry.context_tokens = 8192;
  const Fingerprint usual = FingerprintOn(ModelDir(geometry), OddBits::kNowhere);
  EXPECT_THAT(FieldsThatDiffer(usual, FingerprintOn(ModelDir(geometry), OddBits::kSlidWindow)),
              ElementsAre("canary_sha256"));
}

TEST(CanaryTest, DifferenceAtFarKeyChangesFingerprint) {
  const Fingerprint usual = FingerprintOn(LongDir(), OddBits::kNowhere);
  EXPECT_THAT(FieldsThatDiffer(usual, FingerprintOn(LongDir(), OddBits::kFarKeys)),
              ElementsAre("canary_sha256"));
}

TEST(FingerprintTest, DeviceFingerprintIgnoresCpuThreads) {
  const absl::StatusOr<ModelConfig> config = LoadModelConfig(LongDir());
  const KvLayout layout = TestWorker(LongDir())->layout();
  const auto of = [&](const char* cpu_capability, int threads) {
    ComputeIdentity identity;
    identity.device_kind = *cpu_capability == 0 ? "cuda" : "cpu";
    identity.cpu_capability = cpu_capability;
    identity.threads = threads;
    return *FingerprintOf(*config, layout, Digest{}, identity);
  };
  EXPECT_THAT(FieldsThatDiffer(of("", 4), of("", 64)), testing::IsEmpty());
  EXPECT_THAT(FieldsThatDiffer(of("AVX2", 4), of("AVX2", 64)), ElementsAre("threads"));
}

TEST(FingerprintTest, YarnAddsFingerprintFields) {
  ModelConfig config = *LoadModelConfig(LongDir());
  const KvLayout layout = TestWorker(LongDir())->layout();
  const Fingerprint plain = *FingerprintOf(config, layout, Digest{}, ComputeIdentity());
  for (const FingerprintField& field : plain.fields())
    EXPECT_THAT(field.name, testing::Not(testing::HasSubstr("ramp")));
  config.rope.global.ramp_span = 3;
  const Fingerprint yarn = *FingerprintOf(config, layout, Digest{}, ComputeIdentity());
  EXPECT_THAT(FieldsThatDiffer(plain, yarn),
              ElementsAre("rope_attention_factor_global", "rope_ramp_begin_global",
                          "rope_ramp_span_global"));
  config.rope.global.attention_factor = 1.25;
  EXPECT_THAT(FieldsThatDiffer(yarn, *FingerprintOf(config, layout, Digest{}, ComputeIdentity())),
              ElementsAre("rope_attention_factor_global"));
}

TEST(CanaryTest, ShortContextStillSlidesWindow) {
  const std::string& dir = ModelDir(Geometries()[0].geometry);  // its context has 512 tokens
  const Fingerprint usual = FingerprintOn(dir, OddBits::kNowhere);
  EXPECT_EQ(FieldsThatDiffer(usual, FingerprintOn(dir, OddBits::kNowhere)).size(), 0u);
  EXPECT_THAT(FieldsThatDiffer(usual, FingerprintOn(dir, OddBits::kSlidWindow)),
              ElementsAre("canary_sha256"));
}

TEST(CanaryTest, DifferentCpuCapabilityChangesFingerprint) {
  const Fingerprint usual = FingerprintOn(LongDir(), OddBits::kNowhere, "AVX512");
  EXPECT_THAT(FieldsThatDiffer(usual, FingerprintOn(LongDir(), OddBits::kNowhere, "AVX2")),
              ElementsAre("cpu_capability"));
}

TEST(CanaryTest, FingerprintRecordsItsVersion) {
  const Fingerprint exact = FingerprintOn(LongDir(), OddBits::kNowhere);
  std::string version;
  for (const FingerprintField& field : exact.fields()) {
    if (field.name == "fingerprint_version") version = field.ValueText();
  }
  EXPECT_EQ(version, "2");
}

TEST(CanaryTest, CanaryLengthCoversWindowWithinContext) {
  ModelConfig config;
  config.max_position_embeddings = 32768;
  config.attention.sliding_window = 512;
  EXPECT_GE(CanaryTokens(config, 128), 4096 + 128 + 1);
  config.attention.sliding_window = 8192;
  EXPECT_GE(CanaryTokens(config, 128), 8192 + 128 + 1);
  for (const int context : {1, 7, 100, 136, 137, 600}) {
    config.max_position_embeddings = context;
    EXPECT_LE(CanaryTokens(config, 128), context);
    EXPECT_GE(CanaryTokens(config, 128), 1);
  }
}

}  // namespace
}  // namespace hearth
