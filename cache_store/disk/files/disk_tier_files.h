// RocksFileSystem: the file system that RocksDB uses. It keeps table files that RocksDB wants to
// delete too early, and marks each failed write as retryable. Private to disk/.
//
// RocksDB links a table by a record in its manifest. If writing or syncing this record fails,
// RocksDB deletes the table file, although the record may be on disk; the database could then not
// be opened. So a file that is being linked is not deleted before the link is known to have
// succeeded. The next start deletes files that the manifest does not contain.
//
// On a full disk, RocksDB waits for space by itself, gives up if its first attempt fails, and
// cannot be resumed afterwards. If the error is retryable, disk_tier.cc decides instead.
//
// Logs, the manifest and CURRENT are read until two reads agree, because RocksDB would permanently
// lose everything after a misread byte.
//
// New tables (in kTablesFolder) are written and checked without the page cache if the file system
// supports it: a table is seldom read soon, because RAM has its slices, and copying it to the page
// cache would be the most expensive part of a publish. Thread safe.
#ifndef HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_FILES_H_
#define HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_FILES_H_

#include <rocksdb/env.h>
#include <rocksdb/file_system.h>

#include <algorithm>
#include <cassert>
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

// Returns the write error, marked as retryable.
inline rocksdb::IOStatus Retryable(const rocksdb::IOStatus& status) {
  if (!status.IsIOError()) return status;
  rocksdb::IOStatus plain = rocksdb::IOStatus::IOError(status.ToString());
  plain.SetRetryable(true);
  return plain;
}

// A file that refuses writes after a failed write, because data after a partial record could not be
// read. If a log could not be created, its first write creates it: if the creation of a log fails,
// RocksDB 7.8 completes half of the change of logs, and asserts when it repeats this half.
class RetryableFile : public rocksdb::FSWritableFile {
 public:
  using Options = rocksdb::IOOptions;
  using Context = rocksdb::IODebugContext;
  using File = std::unique_ptr<rocksdb::FSWritableFile>;
  using Make = std::function<rocksdb::IOStatus(File*)>;
  // `file`: null if the file could not be created.
  explicit RetryableFile(File file, Make make = nullptr)
      : file_(std::move(file)), make_(std::move(make)) {
    assert(file_ != nullptr || make_ != nullptr);
  }

  rocksdb::IOStatus Append(const rocksdb::Slice& data, const Options& options,
                           Context* dbg) override {
    return Write([&] { return file_->Append(data, options, dbg); });
  }
  rocksdb::IOStatus Append(const rocksdb::Slice& data, const Options& options,
                           const rocksdb::DataVerificationInfo&, Context* dbg) override {
    return Append(data, options, dbg);
  }
  // RocksDB writes files that bypass the page cache only with this method.
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
  // If the file was not created yet, there is nothing to truncate.
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
    assert(!status.ok() || file_ != nullptr);
    if (status.ok()) status = write();
    has_failed_ = !status.ok();
    return Retryable(status);
  }

  File file_;
  const Make make_;
  bool has_failed_ = false;
};

// A new table file. It is not synced here: RocksDB syncs the file under its final name before the
// manifest contains it.
class NewTableFile : public RetryableFile {
 public:
  using RetryableFile::RetryableFile;
  rocksdb::IOStatus Sync(const Options&, Context*) override { return rocksdb::IOStatus::OK(); }
  rocksdb::IOStatus Fsync(const Options&, Context*) override { return rocksdb::IOStatus::OK(); }
};

// Folder of new table files in the data folder.
inline constexpr char kTablesFolder[] = "/tables.tmp";
inline bool IsNewTable(const std::string& path) { return absl::StrContains(path, kTablesFolder); }

// Blocks that were read from a new table. Before RocksDB 7.8 links a table, it reads the table's
// first and last block, and asserts that they are intact. So disk_tier_tables.cc reads and checks
// these blocks first, and RocksDB gets the checked bytes.
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
        assert(it->second.size() <= bytes);
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

// Returns whether RocksDB reads this file once, from the beginning, when it opens a database. Such
// files are read until two reads agree, because RocksDB loses everything after a misread byte.
inline bool IsReadOnce(absl::string_view path) {
  const absl::string_view name = path.substr(path.rfind('/') + 1);
  return absl::EndsWith(name, ".log") || absl::StartsWith(name, "MANIFEST-") || name == "CURRENT";
}
inline constexpr absl::string_view kReadsDifferently = " gives different bytes on each read";

// A file whose bytes are already in memory.
class ReadFile : public rocksdb::FSSequentialFile {
 public:
  explicit ReadFile(std::string bytes) : bytes_(std::move(bytes)) {}
  // Reads the rest of a file and appends it to `*bytes`.
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
    assert(at_ <= bytes_.size());
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

  // Call after RocksDB has linked tables successfully: their files may be deleted from now on.
  void Linked() {
    absl::MutexLock lock(&mu_);
    linking_.clear();
  }
  // Call if linking tables may have failed: their files are kept.
  void MayBeLinked() {
    absl::MutexLock lock(&mu_);
    kept_.merge(linking_);
    linking_.clear();
  }

  // Forgets the blocks of a new table, which was linked or discarded.
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
    // the file may have grown between the reads
    const size_t common = std::min(bytes.size(), again.size());
    if (std::memcmp(bytes.data(), again.data(), common) != 0) {
      return rocksdb::IOStatus::IOError(absl::StrCat(
          path, kReadsDifferently, ": digest ", absl::Hex(SliceDigest(bytes.data(), common)),
          ", then digest ", absl::Hex(SliceDigest(again.data(), common))));
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
