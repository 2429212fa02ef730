#include "proto/kv_quantization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "proto/fingerprint.h"
#include "proto/kv_layout.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

TEST(KvQuantization, OmittedOptionsTakeDefaults) {
  uint32_t residual = 7;
  const auto none = ParseKvQuantization("", &residual);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(KvQuantizationText(*none), "bits=4,group=64,axis_key=-1,axis_value=0");
  EXPECT_EQ(residual, 0u);
  const auto all =
      ParseKvQuantization("bits=2,group=32,axis_key=0,axis_value=-1,residual=128", &residual);
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(KvQuantizationText(*all), "bits=2,group=32,axis_key=0,axis_value=-1");
  EXPECT_EQ(residual, 128u);
}

TEST(KvQuantization, ErrorNamesWrongOption) {
  const auto error = [](const char* text) {
    uint32_t residual = 0;
    return std::string(ParseKvQuantization(text, &residual).status().message());
  };
  EXPECT_EQ(error("bits=3"), "bits: must be 8, 4 or 2; got \"3\"");
  EXPECT_THAT(error("bits=4,bits=8"), HasSubstr("given once"));
  EXPECT_THAT(error("group=0"), HasSubstr("group: must be 1"));
  EXPECT_THAT(error("axis_key=1"), HasSubstr("-1 (group along tokens)"));
  EXPECT_THAT(error("nbits=4"), HasSubstr("known options: bits, group"));
  EXPECT_THAT(error("bits"), HasSubstr("must be a number"));
  EXPECT_THAT(error("residual=0"), HasSubstr("above 0"));
}

TEST(KvQuantization, GroupMustDivideItsAxis) {
  KvQuantization quantization;
  quantization.bits = 4;
  EXPECT_TRUE(quantization.Check(128, 256).ok());
  EXPECT_THAT(std::string(quantization.Check(128, 96).message()), HasSubstr("head_dim, 96"));
  quantization.axis_key = -1;
  EXPECT_THAT(std::string(quantization.Check(32, 256).message()), HasSubstr("tokens, 32"));
  quantization.bits = 3;
  EXPECT_FALSE(quantization.Check(128, 256).ok());
}

TEST(KvQuantization, OnlyWholeChunksAreQuantized) {
  KvLayout layout;
  layout.kv_heads = 1;
  layout.head_dim = 256;
  layout.window = 512;
  layout.layers = {LayerGroup::kGlobal, LayerGroup::kLocal};
  const double plain = static_cast<double>(layout.SliceBytes(128));
  for (const auto& [bits, most] : {std::pair<uint32_t, double>{8, 0.27}, {4, 0.15}, {2, 0.09}}) {
    layout.quantization.bits = bits;
    ASSERT_TRUE(layout.Validate().ok());
    EXPECT_LE(static_cast<double>(layout.SliceBytes(128)), most * plain) << bits;
    EXPECT_EQ(layout.SliceBytes(128) % 64, 0u);
    EXPECT_EQ(layout.SliceBytes(127), layout.PlainSliceBytes(127));
  }
  // Compared with float32 rows: a whole chunk has the same size, because it is quantized; a shorter
  // object has half the size.
  const size_t sealed = layout.SliceBytes(128), open = layout.SliceBytes(127);
  layout.dtype = KvDtype::kBFloat16;
  ASSERT_TRUE(layout.Validate().ok());
  EXPECT_EQ(layout.SliceBytes(128), sealed);
  EXPECT_EQ(2 * layout.SliceBytes(127), open);
  layout.dtype = KvDtype::kFloat16;
  EXPECT_THAT(std::string(layout.Validate().message()), HasSubstr("float32"));
}

std::vector<FingerprintField> Fields(const std::string& codec) {
  return {{"chunk_tokens", uint64_t{128}},
          {"window", uint64_t{512}},
          {"kv_heads", uint64_t{1}},
          {"head_dim", uint64_t{256}},
          {"kv_dtype", std::string("float32")},
          {"exactness", std::string("invariant")},
          {"layer_types", std::string("lg")},
          {"object_layout", uint64_t{1}},
          {"codec", codec}};
}

TEST(KvQuantization, CodecRoundTripsThroughFingerprint) {
  KvQuantization quantization;
  quantization.bits = 8;
  quantization.axis_key = -1;
  EXPECT_EQ(CodecText({}), "raw");
  const auto print = Fingerprint::Create(Fields(CodecText(quantization)));
  ASSERT_TRUE(print.ok()) << print.status();
  const absl::StatusOr<KvLayout> layout = print->Layout();
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(KvQuantizationText(layout->quantization), KvQuantizationText(quantization));
  EXPECT_NE(print->digest(), Fingerprint::Create(Fields("raw"))->digest());
  for (const char* other : {"quantized:bits=8", "quantized:", "quantized:bits=9,group=64"}) {
    EXPECT_THAT(std::string(Fingerprint::Create(Fields(other))->Layout().status().message()),
                HasSubstr("codec is"))
        << other;
  }
}

}  // namespace
}  // namespace hearth
