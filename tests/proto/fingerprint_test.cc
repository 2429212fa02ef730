#include "proto/fingerprint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "proto/digest.h"
#include "tests/proto/tiny_snapshot.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<FingerprintField> With(FingerprintField changed) {
  return With(TinyFields(), std::move(changed));
}

std::string CreateError(std::vector<FingerprintField> fields) {
  return std::string(Fingerprint::Create(std::move(fields)).status().message());
}

std::string LayoutError(FingerprintField changed,
                        const std::vector<FingerprintField>& fields = TinyFields()) {
  return std::string(
      Fingerprint::Create(With(fields, std::move(changed)))->Layout().status().message());
}

TEST(FingerprintTest, DigestIgnoresFieldOrder) {
  std::vector<FingerprintField> reversed = TinyFields();
  std::reverse(reversed.begin(), reversed.end());
  EXPECT_EQ(Fingerprint::Create(reversed)->digest(), TinyFingerprint().digest());
}

TEST(FingerprintTest, FieldValueAndTypeChangeDigest) {
  for (const FingerprintField& field : TinyFields()) {
    FingerprintField changed = field;
    changed.value = std::string("other");
    EXPECT_NE(Fingerprint::Create(With(changed))->digest(), TinyFingerprint().digest());
  }
  EXPECT_NE(Fingerprint::Create(With({"window", 8.0}))->digest(), TinyFingerprint().digest());
  EXPECT_EQ(Fingerprint::Create(With({"norm_epsilon", -0.0}))->digest(),
            Fingerprint::Create(With({"norm_epsilon", 0.0}))->digest());
}

TEST(FingerprintTest, NonCanonicalFieldsRefused) {
  EXPECT_THAT(CreateError({}), HasSubstr("1 to 64 fields"));
  EXPECT_THAT(CreateError({{"Upper", uint64_t{1}}}), HasSubstr("[a-z0-9_.]"));
  EXPECT_THAT(CreateError({{"", uint64_t{1}}}), HasSubstr("[a-z0-9_.]"));
  EXPECT_THAT(CreateError({{"a", uint64_t{1}}, {"a", uint64_t{2}}}), HasSubstr("given twice"));
  EXPECT_THAT(CreateError({{"a", std::numeric_limits<double>::quiet_NaN()}}),
              HasSubstr("not a finite number"));
  EXPECT_THAT(CreateError({{"a", std::string(4097, 'x')}}), HasSubstr("limit is 4096"));
}

TEST(FingerprintTest, SerializedFingerprintParsesBack) {
  auto parsed = Fingerprint::Parse(TinyFingerprint().Serialize());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->digest(), TinyFingerprint().digest());
  EXPECT_THAT(Compare(*parsed, TinyFingerprint()), IsEmpty());
}

TEST(FingerprintTest, LayoutIsReadFromFields) {
  const KvLayout layout = TinyFingerprint().Layout().value();
  EXPECT_EQ(layout.chunk_tokens, 16u);
  EXPECT_EQ(layout.window, 8u);
  EXPECT_EQ(layout.dtype, KvDtype::kFloat16);
  EXPECT_EQ(layout.layers, (std::vector<LayerGroup>{LayerGroup::kLocal, LayerGroup::kGlobal}));
}

TEST(FingerprintTest, LayoutErrorNamesField) {
  EXPECT_THAT(LayoutError({"window", uint64_t{1} << 40}), HasSubstr("window is 1099511627776"));
  EXPECT_THAT(LayoutError({"window", std::string("8")}), HasSubstr("window is not an integer"));
  EXPECT_THAT(LayoutError({"kv_dtype", std::string("int4")}), HasSubstr("kv_dtype is \"int4\""));
  EXPECT_THAT(LayoutError({"layer_types", std::string("gx")}), HasSubstr("layer_types"));
  EXPECT_THAT(LayoutError({"exactness", std::string("roughly")}), HasSubstr("exactness"));
  EXPECT_THAT(LayoutError({"object_layout", uint64_t{3}}), HasSubstr("object_layout is 3"));
  EXPECT_THAT(LayoutError({"codec", std::string("zip")}), HasSubstr("codec is \"zip\""));
  EXPECT_THAT(LayoutError({"chunk_tokens", uint64_t{17}}), HasSubstr("power of two"));
  EXPECT_THAT(Fingerprint::Create({{"codec", std::string("raw")}})->Layout().status().message(),
              HasSubstr("chunk_tokens is missing"));
}

