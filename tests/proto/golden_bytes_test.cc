// Tests that the formats still have their published bytes. If a test here fails, a format or a key
// has changed: data stored by earlier releases could not be read or found. Give the changed format
// a new version instead.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "proto/prefix_key.h"
#include "proto/snapshot_format.h"
#include "tests/proto/tiny_snapshot.h"

namespace hearth {
namespace {

using Json = nlohmann::json;

std::string ReadGolden(const std::string& name) {
  std::ifstream file(std::string(HEARTH_GOLDEN_DIR "/") + name, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << name;
  std::ostringstream content;
  content << file.rdbuf();
  return content.str();
}

Json Vectors() { return Json::parse(ReadGolden("vectors.json")); }

Digest Hex(const Json& value) { return DigestFromHex(value.get<std::string>()).value(); }

FingerprintField FieldOf(const Json& json) {
  FingerprintField field;
  field.name = json.at(0);
  const std::string type = json.at(1);
  if (type == "integer") {
    field.value = json.at(2).get<uint64_t>();
  } else if (type == "number") {
    field.value = json.at(2).get<double>();
  } else {
    field.value = json.at(2).get<std::string>();
  }
  return field;
}

TEST(GoldenBytesTest, FingerprintsMatchPublishedVectors) {
  const Json vectors = Vectors();
  ASSERT_GE(vectors.at("fingerprints").size(), 3u);
  EXPECT_EQ(vectors.at("fingerprints").at(2).at("digest"), DigestHex(PageFingerprint().digest()));
  for (const Json& vector : vectors.at("fingerprints")) {
    std::vector<FingerprintField> fields;
    for (const Json& field : vector.at("fields")) fields.push_back(FieldOf(field));
    auto fingerprint = Fingerprint::Create(fields);
    ASSERT_TRUE(fingerprint.ok()) << fingerprint.status();
    EXPECT_EQ(absl::BytesToHexString(fingerprint->Serialize()), vector.at("canonical_hex"));
    EXPECT_EQ(DigestHex(fingerprint->digest()), vector.at("digest"));
  }
}

TEST(GoldenBytesTest, KeysMatchPublishedVectors) {
  const Json vectors = Vectors();
  ASSERT_GE(vectors.at("roots").size(), 2u);
  for (const Json& vector : vectors.at("roots")) {
    const std::string secret = absl::HexStringToBytes(vector.at("secret_hex").get<std::string>());
    EXPECT_EQ(DigestHex(RootKey(Hex(vector.at("fingerprint")),
                                vector.at("tenant").get<std::string>(), secret)),
              vector.at("key"));
  }
  ASSERT_GE(vectors.at("segments").size(), 3u);
  for (const Json& vector : vectors.at("segments")) {
    EXPECT_EQ(DigestHex(SegmentKey(Hex(vector.at("parent")),
                                   vector.at("token_ids").get<std::vector<uint32_t>>(),
                                   vector.at("cut_offsets").get<std::vector<uint32_t>>())),
              vector.at("key"));
  }
}

TEST(GoldenBytesTest, SliceDigestsArePlainXxh3) {
  const Json vectors = Vectors();
  ASSERT_GE(vectors.at("slice_digests").size(), 3u);
  for (const Json& vector : vectors.at("slice_digests")) {
    const std::string bytes = absl::HexStringToBytes(vector.at("bytes_hex").get<std::string>());
    EXPECT_EQ(absl::StrCat(absl::Hex(SliceDigest(bytes.data(), bytes.size()), absl::kZeroPad16)),
              vector.at("xxh3_64"));
  }
}

TEST(GoldenBytesTest, ManifestMatchesPublishedBytes) {
  EXPECT_EQ(absl::BytesToHexString(SerializeManifest(TinyManifest())),
            Vectors().at("manifest_hex"));
  EXPECT_EQ(absl::BytesToHexString(SerializeManifest(PageManifest())),
            Vectors().at("pages_manifest_hex"));
}

TEST(GoldenBytesTest, SnapshotMatchesPublishedFile) {
  const std::string golden = ReadGolden("tiny.snapshot");
  EXPECT_EQ(absl::BytesToHexString(TinyFile()), absl::BytesToHexString(golden));
  EXPECT_TRUE(VerifySnapshotFile(golden).ok());
  const std::string pages = ReadGolden("pages.snapshot");
  EXPECT_EQ(absl::BytesToHexString(PageFile()), absl::BytesToHexString(pages));
  EXPECT_TRUE(VerifySnapshotFile(pages).ok());
}

TEST(GoldenBytesTest, StoredEnumValuesAreFixed) {
  EXPECT_EQ(static_cast<int>(LayerGroup::kGlobal), 0);
  EXPECT_EQ(static_cast<int>(LayerGroup::kLocal), 1);
  EXPECT_EQ(static_cast<int>(KvDtype::kFloat32), 0);
  EXPECT_EQ(static_cast<int>(KvDtype::kBFloat16), 1);
  EXPECT_EQ(static_cast<int>(KvDtype::kFloat16), 2);
  EXPECT_EQ(static_cast<int>(Tier::kDisk), 4);
  EXPECT_EQ(static_cast<int>(Durability::kSync), 3);
}

}  // namespace
}  // namespace hearth
