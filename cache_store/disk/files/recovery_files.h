// RecoveryFileSystem: the file system of a database that is being repaired. Private to disk/.
//
// During a repair, RocksDB skips unreadable logs and tables: on a disk that misreads for a short
// time, they would be lost permanently. So between Begin() and End(), each read of a table is done
// twice, the second time without the page cache (disk_tier_files.h does this for logs, the manifest
// and CURRENT). After the first read that fails or differs, no file can be opened for writing,
// renamed or deleted. The opening then fails and leaves the database unchanged, because RocksDB's
// last step is to rename its new manifest.
//
// Thread safe. Invariant: if failure() is empty when the opening ends, two reads agreed on all
// bytes that RocksDB read.
#ifndef HEARTH_CACHE_STORE_DISK_FILES_RECOVERY_FILES_H_
#define HEARTH_CACHE_STORE_DISK_FILES_RECOVERY_FILES_H_

#include <rocksdb/file_system.h>
#include <unistd.h>

#include <atomic>
#include <cassert>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace hearth {

// State that the file system and its open files share. Thread safe.
class RecoveryReads {
 public:
  void Begin() {
    assert(!is_active());
    absl::MutexLock lock(&mu_);
    failure_.clear();
    active_.store(true);
  }
  void End() { active_.store(false); }
  // Makes the first failed read exit this process, because RocksDB may crash or hang after it.
  void ExitAtFailure(int code) { exit_code_.store(code); }
  bool is_active() const { return active_.load(); }
  // Returns `status`, and records it if it is an error. An absent file is not recorded, because a
  // damaged database may have lost files.
  rocksdb::IOStatus Checked(absl::string_view path, rocksdb::IOStatus status) {
    if (is_active() && !status.ok() && !status.IsNotFound() && !status.IsPathNotFound()) {
      Note(absl::StrCat(path, ": ", status.ToString()));
    }
    return status;
  }
  void Note(std::string failure) {
    if (const int code = exit_code_.load(); code != 0) ::_exit(code);
    absl::MutexLock lock(&mu_);
    if (failure_.empty()) failure_ = std::move(failure);
  }
  std::string failure() const {
    absl::MutexLock lock(&mu_);
    return failure_;
  }
  // Calls change(), which changes the disk; returns an error instead if a read failed since
  // Begin().
  template <typename Change>
  rocksdb::IOStatus Allow(const Change& change) const {
    const std::string failed = is_active() ? failure() : "";
    return failed.empty() ? change()
                          : rocksdb::IOStatus::IOError(
                                "the file was not changed, because a read failed", failed);
  }

 private:
  std::atomic<bool> active_{false};
  std::atomic<int> exit_code_{0};  // exit code for the first failed read; 0: do not exit
  mutable absl::Mutex mu_;
  std::string failure_ ABSL_GUARDED_BY(mu_);
};

class TwiceReadTable : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  TwiceReadTable(std::string path, std::unique_ptr<rocksdb::FSRandomAccessFile> file,
                 std::shared_ptr<RecoveryReads> reads)
      : FSRandomAccessFileOwnerWrapper(std::move(file)),
        path_(std::move(path)),
        reads_(std::move(reads)) {}

  rocksdb::IOStatus Read(uint64_t offset, size_t bytes, const rocksdb::IOOptions& options,
                         rocksdb::Slice* result, char* scratch,
                         rocksdb::IODebugContext* dbg) const override {
    rocksdb::IOStatus status = target()->Read(offset, bytes, options, result, scratch, dbg);
    if (!reads_->is_active()) return status;
    // Repeat a rejected read, too: disk_tier_blocks.h rejects a table's properties by their first
    // bytes, which may be misread.
    std::string buffer(bytes, '\0');
    rocksdb::Slice again;
    target()->InvalidateCache(0, 0).PermitUncheckedError();
    const rocksdb::IOStatus read = target()->Read(offset, bytes, options, &again, &buffer[0], dbg);
    if (status.code() != read.code() || (status.ok() && *result != again)) {
      reads_->Note(absl::StrCat(path_, ": two reads of ", bytes, " bytes at ", offset, " differ"));
      return rocksdb::IOStatus::IOError(path_, "two reads of the same bytes differ");
    }
    return status.IsCorruption() ? status : reads_->Checked(path_, std::move(status));
  }
  rocksdb::IOStatus MultiRead(rocksdb::FSReadRequest* requests, size_t count,
                              const rocksdb::IOOptions& options,
                              rocksdb::IODebugContext* dbg) override {
    // the base class calls Read for each request
    return FSRandomAccessFile::MultiRead(requests, count, options, dbg);
  }

 private:
  const std::string path_;
  const std::shared_ptr<RecoveryReads> reads_;
};

