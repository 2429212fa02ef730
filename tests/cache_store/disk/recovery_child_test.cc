// The child process that repairs a database may crash; the parent's signal handlers must not run in
// it.
#include <gtest/gtest.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <csignal>
#include <cstdlib>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "cache_store/disk/disk_tier_recovery.h"
#include "tests/support/run_in_child.h"
#include "tests/support/test_folder.h"

namespace hearth {
namespace {

// A file system that crashes the process when the first folder is created.
class CrashingFiles : public rocksdb::FileSystemWrapper {
 public:
  explicit CrashingFiles(std::function<void()> crash)
      : rocksdb::FileSystemWrapper(rocksdb::FileSystem::Default()), crash_(std::move(crash)) {}
  const char* Name() const override { return "CrashingFiles"; }
  rocksdb::IOStatus CreateDirIfMissing(const std::string&, const rocksdb::IOOptions&,
                                       rocksdb::IODebugContext*) override {
    crash_();
    return rocksdb::IOStatus::OK();
  }

 private:
  const std::function<void()> crash_;
};

// A file system that fails to list a folder, and crashes the process at the next access.
class FailingFiles : public rocksdb::FileSystemWrapper {
 public:
  FailingFiles() : rocksdb::FileSystemWrapper(rocksdb::FileSystem::Default()) {}
  const char* Name() const override { return "FailingFiles"; }
  rocksdb::IOStatus GetChildren(const std::string&, const rocksdb::IOOptions&,
                                std::vector<std::string>*, rocksdb::IODebugContext*) override {
    has_failed_ = true;
    return rocksdb::IOStatus::IOError("not now");
  }
  rocksdb::IOStatus FileExists(const std::string& path, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* dbg) override {
    if (has_failed_) std::abort();
    return target()->FileExists(path, options, dbg);
  }
  rocksdb::IOStatus UnlockFile(rocksdb::FileLock*, const rocksdb::IOOptions&,
                               rocksdb::IODebugContext*) override {
    std::abort();
  }

 private:
  bool has_failed_ = false;
};

// A signal handler of the parent. If the child ran it, the child would exit with 0, and the parent
// would believe that the repair succeeded.
[[noreturn]] void EndWell() { std::_Exit(0); }
[[noreturn]] void EndWellBySignal(int) { EndWell(); }

TEST(RecoveryChild, ChildCrashRunsNoParentSignalHandlers) {
  const std::function<void()> crashes[] = {[] { raise(SIGBUS); }, [] { raise(SIGSEGV); },
                                           [] { std::abort(); },
                                           [] { throw std::runtime_error("broken"); }};
  const TestFolder folder;
  for (const auto& crash : crashes) {
    const int end = RunInChild([&] {
      for (const int signal : {SIGBUS, SIGSEGV, SIGABRT}) std::signal(signal, &EndWellBySignal);
      std::set_terminate(&EndWell);
      rocksdb::DBOptions options;
      const auto files =
          std::make_shared<RecoveryFileSystem>(std::make_shared<CrashingFiles>(crash));
      files->Begin();
      const auto env = rocksdb::NewCompositeEnv(files);
      options.env = env.get();
      const absl::Status recovered = RecoverInChild(options, folder.File("db"), {}, *files);
      std::_Exit(absl::IsDataLoss(recovered) ? 3 : 4);
    });
    EXPECT_TRUE(WIFEXITED(end));
    EXPECT_EQ(WEXITSTATUS(end), 3);
  }
}

// RocksDB crashes after a read error. The child's crash must not count as damage of the database.
TEST(RecoveryChild, CrashAfterReadErrorReturnsAborted) {
  const TestFolder folder;
  const int end = RunInChild([&] {
    rocksdb::DBOptions options;
    const auto files = std::make_shared<RecoveryFileSystem>(std::make_shared<FailingFiles>());
    files->Begin();
    const auto env = rocksdb::NewCompositeEnv(files);
    options.env = env.get();
    const absl::Status recovered = RecoverInChild(options, folder.File("db"), {}, *files);
    std::_Exit(absl::IsAborted(recovered) ? 3 : 4);
  });
  EXPECT_TRUE(WIFEXITED(end));
  EXPECT_EQ(WEXITSTATUS(end), 3);
}

}  // namespace
}  // namespace hearth
