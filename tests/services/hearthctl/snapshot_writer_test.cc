#include "services/hearthctl/snapshot_writer.h"

#include <gtest/gtest.h>

#include "tests/proto/tiny_snapshot.h"
#include "tests/services/hearthctl/run_cli.h"

namespace hearth {
namespace {

// In the tiny file each object has one layer, so slice i belongs to object i. Layer 1 is global,
// layer 0 is local.
absl::Status WriteTiny(SnapshotWriter* writer, size_t object, const std::string& data,
                       uint64_t offset = 0) {
  return writer->WriteSlice(object, object % 2 == 0 ? 1 : 0, offset, data);
}

TEST(SnapshotWriterTest, PiecesInAnyOrderGiveGoldenFile) {
  TestFolder folder;
  auto writer =
      SnapshotWriter::Create(folder.File("a.snapshot"), TinyFingerprint(), TinyManifest(), false);
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_TRUE(WriteTiny(writer->get(), 3, TinySlice(3, 32)).ok());
  EXPECT_TRUE(WriteTiny(writer->get(), 0, TinySlice(0, 128).substr(100), 100).ok());
  EXPECT_TRUE(WriteTiny(writer->get(), 0, TinySlice(0, 128).substr(0, 100)).ok());
  EXPECT_TRUE(WriteTiny(writer->get(), 1, TinySlice(1, 128)).ok());
  EXPECT_TRUE(WriteTiny(writer->get(), 2, TinySlice(2, 32)).ok());
  ASSERT_TRUE((*writer)->Commit().ok());
  EXPECT_EQ(folder.Read("a.snapshot"), TinyFile());
  EXPECT_EQ(folder.Files(), 1u);
}

TEST(SnapshotWriterTest, IncompleteFileNeverAppears) {
  TestFolder folder;
  {
    auto writer =
        SnapshotWriter::Create(folder.File("a.snapshot"), TinyFingerprint(), TinyManifest(), false);
    ASSERT_TRUE(writer.ok());
    EXPECT_TRUE(WriteTiny(writer->get(), 0, TinySlice(0, 128)).ok());
    EXPECT_EQ((*writer)->Commit().code(), absl::StatusCode::kDataLoss);
  }
  EXPECT_EQ(folder.Files(), 0u);
}

TEST(SnapshotWriterTest, SliceOutsideManifestRefused) {
  TestFolder folder;
  auto writer =
      SnapshotWriter::Create(folder.File("a.snapshot"), TinyFingerprint(), TinyManifest(), false);
  ASSERT_TRUE(writer.ok());
  const absl::StatusCode refused = absl::StatusCode::kDataLoss;
  EXPECT_EQ((*writer)->WriteSlice(4, 0, 0, "x").code(), refused);
  EXPECT_EQ((*writer)->WriteSlice(0, 0, 0, "x").code(), refused) << "layer 0 is local";
  EXPECT_EQ((*writer)->WriteSlice(0, 7, 0, "x").code(), refused);
  EXPECT_EQ((*writer)->WriteSlice(0, 1, 128, "x").code(), refused);
  EXPECT_EQ((*writer)->WriteSlice(0, 1, UINT64_MAX, "x").code(), refused);
}

}  // namespace
}  // namespace hearth
