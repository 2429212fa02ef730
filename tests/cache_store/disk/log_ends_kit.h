// LogEnds: a store whose process dies, whose machine stops, and whose log is cut, for tests of the
// start after that.
#ifndef HEARTH_TESTS_CACHE_STORE_DISK_LOG_ENDS_KIT_H_
#define HEARTH_TESTS_CACHE_STORE_DISK_LOG_ENDS_KIT_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cache_store/disk/promises/promises.h"
#include "cache_store/store/store_seams.h"
#include "tests/support/fake_clock.h"
#include "tests/support/stepped_seams.h"
#include "tests/support/store_kit.h"
#include "tests/support/test_folder.h"

namespace hearth {

class LogEnds : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<TieredStore>> TryToOpen(rocksdb::Env* env = nullptr) {
    StoreOptions options;
    options.data_dir = folder_.File("data");
    options.host_bytes = 0;
    options.disk_bytes = uint64_t{1} << 30;
    options.on_warning = [this](const std::string& line) { lines_.push_back(line); };
    StoreSeams seams = SteppedSeams(&executor_, &clock_);
    seams.boot = boot_;
    seams.disk_env = env;
    return OpenStore(options, std::move(seams));
  }
  void Open() {
    store_.reset();
    absl::StatusOr<std::unique_ptr<TieredStore>> opened = TryToOpen();
    ASSERT_TRUE(opened.ok()) << opened.status();
    store_ = *std::move(opened);
  }
  void OpenAfterTheMachineStopped() {
    ++boot_[1];
    Open();
  }
  // A process that dies leaves the folder as it is at that moment.
  void Die() {
    const std::string left = folder_.File("left"), data = folder_.File("data");
    std::filesystem::copy(data, left, std::filesystem::copy_options::recursive);
    store_.reset();
    std::filesystem::remove_all(data);
    std::filesystem::rename(left, data);
  }
  static KitPrompt Prompt(uint64_t seed) { return {KitTokens(seed, 65), {}}; }
  void Publish(uint64_t first, uint64_t last, Durability level = Durability::kDisk) {
    for (uint64_t seed = first; seed <= last; ++seed) {
      const auto published = KitPublish(store_.get(), model_, Prompt(seed), {64}, level);
      ASSERT_TRUE(published.ok()) << published.status();
    }
  }
  std::set<uint64_t> There(uint64_t first, uint64_t last) {
    std::set<uint64_t> there;
    store_->Observe(model_, "default");
    for (uint64_t seed = first; seed <= last; ++seed) {
      if (KitFetch(store_.get(), model_, Prompt(seed)).value() == 64) there.insert(seed);
    }
    return there;
  }
  uint64_t Counted(const char* name) { return store_->Stats().counters.at(name); }
  std::filesystem::path Log(bool is_newest) {
    std::vector<std::filesystem::path> logs;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.File("data/db"))) {
      if (entry.path().extension() == ".log" && entry.file_size() > 0) logs.push_back(entry.path());
    }
    std::sort(logs.begin(), logs.end());
    return is_newest ? logs.back() : logs.front();
  }
  // Removes everything that came to the disk since the logs had these sizes.
  using LogSizes = std::map<std::filesystem::path, uintmax_t>;
  LogSizes SizesOfLogs() const {
    LogSizes sizes;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.File("data/db"))) {
      if (entry.path().extension() == ".log") sizes[entry.path()] = entry.file_size();
    }
    return sizes;
  }
  void CutLogsTo(const LogSizes& sizes) const {
    for (const auto& [log, bytes] : SizesOfLogs()) {
      const auto then = sizes.find(log);
      std::filesystem::resize_file(log, then == sizes.end() ? 0 : then->second);
    }
  }
  // A page in its middle never came to the disk.
  static void LoseAPage(const std::filesystem::path& log) {
    constexpr size_t kPage = 4096;
    std::fstream file(log, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(log) / 2 / kPage * kPage));
    const std::string zeros(kPage, '\0');
    file.write(zeros.data(), static_cast<std::streamsize>(zeros.size()));
  }

  const TestFolder folder_;
  BootId boot_ = {1};
  FakeClock clock_;
  Fingerprint model_ = KitModel().Make();
  std::vector<std::string> lines_;
  ManualExecutor* executor_ = nullptr;
  std::unique_ptr<TieredStore> store_;
};

}  // namespace hearth

#endif  // HEARTH_TESTS_CACHE_STORE_DISK_LOG_ENDS_KIT_H_
