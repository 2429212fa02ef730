#include "proto/snapshot_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/proto/tiny_snapshot.h"

namespace hearth {
namespace {

using ::testing::HasSubstr;

KvLayout TinyLayout() { return TinyFingerprint().Layout().value(); }

std::string ValidateError(void (*change)(Manifest*)) {
  Manifest manifest = TinyManifest();
  change(&manifest);
  return std::string(ValidateManifest(manifest, TinyLayout()).message());
}

TEST(ManifestTest, ManifestRoundTrips) {
  const Manifest manifest = TinyManifest();
  auto parsed = ParseManifest(SerializeManifest(manifest));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(ValidateManifest(*parsed, TinyLayout()).ok());
  EXPECT_EQ(parsed->fingerprint, manifest.fingerprint);
  EXPECT_EQ(parsed->token_ids, manifest.token_ids);
  EXPECT_EQ(parsed->cuts, manifest.cuts);
  EXPECT_EQ(parsed->attention_mask, "causal");
  ASSERT_EQ(parsed->objects.size(), 4u);
  EXPECT_EQ(parsed->objects[3].id, (ObjectId{16, 4, LayerGroup::kLocal}));
  EXPECT_EQ(parsed->objects[3].slice_digests, manifest.objects[3].slice_digests);
}

TEST(ManifestTest, InvalidManifestErrorNamesReason) {
  EXPECT_EQ(ValidateError([](Manifest*) {}), "");
  EXPECT_THAT(ValidateError([](Manifest* m) { m->token_count = 0; }), HasSubstr("token_count"));
  EXPECT_THAT(ValidateError([](Manifest* m) { m->token_ids.pop_back(); }), HasSubstr("19 token"));
  EXPECT_THAT(ValidateError([](Manifest* m) { m->next_position = 7; }), HasSubstr("next_position"));
  EXPECT_THAT(ValidateError([](Manifest* m) { m->attention_mask = "full"; }), HasSubstr("full"));
  EXPECT_THAT(ValidateError([](Manifest* m) { m->cuts = {5, 21}; }), HasSubstr("cuts[1]"));
  EXPECT_THAT(ValidateError([](Manifest* m) { m->objects.pop_back(); }),
              HasSubstr("local object [16, 20) is missing"));
  EXPECT_THAT(ValidateError([](Manifest* m) { std::swap(m->objects[0], m->objects[1]); }),
              HasSubstr("objects[0] is the local object"));
  EXPECT_THAT(ValidateError([](Manifest* m) { m->objects[0].slice_digests.clear(); }),
              HasSubstr("0 slice digests for 1 layers"));
  EXPECT_THAT(ValidateError([](Manifest* m) { m->objects.push_back(m->objects[3]); }),
              HasSubstr("is not needed"));
}

// An object takes more memory after parsing than in the file, so the parser limits the number of
// objects.
TEST(ManifestTest, TooManyObjectsAreRefused) {
  Manifest manifest = TinyManifest();
  manifest.objects.assign(1000, ManifestObject());
  EXPECT_THAT(std::string(ParseManifest(SerializeManifest(manifest)).status().message()),
              ::testing::HasSubstr("names 1000 objects"));
}

TEST(SnapshotFileTest, HeaderHasSliceOffsets) {
  const std::string file = TinyFile();
  auto header = ParseSnapshotHeader(file);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->fingerprint.digest(), TinyFingerprint().digest());
  EXPECT_EQ(header->file_bytes, file.size());
  ASSERT_EQ(header->slice_offsets.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(header->slice_offsets[i] % 64, 0u);
    const size_t bytes = header->layout.SliceBytes(header->manifest.objects[i].id.tokens);
    EXPECT_EQ(file.substr(header->slice_offsets[i], bytes), TinySlice(i, bytes));
  }
  EXPECT_TRUE(VerifySnapshotFile(file).ok()) << VerifySnapshotFile(file);
}

TEST(SnapshotFileTest, PagesMustBeWholeBlocks) {
  const absl::StatusOr<SnapshotHeader> header = ParseSnapshotHeader(PageFile());
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->manifest.objects.size(), 5u) << "the window's tail is two of three blocks";
  EXPECT_EQ(header->slice_offsets[1] - header->slice_offsets[0], 128u) << "72, to the next 64";
  EXPECT_TRUE(VerifySnapshotFile(PageFile()).ok());

  const KvLayout layout = PageFingerprint().Layout().value();
  const Manifest divided = ManifestOf(PageFingerprint(), 40);
  EXPECT_EQ(ValidateManifest(divided, layout).message(),
            "token_count is 40, must be a multiple of chunk_tokens, 16: pages cannot be divided");
  EXPECT_FALSE(BuildSnapshotHeader(PageFingerprint(), divided).ok());
}

TEST(SnapshotFileTest, HeaderParsesWithoutSlices) {
  const std::string file = TinyFile();
  const uint64_t payload = ParseSnapshotHeader(file)->payload_offset;
  EXPECT_TRUE(ParseSnapshotHeader(file.substr(0, payload)).ok());
  EXPECT_FALSE(ParseSnapshotHeader(file.substr(0, payload - 1)).ok());
}

TEST(SnapshotFileTest, CorruptSliceIsNamed) {
  std::string file = TinyFile();
  file[file.size() - 1] ^= 1;
  const absl::Status status = VerifySnapshotFile(file);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("local object [16, 20), layer 0, offset"));
}

TEST(SnapshotFileTest, ManifestOfOtherModelRefused) {
  std::vector<FingerprintField> fields = TinyFields();
  fields.push_back({"weights_digest", std::string("other")});
  auto header = BuildSnapshotHeader(Fingerprint::Create(fields).value(), TinyManifest());
  EXPECT_EQ(header.status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace hearth
