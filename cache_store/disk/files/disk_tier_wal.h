// Writes RocksDB's log on a disk that may be full or fail. Private to disk/.
#ifndef HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_WAL_H_
#define HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_WAL_H_

#include <rocksdb/file_system.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace hearth {

// The same error of a write, marked as one that may be tried again.
inline rocksdb::IOStatus Retryable(rocksdb::IOStatus status) {
  if (!status.IsIOError()) return status;
  rocksdb::IOStatus plain = rocksdb::IOStatus::IOError(status.ToString());
  plain.SetRetryable(true);
  return plain;
}

// A log that its first write creates if it could not be created at once. RocksDB 7.8 does not
// survive a failed creation while it changes logs: it does half of the change, and asserts when it
// does that half again. It does survive a failed write, after which this takes no more: what comes
// behind half a record could not be read.
class DeferredLogFile : public rocksdb::FSWritableFile {
 public:
  using Options = rocksdb::IOOptions;
  using Context = rocksdb::IODebugContext;
  using File = std::unique_ptr<rocksdb::FSWritableFile>;
  using Make = std::function<rocksdb::IOStatus(File*)>;
  // `file`: null when it could not be made.
  DeferredLogFile(File file, Make make) : file_(std::move(file)), make_(std::move(make)) {}

  rocksdb::IOStatus Append(const rocksdb::Slice& data, const Options& options,
                           Context* dbg) override {
    rocksdb::IOStatus status;
    if (has_failed_) status = rocksdb::IOStatus::IOError("the log could not be written before");
    if (status.ok() && file_ == nullptr) status = make_(&file_);
    if (status.ok()) status = file_->Append(data, options, dbg);
    has_failed_ = !status.ok();
    return Retryable(status);
  }
  rocksdb::IOStatus Append(const rocksdb::Slice& data, const Options& options,
                           const rocksdb::DataVerificationInfo&, Context* dbg) override {
    return Append(data, options, dbg);
  }
  // Without a file there is nothing to lose.
  rocksdb::IOStatus Close(const Options& options, Context* dbg) override {
    return file_ == nullptr ? rocksdb::IOStatus::OK() : Retryable(file_->Close(options, dbg));
  }
  rocksdb::IOStatus Flush(const Options& options, Context* dbg) override {
    return file_ == nullptr ? rocksdb::IOStatus::OK() : Retryable(file_->Flush(options, dbg));
  }
  rocksdb::IOStatus Sync(const Options& options, Context* dbg) override {
    return file_ == nullptr ? rocksdb::IOStatus::OK() : Retryable(file_->Sync(options, dbg));
  }
  bool IsSyncThreadSafe() const override { return file_ == nullptr || file_->IsSyncThreadSafe(); }
  uint64_t GetFileSize(const Options& options, Context* dbg) override {
    return file_ == nullptr ? 0 : file_->GetFileSize(options, dbg);
  }

 private:
  File file_;
  const Make make_;
  bool has_failed_ = false;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_WAL_H_
