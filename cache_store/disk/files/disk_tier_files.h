// RocksFileSystem: the file system under the database. Keeps the files of tables that RocksDB gave
// up, and marks every failed write as one that may be tried again. Private to disk/.
//
// Linking a table into the database ends with a record in RocksDB's own manifest. When writing or
// syncing that record fails, RocksDB deletes the file, though the record may be on disk all the
// same: then one missing file would keep the database from being opened. So a file that was being
// linked is not deleted until the link is known to have worked; the next start deletes a
// superfluous one, as any file that the manifest does not name.
//
// On a full disk RocksDB waits for room by itself, gives up when its first try fails, and cannot be
// resumed from then on. With a retryable error the decision is ours (disk_tier.cc).
//
// Logs, the manifest and its name are read until two reads agree: what follows a byte that a disk
// read wrong for a moment would be lost for good.
//
// Tables on their way into the database, in kTablesFolder, are written past the page cache where
// the file system can do that: a table is seldom read soon, since RAM has its slices, and copying
// it into fresh pages would be the most expensive part of a publish. RocksDB's reads before it
// links them go past it too.
// Thread safe.
#ifndef HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_FILES_H_
#define HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_FILES_H_

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "cache_store/disk/files/disk_tier_blocks.h"
#include "cache_store/disk/files/rocks_status.h"
#include "proto/kv_layout.h"

namespace hearth {

// The same error of a write, marked as one that may be tried again.
inline rocksdb::IOStatus Retryable(const rocksdb::IOStatus& status) {
  if (!status.IsIOError()) return status;
  rocksdb::IOStatus plain = rocksdb::IOStatus::IOError(status.ToString());
  plain.SetRetryable(true);
  return plain;
}

// A file that takes no more after a write that failed: what comes behind half a record could not be
// read. A log that could not be made at once is made by its first write: RocksDB 7.8 does not
// survive a failed creation while it changes logs, for it does half of the change, and asserts when
// it does that half again.
class RetryableFile : public rocksdb::FSWritableFile {
 public:
  using Options = rocksdb::IOOptions;
  using Context = rocksdb::IODebugContext;
  using File = std::unique_ptr<rocksdb::FSWritableFile>;
  using Make = std::function<rocksdb::IOStatus(File*)>;
  // `file`: null when it could not be made.
  explicit RetryableFile(File file, Make make = nullptr)
      : file_(std::move(file)), make_(std::move(make)) {}

  rocksdb::IOStatus Append(const rocksdb::Slice& data, const Options& options,
                           Context* dbg) override {
    return Write([&] { return file_->Append(data, options, dbg); });
  }
  rocksdb::IOStatus Append(const rocksdb::Slice& data, const Options& options,
                           const rocksdb::DataVerificationInfo&, Context* dbg) override {
    return Append(data, options, dbg);
  }
  // A file past the page cache is written this way alone.
  rocksdb::IOStatus PositionedAppend(const rocksdb::Slice& data, uint64_t offset,
                                     const Options& options, Context* dbg) override {
    return Write([&] { return file_->PositionedAppend(data, offset, options, dbg); });
  }
  rocksdb::IOStatus PositionedAppend(const rocksdb::Slice& data, uint64_t offset,
                                     const Options& options, const rocksdb::DataVerificationInfo&,
                                     Context* dbg) override {
    return PositionedAppend(data, offset, options, dbg);
  }
  bool use_direct_io() const override { return file_ != nullptr && file_->use_direct_io(); }
  size_t GetRequiredBufferAlignment() const override {
    return file_ == nullptr ? rocksdb::kDefaultPageSize : file_->GetRequiredBufferAlignment();
  }
  // Without a file there is nothing to lose.
  rocksdb::IOStatus Truncate(uint64_t size, const Options& options, Context* dbg) override {
    return file_ == nullptr ? rocksdb::IOStatus::OK()
                            : Retryable(file_->Truncate(size, options, dbg));
  }
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
  template <typename F>
  rocksdb::IOStatus Write(F write) {
    rocksdb::IOStatus status;
    if (has_failed_) status = rocksdb::IOStatus::IOError("an earlier write to this file failed");
    if (status.ok() && file_ == nullptr) status = make_(&file_);
    if (status.ok()) status = write();
    has_failed_ = !status.ok();
    return Retryable(status);
  }

