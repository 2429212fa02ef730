// Files written past the page cache: every byte and no more, or an error.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <utility>

#include "cache_store/disk/files/disk_tier_direct.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

using rocksdb::IOOptions;
using rocksdb::IOStatus;

class DirectFiles : public ::testing::Test {
 protected:
  std::unique_ptr<DirectFile> Open() {
    rocksdb::FileOptions direct;
    direct.use_direct_writes = true;
    std::unique_ptr<rocksdb::FSWritableFile> file;
    const IOStatus status =
        disk_.env()->GetFileSystem()->NewWritableFile(path_, direct, &file, nullptr);
    EXPECT_TRUE(status.ok()) << status.ToString();
    return std::make_unique<DirectFile>(std::move(file));
  }
  static std::string Noise(size_t bytes, uint64_t seed) {
    std::mt19937_64 random(seed);
    std::string noise(bytes, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    return noise;
  }
  // In pieces of any length.
  static IOStatus Append(DirectFile* file, const std::string& bytes, std::mt19937_64* random) {
    for (size_t at = 0; at < bytes.size();) {
      const size_t most = (*random)() % 3 == 0 ? 3 * kDirectBufferBytes : 70000;
      const size_t piece = std::min<size_t>(1 + (*random)() % most, bytes.size() - at);
      const IOStatus status =
          file->Append(rocksdb::Slice(bytes.data() + at, piece), IOOptions(), nullptr);
      if (!status.ok()) return status;
      at += piece;
    }
    return IOStatus::OK();
  }
  std::string Written() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  const TestFolder folder_;
  const std::string path_ = folder_.path() + ".file";
  ~DirectFiles() override { std::filesystem::remove(path_); }
  FaultyDisk disk_;
};

TEST_F(DirectFiles, HoldWhatWasAppendedWhateverItsLength) {
  std::mt19937_64 random(7);
  const size_t full = kDirectBufferBytes;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4095}, size_t{4096}, size_t{4097},
                             full - 1, full, full + 1, 2 * full, 5 * full + 12345}) {
    const std::string expected = Noise(bytes, bytes);
    const auto file = Open();
    ASSERT_TRUE(Append(file.get(), expected, &random).ok());
    EXPECT_EQ(file->GetFileSize(IOOptions(), nullptr), bytes);
    ASSERT_TRUE(file->Close(IOOptions(), nullptr).ok());
    EXPECT_TRUE(Written() == expected) << bytes;
  }
}

TEST_F(DirectFiles, SayThatAWriteFailedWhenTheyAreClosedAtTheLatest) {
  std::mt19937_64 random(8);
  const std::string bytes = Noise(5 * kDirectBufferBytes + 1, 1);
  for (const DiskFault fault : {DiskFault::kFailedWrite, DiskFault::kShortWrite}) {
    for (int nth = 1; nth <= 6; ++nth) {
      const auto file = Open();
      disk_.Arm(fault, nth);
      const IOStatus appended = Append(file.get(), bytes, &random);
      const IOStatus closed = file->Close(IOOptions(), nullptr);
      EXPECT_FALSE(closed.ok()) << nth;
      EXPECT_TRUE(appended.ok() || appended.ToString() == closed.ToString());
    }
  }
}

TEST_F(DirectFiles, LeftWithoutACloseLetGoOfEverything) {
  const auto file = Open();
  const std::string bytes = Noise(3 * kDirectBufferBytes + 1, 1);
  ASSERT_TRUE(file->Append(rocksdb::Slice(bytes), IOOptions(), nullptr).ok());
}

}  // namespace
}  // namespace hearth