class RecoveryFileSystem : public rocksdb::FileSystemWrapper {
 public:
  using Options = rocksdb::IOOptions;
  using Context = rocksdb::IODebugContext;
  explicit RecoveryFileSystem(std::shared_ptr<rocksdb::FileSystem> target)
      : FileSystemWrapper(std::move(target)), reads_(std::make_shared<RecoveryReads>()) {}
  const char* Name() const override { return "RecoveryFileSystem"; }

  // Begins the repair: from now on, reads are done twice. Forgets earlier failures.
  void Begin() { reads_->Begin(); }
  // Ends the repair: from now on, files are read once and may be changed.
  void End() { reads_->End(); }
  // Returns a description of the first read since Begin() that failed or differed; empty: none.
  std::string failure() const { return reads_->failure(); }
  void ExitAtFailure(int code) const { reads_->ExitAtFailure(code); }

  rocksdb::IOStatus NewSequentialFile(const std::string& path, const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSSequentialFile>* out,
                                      Context* dbg) override {
    return reads_->Checked(path, target()->NewSequentialFile(path, options, out, dbg));
  }
  rocksdb::IOStatus NewRandomAccessFile(const std::string& path,
                                        const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* out,
                                        Context* dbg) override {
    rocksdb::IOStatus opened =
        reads_->Checked(path, target()->NewRandomAccessFile(path, options, out, dbg));
    if (opened.ok()) *out = std::make_unique<TwiceReadTable>(path, std::move(*out), reads_);
    return opened;
  }
  rocksdb::IOStatus GetFileSize(const std::string& path, const Options& options, uint64_t* bytes,
                                Context* dbg) override {
    return reads_->Checked(path, target()->GetFileSize(path, options, bytes, dbg));
  }
  rocksdb::IOStatus FileExists(const std::string& path, const Options& options,
                               Context* dbg) override {
    return reads_->Checked(path, target()->FileExists(path, options, dbg));
  }
  rocksdb::IOStatus GetChildren(const std::string& path, const Options& options,
                                std::vector<std::string>* names, Context* dbg) override {
    return reads_->Checked(path, target()->GetChildren(path, options, names, dbg));
  }

  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* out,
                                    Context* dbg) override {
    return reads_->Allow([&] { return target()->NewWritableFile(path, options, out, dbg); });
  }
  rocksdb::IOStatus ReopenWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                       std::unique_ptr<rocksdb::FSWritableFile>* out,
                                       Context* dbg) override {
    return reads_->Allow([&] { return target()->ReopenWritableFile(path, options, out, dbg); });
  }
  rocksdb::IOStatus DeleteFile(const std::string& path, const Options& options,
                               Context* dbg) override {
    return reads_->Allow([&] { return target()->DeleteFile(path, options, dbg); });
  }
  rocksdb::IOStatus RenameFile(const std::string& from, const std::string& to,
                               const Options& options, Context* dbg) override {
    return reads_->Allow([&] { return target()->RenameFile(from, to, options, dbg); });
  }

 private:
  const std::shared_ptr<RecoveryReads> reads_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_FILES_RECOVERY_FILES_H_
