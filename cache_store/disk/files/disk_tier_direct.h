// DirectFile: a file that is written past the page cache while its next bytes are being made.
// Private to disk/.
//
// A table is written once and seldom read soon, since RAM has its slices. Through the page cache
// its bytes would be copied into fresh pages, the most expensive part of a publish, before they go
// to the device. Here they fill one of two reused buffers while a thread writes the other. All
// appended bytes are on the device when Close returns, and durable after a sync.
// Thread safety: one caller at a time, as for any writable file. The buffers are shared.
#ifndef HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_DIRECT_H_
#define HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_DIRECT_H_

#include <rocksdb/file_system.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace hearth {

// Two of these hide the making of a table behind the device; four times the largest request of most
// block devices.
inline constexpr size_t kDirectBufferBytes = size_t{2} << 20;

// Aligned memory of kDirectBufferBytes each, kept for the next file: fresh memory costs as much to
// touch as the page cache would. Thread safe.
class DirectBuffers {
 public:
  using Buffer = std::unique_ptr<std::byte, void (*)(void*)>;
  static constexpr size_t kAlignment = 4096;
  static constexpr size_t kMaxKept = 16;  // of eight files at once

  Buffer Take();
  void Give(Buffer buffer);

 private:
  absl::Mutex mu_;
  std::vector<Buffer> kept_ ABSL_GUARDED_BY(mu_);
};

class DirectFile : public rocksdb::FSWritableFile {
 public:
  using Options = rocksdb::IOOptions;
  using Context = rocksdb::IODebugContext;

  // `file`: opened for direct writes, and empty. `buffers` outlives this.
  // REQUIRES: the file's alignment divides DirectBuffers::kAlignment.
  DirectFile(std::unique_ptr<rocksdb::FSWritableFile> file, DirectBuffers* buffers);
  ~DirectFile() override;

  using FSWritableFile::Append;
  rocksdb::IOStatus Append(const rocksdb::Slice& data, const Options& options,
                           Context* dbg) override;
  // Waits until all appended bytes are written, and truncates the file to them.
  rocksdb::IOStatus Close(const Options& options, Context* dbg) override;
  rocksdb::IOStatus Flush(const Options&, Context*) override { return rocksdb::IOStatus::OK(); }
  // Does nothing: a table is synced once it has its name in the database (RocksDB's ingestion does
  // it before its manifest may name the file).
  rocksdb::IOStatus Sync(const Options&, Context*) override { return rocksdb::IOStatus::OK(); }
  uint64_t GetFileSize(const Options&, Context*) override { return size_; }

 private:
  struct Piece {
    DirectBuffers::Buffer buffer{nullptr, nullptr};
    size_t bytes = 0;
    uint64_t offset = 0;
  };

  rocksdb::IOStatus Hand() ABSL_LOCKS_EXCLUDED(mu_);
  rocksdb::IOStatus Drain() ABSL_LOCKS_EXCLUDED(mu_);
  rocksdb::IOStatus WriteOut(const Piece& piece);
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const std::unique_ptr<rocksdb::FSWritableFile> file_;
  DirectBuffers* const buffers_;
  DirectBuffers::Buffer filling_;
  size_t filled_ = 0;
  uint64_t size_ = 0;
  bool closed_ = false;

  absl::Mutex mu_;
  // At most one piece waits for the thread or is being written by it.
  std::unique_ptr<Piece> piece_ ABSL_GUARDED_BY(mu_);
  DirectBuffers::Buffer spare_ ABSL_GUARDED_BY(mu_){nullptr, nullptr};
  rocksdb::IOStatus written_ ABSL_GUARDED_BY(mu_);  // the first failure
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread writer_;  // from the first full buffer on
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_DIRECT_H_