  File file_;
  const Make make_;
  bool has_failed_ = false;
};

// A table that is not linked yet is synced once it has its name in the database: RocksDB's
// ingestion does it before its manifest may name the file.
class NewTableFile : public RetryableFile {
 public:
  using RetryableFile::RetryableFile;
  rocksdb::IOStatus Sync(const Options&, Context*) override { return rocksdb::IOStatus::OK(); }
  rocksdb::IOStatus Fsync(const Options&, Context*) override { return rocksdb::IOStatus::OK(); }
};

// The folder of tables that are not linked yet, inside the data folder.
inline constexpr char kTablesFolder[] = "/tables.tmp";
inline bool IsNewTable(const std::string& path) { return absl::StrContains(path, kTablesFolder); }

// The blocks read of a new table. RocksDB 7.8 reads the first and the last block of a table before
// it links it, and asserts that both are whole: we read them first (disk_tier_tables.cc), and
// RocksDB gets the blocks that we found whole.
struct NewTableReads {
  absl::Mutex mu;
  std::map<std::pair<uint64_t, size_t>, std::string> blocks ABSL_GUARDED_BY(mu);
};

class NewTableReader : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  NewTableReader(std::unique_ptr<rocksdb::FSRandomAccessFile> file,
                 std::shared_ptr<NewTableReads> reads)
      : FSRandomAccessFileOwnerWrapper(std::move(file)), reads_(std::move(reads)) {}

  rocksdb::IOStatus Read(uint64_t offset, size_t bytes, const rocksdb::IOOptions& options,
                         rocksdb::Slice* result, char* scratch,
                         rocksdb::IODebugContext* dbg) const override {
    {
      absl::MutexLock lock(&reads_->mu);
      const auto it = reads_->blocks.find({offset, bytes});
      if (it != reads_->blocks.end()) {
        std::memcpy(scratch, it->second.data(), it->second.size());
        *result = rocksdb::Slice(scratch, it->second.size());
        return rocksdb::IOStatus::OK();
      }
    }
    rocksdb::IOStatus status =
        FSRandomAccessFileOwnerWrapper::Read(offset, bytes, options, result, scratch, dbg);
    if (!status.ok()) return status;
    absl::MutexLock lock(&reads_->mu);
    reads_->blocks[{offset, bytes}] = result->ToString();
    return status;
  }

 private:
  const std::shared_ptr<NewTableReads> reads_;
};

// Files that are read once, from their beginning, when a database is opened. What follows a byte
// that RocksDB reads wrong is lost, so they are read until two reads agree.
inline bool IsReadOnce(absl::string_view path) {
  const absl::string_view name = path.substr(path.rfind('/') + 1);
  return absl::EndsWith(name, ".log") || absl::StartsWith(name, "MANIFEST-") || name == "CURRENT";
}
inline constexpr absl::string_view kReadsDifferently = " gives different bytes on each read";

// A file that was read before.
class ReadFile : public rocksdb::FSSequentialFile {
 public:
  explicit ReadFile(std::string bytes) : bytes_(std::move(bytes)) {}
  // Appends all that is left of a file.
  static rocksdb::IOStatus ReadAll(rocksdb::FSSequentialFile* file, std::string* bytes) {
    constexpr size_t kAtOnce = size_t{1} << 20;
    std::string buffer(kAtOnce, '\0');
    rocksdb::Slice read;
    rocksdb::IOStatus status;
    do {
      status = file->Read(kAtOnce, kPlain, &read, buffer.data(), nullptr);
      if (status.ok()) bytes->append(read.data(), read.size());
    } while (status.ok() && !read.empty());
    return status;
  }

  rocksdb::IOStatus Read(size_t bytes, const rocksdb::IOOptions&, rocksdb::Slice* result,
                         char* scratch, rocksdb::IODebugContext*) override {
    const size_t count = std::min(bytes, bytes_.size() - at_);
    std::memcpy(scratch, bytes_.data() + at_, count);
    *result = rocksdb::Slice(scratch, count);
    at_ += count;
    return rocksdb::IOStatus::OK();
  }
  rocksdb::IOStatus Skip(uint64_t bytes) override {
    at_ += std::min<uint64_t>(bytes, bytes_.size() - at_);
    return rocksdb::IOStatus::OK();
  }

 private:
  const std::string bytes_;
  size_t at_ = 0;
};

class RocksFileSystem : public rocksdb::FileSystemWrapper {
 public:
  explicit RocksFileSystem(std::shared_ptr<rocksdb::FileSystem> target)
      : FileSystemWrapper(std::move(target)) {}
  const char* Name() const override { return "RocksFileSystem"; }

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

  // The new table is linked, or given up.
  void Forget(const std::string& path) {
    absl::MutexLock lock(&mu_);
    new_tables_.erase(path);
  }

