// DirectFile: a file that is written past the page cache while its next bytes are being made.
// Private to disk/.
//
// A table is written once and seldom read soon, since RAM has its slices. Through the page cache
// its bytes would be copied into fresh pages, the most expensive part of a publish, before they go
// to the device. Here they fill one of two reused buffers while a thread writes the other. All
// appended bytes are on the device when Close returns, and durable after a sync. Thread safety: one
// caller at a time, as for any writable file.
#ifndef HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_DIRECT_H_
#define HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_DIRECT_H_

#include <rocksdb/file_system.h>

#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>

namespace hearth {

// Two of these hide the making of a table behind the device; four times the largest request of most
// block devices.
inline constexpr size_t kDirectBufferBytes = size_t{2} << 20;

class DirectFile : public rocksdb::FSWritableFile {
 public:
  using Options = rocksdb::IOOptions;
  using Context = rocksdb::IODebugContext;

  static constexpr size_t kAlignment = 4096;

  // `file`: opened for direct writes, and empty. REQUIRES: its alignment divides kAlignment.
  explicit DirectFile(std::unique_ptr<rocksdb::FSWritableFile> file);
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
  using Buffer = std::unique_ptr<char, void (*)(char*)>;
  static Buffer NewBuffer();

  // The full buffer to a thread, once the one before is written.
  rocksdb::IOStatus Hand();
  rocksdb::IOStatus Wait();
  rocksdb::IOStatus WriteOut(const Buffer& buffer, size_t bytes, uint64_t offset);

  const std::unique_ptr<rocksdb::FSWritableFile> file_;
  Buffer filling_, writing_;
  size_t filled_ = 0;
  uint64_t size_ = 0;
  bool closed_ = false;
  std::future<rocksdb::IOStatus> under_way_;  // of what is in writing_
  rocksdb::IOStatus written_;                 // the first failure
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_DIRECT_H_
