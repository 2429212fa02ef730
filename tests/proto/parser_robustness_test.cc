// Parsers get bytes from disks, networks and untrusted callers. For any input they must return a
// value or an error, without reading outside the input.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "proto/byte_codec.h"
#include "proto/snapshot_format.h"
#include "tests/proto/tiny_snapshot.h"

namespace hearth {
namespace {

// Replaces the last 8 bytes by a valid digest, so that the parser reads past the digest check.
std::string Resealed(std::string bytes) {
  bytes.resize(bytes.size() - 8);
  AppendU64(&bytes, SliceDigest(bytes.data(), bytes.size()));
  return bytes;
}

TEST(ParserRobustnessTest, TruncatedManifestIsDataLoss) {
  const std::string whole = SerializeManifest(TinyManifest());
  for (size_t length = 0; length < whole.size(); ++length) {
    const std::string part = whole.substr(0, length);
    ASSERT_EQ(ParseManifest(part).status().code(), absl::StatusCode::kDataLoss) << length;
    if (length < 8) continue;
    ASSERT_EQ(ParseManifest(Resealed(part)).status().code(), absl::StatusCode::kDataLoss) << length;
  }
}

TEST(ParserRobustnessTest, FlippedManifestBitIsDataLoss) {
  const std::string whole = SerializeManifest(TinyManifest());
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string bad = whole;
    bad[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    ASSERT_EQ(ParseManifest(bad).status().code(), absl::StatusCode::kDataLoss) << bit;
  }
}

TEST(ParserRobustnessTest, AcceptedForgedManifestReserializesEqually) {
  const std::string whole = SerializeManifest(TinyManifest());
  int refused = 0;
  for (size_t bit = 0; bit < (whole.size() - 8) * 8; ++bit) {
    std::string forged = whole;
    forged[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    forged = Resealed(forged);
    auto parsed = ParseManifest(forged);
    if (parsed.ok()) {
      ASSERT_EQ(SerializeManifest(*parsed), forged) << bit;
    } else {
      ASSERT_EQ(parsed.status().code(), absl::StatusCode::kDataLoss) << bit;
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

TEST(ParserRobustnessTest, TruncatedFileIsDataLoss) {
  const std::string whole = TinyFile();
  const uint64_t payload = ParseSnapshotHeader(whole)->payload_offset;
  for (size_t length = 0; length < whole.size(); ++length) {
    const std::string part = whole.substr(0, length);
    ASSERT_EQ(VerifySnapshotFile(part).code(), absl::StatusCode::kDataLoss) << length;
    ASSERT_EQ(ParseSnapshotHeader(part).ok(), length >= payload) << length;
  }
  EXPECT_EQ(VerifySnapshotFile(whole + "x").code(), absl::StatusCode::kDataLoss);
}

TEST(ParserRobustnessTest, FlippedFileByteIsDataLoss) {
  const std::string whole = TinyFile();
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string bad = whole;
    bad[i] ^= 0x40;
    ASSERT_EQ(VerifySnapshotFile(bad).code(), absl::StatusCode::kDataLoss) << i;
  }
}

TEST(ParserRobustnessTest, ForgedHeaderKeepsSlicesInsideFile) {
  const std::string whole = TinyFile();
  const std::string fingerprint = TinyFingerprint().Serialize();
  const std::string manifest = SerializeManifest(TinyManifest());
  const size_t header_bytes = 40 + fingerprint.size() + manifest.size() + 8;
  for (size_t bit = 0; bit < header_bytes * 8; ++bit) {
    std::string forged = whole;
    forged[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    forged = Resealed(forged.substr(0, header_bytes)) + forged.substr(header_bytes);
    auto header = ParseSnapshotHeader(forged);
    if (header.ok()) {
      for (uint64_t offset : header->slice_offsets) ASSERT_LT(offset, header->file_bytes);
    } else {
      ASSERT_EQ(header.status().code(), absl::StatusCode::kDataLoss) << bit;
    }
    // VerifySnapshotFile reads every slice that the forged header announces. It must not read
    // outside the file.
    VerifySnapshotFile(forged).IgnoreError();
  }
}

TEST(ParserRobustnessTest, FingerprintHasOneEncoding) {
  const std::string whole = TinyFingerprint().Serialize();
  for (size_t length = 0; length < whole.size(); ++length) {
    ASSERT_FALSE(Fingerprint::Parse(whole.substr(0, length)).ok()) << length;
  }
  EXPECT_FALSE(Fingerprint::Parse(whole + '\0').ok());
  for (size_t bit = 0; bit < whole.size() * 8; ++bit) {
    std::string changed = whole;
    changed[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    auto parsed = Fingerprint::Parse(changed);
    if (!parsed.ok()) {
      ASSERT_EQ(parsed.status().code(), absl::StatusCode::kDataLoss) << bit;
      continue;
    }
    ASSERT_NE(parsed->digest(), TinyFingerprint().digest()) << bit;
    ASSERT_EQ(parsed->Serialize(), changed) << bit;
  }
}

TEST(ParserRobustnessTest, RandomBytesAreRefused) {
  std::mt19937_64 random(20260101);
  for (int round = 0; round < 2000; ++round) {
    std::string bytes(random() % 300, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    ASSERT_FALSE(ParseManifest(bytes).ok());
    ASSERT_FALSE(ParseSnapshotHeader(bytes).ok());
    ASSERT_FALSE(Fingerprint::Parse(bytes).ok());
    bytes.resize(std::max<size_t>(bytes.size(), 8));
    ASSERT_FALSE(ParseManifest(Resealed(bytes)).ok());
  }
}

}  // namespace
}  // namespace hearth
