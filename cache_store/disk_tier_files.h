// The file system under the database, which keeps the files of tables that RocksDB gave up, and
// makes of every failed write one that may be tried again. Private to disk_tier*.cc.
//
// Linking a table into the database ends with a record in RocksDB's own manifest. When writing or
// syncing that record fails, RocksDB deletes the file, though the record may be on disk all the
// same: then the database could not be opened again, for want of one file. So a file that was being
// linked is not deleted until the link is known to have worked; what was kept for nothing goes at
// the next start, as any file that the manifest does not name.
//
// On a full disk RocksDB waits for room by itself, gives up when its first try fails, and then
// refuses to be told to go on, for as long as the process lives; after other errors of a write it
// refuses that at once. A retryable error it leaves to us (disk_tier.cc): it then writes what is in
// memory to new files, and begins a new log and a new manifest.
// Thread safe.
#ifndef HEARTH_CACHE_STORE_DISK_TIER_FILES_H_
#define HEARTH_CACHE_STORE_DISK_TIER_FILES_H_

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"

namespace hearth {

// An error of a write, as one that may be tried again.
inline rocksdb::IOStatus Retryable(rocksdb::IOStatus status) {
  if (!status.IsIOError()) return status;
  rocksdb::IOStatus plain = rocksdb::IOStatus::IOError(status.ToString());
  plain.SetRetryable(true);
  return plain;
}

class RetryableFile : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  using Options = rocksdb::IOOptions;
  using Context = rocksdb::IODebugContext;
  using Verification = rocksdb::DataVerificationInfo;
  using rocksdb::FSWritableFileOwnerWrapper::FSWritableFileOwnerWrapper;

  rocksdb::IOStatus Append(const rocksdb::Slice& data, const Options& options,
                           Context* dbg) override {
    return Retryable(target()->Append(data, options, dbg));
  }
  rocksdb::IOStatus Append(const rocksdb::Slice& data, const Options& options,
                           const Verification& verification, Context* dbg) override {
    return Retryable(target()->Append(data, options, verification, dbg));
  }
  rocksdb::IOStatus Truncate(uint64_t size, const Options& options, Context* dbg) override {
    return Retryable(target()->Truncate(size, options, dbg));
  }
  rocksdb::IOStatus Close(const Options& options, Context* dbg) override {
    return Retryable(target()->Close(options, dbg));
  }
  rocksdb::IOStatus Flush(const Options& options, Context* dbg) override {
    return Retryable(target()->Flush(options, dbg));
  }
  rocksdb::IOStatus Sync(const Options& options, Context* dbg) override {
    return Retryable(target()->Sync(options, dbg));
  }
  rocksdb::IOStatus Fsync(const Options& options, Context* dbg) override {
    return Retryable(target()->Fsync(options, dbg));
  }
  rocksdb::IOStatus RangeSync(uint64_t offset, uint64_t bytes, const Options& options,
                              Context* dbg) override {
    return Retryable(target()->RangeSync(offset, bytes, options, dbg));
  }
};

// A log that could not be created yet. RocksDB 7.8 cannot take that while it changes logs: it does
// half of the change, and asserts against doing that half again. So the first write makes the file,
// or fails, which it takes.
class LateLog : public rocksdb::FSWritableFile {
 public:
  using Make = std::function<rocksdb::IOStatus(std::unique_ptr<rocksdb::FSWritableFile>*)>;
  explicit LateLog(Make make) : make_(std::move(make)) {}

  rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                           rocksdb::IODebugContext* dbg) override {
    if (file_ == nullptr) {
      rocksdb::IOStatus made = make_(&file_);
      if (!made.ok()) return Retryable(made);
    }
    return Retryable(file_->Append(data, options, dbg));
  }
  rocksdb::IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                           const rocksdb::DataVerificationInfo&,
                           rocksdb::IODebugContext* dbg) override {
    return Append(data, options, dbg);
  }
  // Of nothing, nothing is lost.
  rocksdb::IOStatus Close(const rocksdb::IOOptions& options,
                          rocksdb::IODebugContext* dbg) override {
    return file_ == nullptr ? rocksdb::IOStatus::OK() : Retryable(file_->Close(options, dbg));
  }
  rocksdb::IOStatus Flush(const rocksdb::IOOptions& options,
                          rocksdb::IODebugContext* dbg) override {
    return file_ == nullptr ? rocksdb::IOStatus::OK() : Retryable(file_->Flush(options, dbg));
  }
  rocksdb::IOStatus Sync(const rocksdb::IOOptions& options, rocksdb::IODebugContext* dbg) override {
    return file_ == nullptr ? rocksdb::IOStatus::OK() : Retryable(file_->Sync(options, dbg));
  }

 private:
  const Make make_;
  std::unique_ptr<rocksdb::FSWritableFile> file_;
};

class TableKeepingFiles : public rocksdb::FileSystemWrapper {
 public:
  explicit TableKeepingFiles(std::shared_ptr<rocksdb::FileSystem> target)
      : FileSystemWrapper(std::move(target)) {}
  const char* Name() const override { return "TableKeepingFiles"; }

  // The links that were made since the last call worked.
  void Linked() {
    absl::MutexLock lock(&mu_);
    linking_.clear();
  }
  // They may not have: their files stay.
  void MayBeLinked() {
    absl::MutexLock lock(&mu_);
    kept_.merge(linking_);
    linking_.clear();
  }

  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* out,
                                    rocksdb::IODebugContext* dbg) override {
    const rocksdb::IOStatus status = target()->NewWritableFile(path, options, out, dbg);
    if (status.ok()) *out = std::make_unique<RetryableFile>(std::move(*out));
    if (!status.IsIOError() || !absl::EndsWith(path, ".log")) return Retryable(status);
    *out = std::make_unique<LateLog>(
        [target = this->target(), path, options](std::unique_ptr<rocksdb::FSWritableFile>* made) {
          return target->NewWritableFile(path, options, made, nullptr);
        });
    return rocksdb::IOStatus::OK();
  }
  rocksdb::IOStatus ReopenWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                       std::unique_ptr<rocksdb::FSWritableFile>* out,
                                       rocksdb::IODebugContext* dbg) override {
    const rocksdb::IOStatus status = target()->ReopenWritableFile(path, options, out, dbg);
    if (status.ok()) *out = std::make_unique<RetryableFile>(std::move(*out));
    return Retryable(status);
  }
  rocksdb::IOStatus LinkFile(const std::string& from, const std::string& to,
                             const rocksdb::IOOptions& options,
                             rocksdb::IODebugContext* dbg) override {
    rocksdb::IOStatus status = target()->LinkFile(from, to, options, dbg);
    if (!status.ok()) return Retryable(status);
    absl::MutexLock lock(&mu_);
    linking_.insert(to);
    return status;
  }
  rocksdb::IOStatus DeleteFile(const std::string& path, const rocksdb::IOOptions& options,
                               rocksdb::IODebugContext* dbg) override {
    {
      absl::MutexLock lock(&mu_);
      if (linking_.count(path) > 0 || kept_.count(path) > 0) return rocksdb::IOStatus::OK();
    }
    return target()->DeleteFile(path, options, dbg);
  }

 private:
  absl::Mutex mu_;
  std::set<std::string> linking_ ABSL_GUARDED_BY(mu_), kept_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_TIER_FILES_H_