  rocksdb::IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                    std::unique_ptr<rocksdb::FSWritableFile>* out,
                                    rocksdb::IODebugContext* dbg) override {
    if (IsNewTable(path)) return NewTable(path, options, out, dbg);
    RetryableFile::File file;
    const rocksdb::IOStatus status = target()->NewWritableFile(path, options, &file, dbg);
    if (absl::EndsWith(path, ".log") && status.IsIOError()) {
      const auto make = [target = this->target(), path, options](RetryableFile::File* made) {
        return target->NewWritableFile(path, options, made, nullptr);
      };
      *out = std::make_unique<RetryableFile>(nullptr, make);
      return rocksdb::IOStatus::OK();
    }
    if (status.ok()) *out = std::make_unique<RetryableFile>(std::move(file));
    return Retryable(status);
  }
  rocksdb::IOStatus ReopenWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                                       std::unique_ptr<rocksdb::FSWritableFile>* out,
                                       rocksdb::IODebugContext* dbg) override {
    const rocksdb::IOStatus status = target()->ReopenWritableFile(path, options, out, dbg);
    if (status.ok()) *out = std::make_unique<RetryableFile>(std::move(*out));
    return Retryable(status);
  }
  rocksdb::IOStatus NewSequentialFile(const std::string& path, const rocksdb::FileOptions& options,
                                      std::unique_ptr<rocksdb::FSSequentialFile>* out,
                                      rocksdb::IODebugContext* dbg) override {
    rocksdb::IOStatus status = target()->NewSequentialFile(path, options, out, dbg);
    if (!status.ok() || !IsReadOnce(path)) return status;
    std::string bytes, again;
    status = ReadFile::ReadAll(out->get(), &bytes);
    if (status.ok()) {
      (*out)->InvalidateCache(0, 0).PermitUncheckedError();
      status = target()->NewSequentialFile(path, options, out, dbg);
    }
    if (status.ok()) status = ReadFile::ReadAll(out->get(), &again);
    if (!status.ok()) return status;
    const size_t common = std::min(bytes.size(), again.size());  // it may be written meanwhile
    if (std::memcmp(bytes.data(), again.data(), common) != 0) {
      return rocksdb::IOStatus::IOError(absl::StrCat(
          path, kReadsDifferently, ": digest ", absl::Hex(SliceDigest(bytes.data(), common)),
          ", then ", absl::Hex(SliceDigest(again.data(), common))));
    }
    *out = std::make_unique<ReadFile>(std::move(bytes));
    return status;
  }
  rocksdb::IOStatus NewRandomAccessFile(const std::string& path,
                                        const rocksdb::FileOptions& options,
                                        std::unique_ptr<rocksdb::FSRandomAccessFile>* out,
                                        rocksdb::IODebugContext* dbg) override {
    if (!IsNewTable(path)) {
      rocksdb::IOStatus opened = target()->NewRandomAccessFile(path, options, out, dbg);
      if (opened.ok() && absl::EndsWith(path, ".sst")) {
        *out = std::make_unique<TableReader>(std::move(*out));
      }
      return opened;
    }
    rocksdb::FileOptions direct = options;
    direct.use_direct_reads = true;
    rocksdb::IOStatus status = target()->NewRandomAccessFile(path, direct, out, dbg);
    if (!status.ok()) status = target()->NewRandomAccessFile(path, options, out, dbg);
    if (!status.ok()) return status;
    absl::MutexLock lock(&mu_);
    std::shared_ptr<NewTableReads>& reads = new_tables_[path];
    if (reads == nullptr) reads = std::make_shared<NewTableReads>();
    *out = std::make_unique<NewTableReader>(std::move(*out), reads);
    return status;
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
  rocksdb::IOStatus NewTable(const std::string& path, const rocksdb::FileOptions& options,
                             std::unique_ptr<rocksdb::FSWritableFile>* out,
                             rocksdb::IODebugContext* dbg) {
    rocksdb::FileOptions direct = options;
    direct.use_direct_writes = true;
    std::unique_ptr<rocksdb::FSWritableFile> file;
    rocksdb::IOStatus status = target()->NewWritableFile(path, direct, &file, dbg);
    if (!status.ok()) status = target()->NewWritableFile(path, options, &file, dbg);
    if (status.ok()) *out = std::make_unique<NewTableFile>(std::move(file));
    return Retryable(status);
  }

  absl::Mutex mu_;
  std::map<std::string, std::shared_ptr<NewTableReads>> new_tables_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> linking_ ABSL_GUARDED_BY(mu_), kept_ ABSL_GUARDED_BY(mu_);
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_FILES_H_
