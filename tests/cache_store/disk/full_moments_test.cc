// A disk that is full from a random moment on: what is there is served, what cannot be kept is
// refused with the reason, a start finds it as full as it was, and when there is room again the
// store takes publishes without being told. On an injected disk, and on real small file systems
// where the test may mount them. Seeded; HEARTH_FULL_MOMENTS=N tries N moments,
// and a sixth of that on each of those.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache_store/disk/verify.h"
#include "cache_store/store/store_seams.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/stepped_seams.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

uint64_t MomentsFrom(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// A file system of which a test says how much room is left.
class SmallDisk {
 public:
  virtual ~SmallDisk() = default;
  virtual std::string path() const = 0;
  virtual rocksdb::Env* env() { return nullptr; }
  virtual void SetRoom(uint64_t bytes) = 0;
  virtual void SetAmple() = 0;
  // Before the store goes: nothing it does from then on counts.
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

// A mounted disk. A file takes the room that must not be free.
class MountedDisk : public SmallDisk {
 public:
  explicit MountedDisk(const std::string& kind) {
    if (mkdir(mount_.c_str(), 0700) != 0) return;
    if (kind == "tmpfs") {
      is_mounted_ = mount("tmpfs", mount_.c_str(), "tmpfs", 0, "size=96m") == 0;
      if (!is_mounted_) why_ = std::strerror(errno);
      return;
    }
    const std::string image = folder_.File("image");
    const std::string make =
        absl::StrCat("truncate -s 96M ", image, " && mkfs.", kind, " -q ", image,
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

class Moment {
 public:
  Moment(SmallDisk* disk, uint64_t seed) : disk_(disk), random_(seed) {
    for (const uint32_t head_dim : {2u, 64u, 1024u}) {
      KitModel geometry;
      geometry.head_dim = head_dim;
      models_.push_back(geometry.Make());
    }
  }

  void Run() {
    Open();
    for (int i = 0; i < 4; ++i) ASSERT_TRUE(Publish().ok());
    disk_->SetRoom(random_() % (12 * kMiB) * (random_() % 4));
    int refused = 0;
    // Some 60 MiB in 120 of them, and a file system may take a part of that for nothing.
    for (int i = 0; i < 1000 && refused < 3; ++i) refused += Refuses() ? 1 : 0;
    ASSERT_EQ(refused, 3) << "it was never full";
    CheckServes("while full");
    if (random_() % 2 == 0) {
      // Full, as it left itself.
      if (random_() % 2 == 0) disk_->Kill();
      store_.reset();
      disk_->Restart();
      Open();
      ASSERT_NE(store_, nullptr);
      CheckServes("after a start while full");
      for (int i = 0; i < 3; ++i) Refuses();
      CheckServes("after a start while full, and more publishes");
    }
    disk_->SetAmple();
    absl::Status taken = Publish();
    if (!taken.ok()) taken = Publish();
    EXPECT_TRUE(taken.ok()) << "with room again: " << taken;
    CheckServes("with room again");
    static_cast<SteppedStore*>(store_.get())->CheckInvariants();
    store_.reset();
    Open();
    ASSERT_NE(store_, nullptr);
    CheckServes("after the last start");
    EXPECT_EQ(store_->Stats().counters.at("recovery_damage"), 0u);
    EXPECT_EQ(store_->Stats().counters.at("recovery_lost_restore_points"), 0u);
    store_.reset();
  }

 private:
  void Open() {
    StoreOptions options;
    options.data_dir = disk_->path();
    options.host_bytes = 0;
    options.disk_bytes = uint64_t{1} << 30;
    StoreSeams seams = SteppedSeams(&executor_);
    seams.disk_env = disk_->env();
    absl::StatusOr<std::unique_ptr<TieredStore>> opened = OpenStore(options, std::move(seams));
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }
  // Small ones go through the log, the large ones are tables.
  absl::Status Publish() {
    const size_t model = random_() % models_.size();
    const KitPrompt prompt{KitTokens(++seed_, 65), {}};
    const auto level = random_() % 4 == 0 ? Durability::kSync : Durability::kDisk;
    const absl::Status status =
        KitPublish(store_.get(), models_[model], prompt, {64}, level).status();
    if (status.ok()) promised_.emplace_back(model, seed_);
    if (random_() % 4 == 0) executor_->RunAll();
    return status;
  }
  bool Refuses() {
    const absl::Status status = Publish();
    if (status.ok()) return false;
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "No space left on device")) << status;
    return true;
  }
  void CheckServes(const char* when) {
    for (const auto& [model, seed] : promised_) {
      const KitPrompt prompt{KitTokens(seed, 65), {}};
      const absl::StatusOr<uint32_t> usable = KitFetch(store_.get(), models_[model], prompt);
      EXPECT_TRUE(usable.ok() && *usable == 64)
          << "acknowledged, " << when << ": " << usable.status();
    }
  }

  SmallDisk* const disk_;
  std::mt19937_64 random_;
  std::vector<Fingerprint> models_;
  uint64_t seed_ = 0;
  std::vector<std::pair<size_t, uint64_t>> promised_;  // model, seed
  ManualExecutor* executor_ = nullptr;
  std::unique_ptr<TieredStore> store_;
};

TEST(FullMoments, OnAnInjectedDisk) {
  const uint64_t first = MomentsFrom("HEARTH_FULL_FIRST", 1);
  const uint64_t end = first + MomentsFrom("HEARTH_FULL_MOMENTS", 76);
  for (uint64_t seed = first; seed < end && !HasFailure(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "HEARTH_FULL_FIRST=" << seed);
    InjectedDisk disk;
    Moment(&disk, seed).Run();
  }
}

class FullMounts : public ::testing::TestWithParam<const char*> {};

TEST_P(FullMounts, OnARealFileSystem) {
  const uint64_t first = MomentsFrom("HEARTH_FULL_FIRST", 1);
  const uint64_t end = first + MomentsFrom("HEARTH_FULL_MOMENTS", 76) / 6;
  for (uint64_t seed = first; seed < end && !HasFailure(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "HEARTH_FULL_FIRST=" << seed);
    MountedDisk disk(GetParam());
    if (!disk.why_not().empty()) GTEST_SKIP() << GetParam() << ": " << disk.why_not();
    Moment(&disk, seed).Run();
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, FullMounts, ::testing::Values("tmpfs", "ext4"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace hearth
