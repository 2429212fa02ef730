// The second copy of RocksDB's manifest: how much of it counts, and when it goes.
#include <gtest/gtest.h>
#include <rocksdb/file_system.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "cache_store/disk/files/disk_tier_manifest.h"
#include "cache_store/disk/files/disk_tier_records.h"
#include "cache_store/disk/repair/repair.h"
#include "cache_store/store/tiered_store.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

TEST(ManifestCopy, WholeBytesEndAtTheFirstRecordThatIsNot) {
  const TestFolder folder;
  {
    StoreOptions options;
    options.data_dir = folder.path();
    TieredStore::Open(options).value();
  }
  std::string name;
  for (const auto& entry : fs::directory_iterator(folder.path() + "/db")) {
    if (IsManifest(entry.path().string())) name = "db/" + entry.path().filename().string();
  }
  const std::string bytes = folder.Read(name);
  ASSERT_EQ(WholeBytes(bytes), bytes.size());
  EXPECT_EQ(folder.Read(name + kCopySuffix), bytes);
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    ASSERT_LE(WholeBytes(bytes.substr(0, cut)), cut);
    std::string flipped = bytes;
    flipped[cut] = static_cast<char>(flipped[cut] ^ 0x10);
    ASSERT_LE(WholeBytes(flipped), cut);
  }
}

// A file whose syncs fail, once they do.
class UnsyncedFile : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  UnsyncedFile(std::unique_ptr<rocksdb::FSWritableFile> file, const bool* fails)
      : FSWritableFileOwnerWrapper(std::move(file)), fails_(fails) {}
  rocksdb::IOStatus Sync(const rocksdb::IOOptions&, rocksdb::IODebugContext*) override {
    return *fails_ ? rocksdb::IOStatus::IOError("sync failed") : rocksdb::IOStatus::OK();
  }
  rocksdb::IOStatus Fsync(const rocksdb::IOOptions&, rocksdb::IODebugContext*) override {
    return *fails_ ? rocksdb::IOStatus::IOError("sync failed") : rocksdb::IOStatus::OK();
  }

 private:
  const bool* const fails_;
};

// RocksDB takes such a record for not written. After a crash of the machine the copy may have it
// where the file does not, and it would be taken for a record that the file lost. The records
// synced before are the database until RocksDB has its next manifest, and one bit of them may flip.
TEST(ManifestCopy, EndsWithWhatWasSynced) {
  const TestFolder folder;
  const std::string path = folder.path() + "/MANIFEST-000001", copy_path = path + kCopySuffix;
  const auto files = rocksdb::FileSystem::Default();
  const rocksdb::IOOptions plain;
  for (const bool data_only : {false, true}) {
    for (const bool was_synced : {false, true}) {
      CopiedFile::File file, copy;
      ASSERT_TRUE(files->NewWritableFile(path, {}, &file, nullptr).ok());
      ASSERT_TRUE(files->NewWritableFile(copy_path, {}, &copy, nullptr).ok());
      bool fails = false;
      CopiedFile both(std::make_unique<UnsyncedFile>(std::move(file), &fails), std::move(copy),
                      files.get(), copy_path);
      const auto sync = [&] {
        return data_only ? both.Sync(plain, nullptr) : both.Fsync(plain, nullptr);
      };
      if (was_synced) {
        ASSERT_TRUE(both.Append("synced ", plain, nullptr).ok());
        ASSERT_TRUE(sync().ok());
      }
      ASSERT_TRUE(both.Append("a record", plain, nullptr).ok());
      EXPECT_TRUE(fs::exists(copy_path));
      fails = true;
      EXPECT_FALSE(sync().ok());
      EXPECT_EQ(fs::exists(copy_path), was_synced);
      if (was_synced) {
        EXPECT_EQ(folder.Read("MANIFEST-000001.copy"), "synced ");
      }
      // RocksDB never does; a copy without it would be worse than none.
      ASSERT_TRUE(both.Append("another", plain, nullptr).ok());
      EXPECT_FALSE(fs::exists(copy_path));
      EXPECT_TRUE(both.Close(plain, nullptr).ok());
      EXPECT_EQ(folder.Read("MANIFEST-000001"),
                was_synced ? "synced a recordanother" : "a recordanother");
    }
  }
}

// A write that failed leaves a part of a record, and a copy that ends before it. RocksDB reads that
// as the end: nothing is damaged, whatever a crash took after it.
TEST(ManifestCopy, APartOfARecordBehindItIsNoDamage) {
  const TestFolder folder;
  StoreOptions options;
  options.data_dir = folder.path();
  TieredStore::Open(options).value();
  fs::path manifest;
  for (const auto& entry : fs::directory_iterator(folder.path() + "/db")) {
    if (IsManifest(entry.path().string())) manifest = entry.path();
  }
  std::string record;
  AppendLogRecord("a record of which half is written", &record);
  std::ofstream(manifest, std::ios::binary | std::ios::app) << record.substr(0, record.size() / 2);
  EXPECT_TRUE(RepairDataDir(folder.path(), RepairOptions()).value().was_healthy);
  EXPECT_TRUE(TieredStore::Open(options).ok());

  // The copy's additional records were written, and are lost.
  for (const auto& entry : fs::directory_iterator(folder.path() + "/db")) {
    if (IsManifest(entry.path().string())) manifest = entry.path();
  }
  fs::resize_file(manifest, fs::file_size(manifest) - 3);
  EXPECT_FALSE(RepairDataDir(folder.path(), RepairOptions()).value().was_healthy);
}

}  // namespace
}  // namespace hearth
