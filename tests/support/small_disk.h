// SmallDisk: a file system whose free space a test sets. It is simulated by FaultyDisk, or a
// mounted one if the test may mount.
#ifndef HEARTH_TESTS_SUPPORT_SMALL_DISK_H_
#define HEARTH_TESTS_SUPPORT_SMALL_DISK_H_

#include <fcntl.h>
#include <gtest/gtest.h>
#include <rocksdb/env.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/test_folder.h"

namespace hearth {

class SmallDisk {
 public:
  virtual ~SmallDisk() = default;
  virtual std::string path() const = 0;
  virtual rocksdb::Env* env() { return nullptr; }
  virtual void SetRoom(uint64_t bytes) = 0;
  virtual void SetAmple() = 0;
  // Call this before closing the store: later disk operations fail, as if the process had been
  // killed.
  virtual void Kill() {}
  virtual void Restart() {}
};

class InjectedDisk : public SmallDisk {
 public:
  std::string path() const override { return folder_.path(); }
  rocksdb::Env* env() override { return disk_.env(); }
  void SetRoom(uint64_t bytes) override { disk_.SetRoom(room_ = bytes); }
  void SetAmple() override { SetRoom(FaultyDisk::kAmple); }
  void Kill() override { disk_.Die(); }
  void Restart() override {
    std::mt19937_64 random(1);
    disk_.Restart(false, &random);
    disk_.SetRoom(room_);
  }

 private:
  const TestFolder folder_;
  FaultyDisk disk_;
  uint64_t room_ = FaultyDisk::kAmple;
};

// A mounted disk. To reduce the free space, a file occupies the rest.
class MountedDisk : public SmallDisk {
 public:
  explicit MountedDisk(const std::string& kind, int size_mb = 96) {
    if (mkdir(mount_.c_str(), 0700) != 0) return;
    if (kind == "tmpfs") {
      is_mounted_ = mount("tmpfs", mount_.c_str(), "tmpfs", 0,
                          absl::StrCat("size=", size_mb, "m").c_str()) == 0;
      if (!is_mounted_) why_ = std::strerror(errno);
      return;
    }
    const std::string image = folder_.File("image");
    const std::string make =
        absl::StrCat("truncate -s ", size_mb, "M ", image, " && mkfs.", kind, " -q ", image,
                     " && mount -o loop ", image, " ", mount_, " >/dev/null 2>&1");
    is_mounted_ = std::system(make.c_str()) == 0;
    if (!is_mounted_) why_ = absl::StrCat("no ", kind, " can be mounted from a file");
  }
  ~MountedDisk() override {
    if (is_mounted_) umount2(mount_.c_str(), MNT_DETACH);
  }
  const std::string& why_not() const { return why_; }
  std::string path() const override { return mount_ + "/data"; }
  void SetRoom(uint64_t bytes) override {
    SetAmple();
    struct statvfs room {};
    statvfs(mount_.c_str(), &room);
    const uint64_t left = room.f_bavail * room.f_bsize;
    if (left <= bytes) return;
    const int file = open(filler_.c_str(), O_CREAT | O_WRONLY, 0600);
    EXPECT_EQ(posix_fallocate(file, 0, static_cast<off_t>(left - bytes)), 0);
    close(file);
  }
  void SetAmple() override { unlink(filler_.c_str()); }

 private:
  const TestFolder folder_;
  const std::string mount_ = folder_.File("mount"), filler_ = mount_ + "/filler";
  bool is_mounted_ = false;
  std::string why_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_SUPPORT_SMALL_DISK_H_
