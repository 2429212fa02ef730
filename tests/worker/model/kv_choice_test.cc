#include "worker/model/kv_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace hearth {
namespace {

using ::testing::HasSubstr;

KvLayout Layout() {
  KvLayout layout;
  layout.head_dim = 64;
  return layout;
}

absl::StatusOr<KvChoice> Choose(const RequestedKv& requested, const KvChoice& fallback = {}) {
  return ChooseKv(requested, fallback, Layout());
}

TEST(KvChoice, EmptyRequestKeepsFallbackChoice) {
  const KvChoice before;
  const absl::StatusOr<KvChoice> same = Choose({"", ""}, before);
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ(same->strategy, before.strategy);
  const absl::StatusOr<KvChoice> said = Choose({"dynamic", ""}, before);
  ASSERT_TRUE(said.ok()) << said.status();
  EXPECT_EQ(said->strategy, KvStrategy::kDynamic);
}

TEST(KvChoice, UnknownNameErrorListsStrategies) {
  const absl::Status unknown = Choose({"dynamo\n", ""}).status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(unknown.message(),
            "kv_cache: must be one of " + KvStrategyNames() + "; got \"dynamo\\n\"");
  EXPECT_THAT(KvStrategyNames(), HasSubstr("dynamic"));
}

TEST(KvChoice, OptionsOfOtherStrategyAreRefused) {
  const absl::Status refused = Choose({"dynamic", "bits=4"}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("kv_quantization"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("quantized; kv_cache is dynamic"));
}

TEST(KvChoice, HybridAndSlidingWindowMeanDynamic) {
  for (const char* name : {"", "hybrid", "sliding_window", "dynamic"}) {
    const absl::StatusOr<KvChoice> choice = ModelKvChoice({name, ""}, Layout());
    ASSERT_TRUE(choice.ok()) << name << ": " << choice.status();
    EXPECT_EQ(choice->strategy, KvStrategy::kDynamic) << name;
  }
  const absl::Status unknown = ModelKvChoice({"mamba", ""}, Layout()).status();
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("got \"mamba\""));
}

TEST(KvChoice, ModelQuantizationOptionsAreDefaults) {
  const absl::StatusOr<KvChoice> eight = ModelKvChoice({"quantized", "bits=8"}, Layout());
  ASSERT_TRUE(eight.ok()) << eight.status();
  EXPECT_EQ(eight->quantization.bits, 8u);
  EXPECT_EQ(ChooseKv({"quantized", ""}, *eight, Layout())->quantization.bits, 8u);
  EXPECT_EQ(ChooseKv({"", "bits=2"}, *eight, Layout())->quantization.bits, 2u);
  // The model's quantization options are ignored if its strategy is not quantized.
  EXPECT_FALSE(ModelKvChoice({"static", "bits=8"}, Layout())->quantization.is_on());
  const absl::Status wrong = ModelKvChoice({"quantized", "bits=3"}, Layout()).status();
  EXPECT_EQ(wrong.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(wrong.message()),
              HasSubstr("cache_config: kv_quantization: bits: must be 8, 4 or 2; got \"3\""));
}

}  // namespace
}  // namespace hearth
