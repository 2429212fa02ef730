// Writes RocksDB's log on a disk that may be full or fail. Private to disk/.
#ifndef HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_WAL_H_
#define HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_WAL_H_

#include <rocksdb/file_system.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "cache_store/disk/files/disk_tier_records.h"

namespace hearth {

// The same error of a write, marked as one that may be tried again.
inline rocksdb::IOStatus Retryable(rocksdb::IOStatus status) {
  if (!status.IsIOError()) return status;
  rocksdb::IOStatus plain = rocksdb::IOStatus::IOError(status.ToString());
  plain.SetRetryable(true);
  return plain;
}

// Knows which log is written to, and whether a write of it failed. Thread safe.
class LogHealth {
 public:
  void Begin(const std::string& path) {
    absl::MutexLock lock(&mu_);
    newest_ = path;
    is_broken_ = false;
  }
  rocksdb::IOStatus Note(const std::string& path, rocksdb::IOStatus status) {
    absl::MutexLock lock(&mu_);
    if (!status.ok() && path == newest_) is_broken_ = true;
    return status;
  }
  bool is_broken() {
    absl::MutexLock lock(&mu_);
    return is_broken_;
  }

 private:
  absl::Mutex mu_;
  std::string newest_ ABSL_GUARDED_BY(mu_);
  bool is_broken_ ABSL_GUARDED_BY(mu_) = false;
};

// A log that its first write creates if it could not be created at once. RocksDB 7.8 does not
// survive a failed creation while it changes logs: it does half of the change, and asserts when it
// does that half again. It does survive a failed write.
//
// After such a write the log is cut off where its last whole record ends: RocksDB goes on with a
// new one, and the next start would take half a record in the middle of its logs for damage, and
// refuse tables that were flushed since ("SST file is ahead of WALs").
class DeferredLogFile : public rocksdb::FSWritableFile {
 public:
  using Options = rocksdb::IOOptions;
  using Context = rocksdb::IODebugContext;
  using File = std::unique_ptr<rocksdb::FSWritableFile>;
  using Make = std::function<rocksdb::IOStatus(File*)>;
  // `file`: null when it could not be made.
  DeferredLogFile(std::string path, LogHealth* health, File file, Make make)
      : path_(std::move(path)), health_(health), file_(std::move(file)), make_(std::move(make)) {
    health_->Begin(path_);
  }

  rocksdb::IOStatus Append(const rocksdb::Slice& data, const Options& options,
                           Context* dbg) override {
    rocksdb::IOStatus status;
    if (is_cut_) status = rocksdb::IOStatus::IOError("the log could not be written before");
    if (status.ok() && file_ == nullptr) status = make_(&file_);
    if (status.ok()) status = file_->Append(data, options, dbg);
    if (status.ok()) {
      records_.Feed({data.data(), data.size()});
    } else if (file_ != nullptr && !std::exchange(is_cut_, true)) {
      file_->Truncate(records_.end(), options, dbg).PermitUncheckedError();
    }
    return Done(status);
  }
  rocksdb::IOStatus Append(const rocksdb::Slice& data, const Options& options,
                           const rocksdb::DataVerificationInfo&, Context* dbg) override {
    return Append(data, options, dbg);
  }
  // Without a file there is nothing to lose.
  rocksdb::IOStatus Close(const Options& options, Context* dbg) override {
    return file_ == nullptr ? rocksdb::IOStatus::OK() : Done(file_->Close(options, dbg));
  }
  rocksdb::IOStatus Flush(const Options& options, Context* dbg) override {
    return file_ == nullptr ? rocksdb::IOStatus::OK() : Done(file_->Flush(options, dbg));
  }
  rocksdb::IOStatus Sync(const Options& options, Context* dbg) override {
    return file_ == nullptr ? rocksdb::IOStatus::OK() : Done(file_->Sync(options, dbg));
  }
  bool IsSyncThreadSafe() const override { return file_ == nullptr || file_->IsSyncThreadSafe(); }
  uint64_t GetFileSize(const Options& options, Context* dbg) override {
    return file_ == nullptr ? 0 : file_->GetFileSize(options, dbg);
  }

 private:
  rocksdb::IOStatus Done(rocksdb::IOStatus status) {
    return health_->Note(path_, Retryable(std::move(status)));
  }

  const std::string path_;
  LogHealth* const health_;
  File file_;
  const Make make_;
  RecordEnds records_;
  bool is_cut_ = false;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_WAL_H_