TEST(FingerprintTest, PageBytesFieldSetsSliceSize) {
  const KvLayout layout = PageFingerprint().Layout().value();
  EXPECT_EQ(layout.SliceBytes(16), 72u);
  EXPECT_EQ(layout.ObjectBytes(16, LayerGroup::kLocal), 72u);
  EXPECT_TRUE(layout.MayEndAt(32));
  EXPECT_FALSE(layout.MayEndAt(33));
  EXPECT_TRUE(TinyFingerprint().Layout()->MayEndAt(33));
  // With pages, kv_dtype is a name that only the engine understands.
  EXPECT_EQ(LayoutError({"kv_dtype", std::string("int3")}, PageFields()), "");
  // With object_layout 1, page_bytes has no effect.
  EXPECT_EQ(Fingerprint::Create(With({"page_bytes", uint64_t{72}}))->Layout()->SliceBytes(16),
            TinyFingerprint().Layout()->SliceBytes(16));
}

TEST(FingerprintTest, InvalidPageSizeErrorNamesField) {
  const auto error = [](FingerprintField changed) {
    return LayoutError(std::move(changed), PageFields());
  };
  EXPECT_EQ(error({"page_bytes", uint64_t{0}}), "fingerprint field page_bytes is 0");
  EXPECT_EQ(error({"page_bytes", uint64_t{kMaxPageTokenBytes} * 16}), "");
  EXPECT_EQ(error({"page_bytes", uint64_t{kMaxPageTokenBytes} * 16 + 1}),
            "page_bytes is 16777217, allowed are 1 to 16777216");
  EXPECT_EQ(error({"page_bytes", UINT64_MAX}),
            "fingerprint field page_bytes is 18446744073709551615, over 32 bits");
  EXPECT_EQ(error({"page_bytes", std::string("72")}),
            "fingerprint field page_bytes is not an integer");
  EXPECT_EQ(error({"layer_types", std::string(1025, 'g')}),
            "layer count is 1025, allowed are 1 to 1024");
  EXPECT_EQ(error({"layer_types", std::string()}), "layer count is 0, allowed are 1 to 1024");
  EXPECT_EQ(CreateError(With(PageFields(), {"layer_types", std::string(1000000, 'g')})),
            "fingerprint field layer_types has 1000000 bytes, the limit is 4096");
  EXPECT_EQ(error({"chunk_tokens", uint64_t{1} << 20}),
            "chunk_tokens is 1048576, allowed are 16 to 1024");
  EXPECT_EQ(error({"codec", std::string("quantized:bits=4,group=64,axis_key=0,axis_value=0")}),
            "codec: pages of object_layout 2 are not quantized here");
  EXPECT_EQ(error({"window", uint64_t{0}}), "window is 0, allowed are 1 to 1048576");
}

TEST(FingerprintTest, ComparisonNamesEveryDifference) {
  std::vector<FingerprintField> fields = With({"window", uint64_t{9}});
  fields.erase(fields.begin());  // removes chunk_tokens
  fields.push_back({"weights", std::string("abc")});
  const auto differences = Compare(TinyFingerprint(), Fingerprint::Create(fields).value());
  ASSERT_EQ(differences.size(), 3u);
  EXPECT_EQ(differences[0].field, "chunk_tokens");
  EXPECT_EQ(differences[0].theirs, "(absent)");
  EXPECT_EQ(differences[1].field, "weights");
  EXPECT_EQ(differences[1].ours, "(absent)");
  EXPECT_EQ(differences[2].ours, "8");
  EXPECT_EQ(differences[2].theirs, "9");
}

TEST(FingerprintTest, NumbersPrintAsShortestDecimal) {
  EXPECT_EQ((FingerprintField{"a", 1e-6}).ValueText(), "1e-06");
  EXPECT_EQ((FingerprintField{"a", 0.1}).ValueText(), "0.1");
  EXPECT_EQ((FingerprintField{"a", 10000.0}).ValueText(), "1e+04");
  EXPECT_EQ((FingerprintField{"a", uint64_t{512}}).ValueText(), "512");
}

TEST(DigestTest, StreamDigestCoversBytesSoFar) {
  Sha256Stream stream;
  EXPECT_EQ(stream.SoFar(), Sha256(""));
  stream.Add("ab");
  EXPECT_EQ(stream.SoFar(), Sha256("ab"));
  stream.Add("");
  stream.Add("c");
  EXPECT_EQ(stream.SoFar(), Sha256("abc"));
}

TEST(DigestTest, HexRoundTripsAndBadHexRefused) {
  const Digest digest = Sha256("abc");
  EXPECT_EQ(DigestHex(digest), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(DigestFromHex(DigestHex(digest)).value(), digest);
  EXPECT_FALSE(DigestFromHex("ba78").ok());
  EXPECT_FALSE(DigestFromHex(std::string(64, 'z')).ok());
  EXPECT_FALSE(DigestFromBytes("short").ok());
}

}  // namespace
}  // namespace hearth
