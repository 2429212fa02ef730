// Keeps a second copy of RocksDB's manifest, and decides which of the two to believe. Private to
// disk/.
//
// The manifest names the files of the database. It is a few KiB, and everything depends on it: with
// one bit of it flipped RocksDB does not open, and without its end RocksDB deletes every file that
// only the end named. So each record is written twice, to MANIFEST-n and then to MANIFEST-n.copy,
// and before RocksDB reads it the one with more whole records replaces the other. Only the first is
// synced: after a crash of the machine it is whole, and the copy may help. CURRENT, which names the
// manifest, follows from the files themselves.
#ifndef HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_MANIFEST_H_
#define HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_MANIFEST_H_

#include <rocksdb/file_system.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cache_store/disk/files/rocks_status.h"

namespace hearth {

inline constexpr char kManifestPrefix[] = "MANIFEST-";
inline constexpr char kCopySuffix[] = ".copy";

// True for the path of a manifest, and not for that of a copy.
bool IsManifest(absl::string_view path);

// The file appears whole or not at all. An error only says that it cannot be written.
absl::Status PutFile(rocksdb::FileSystem* files, const std::string& path, const std::string& bytes);

// Before a database is opened for writing: replaces damaged files by whole ones. `*found`: a line
// for each damaged file. kDataLoss: there are tables or logs, and nothing tells which of them
// belong to the database.
absl::Status MendManifest(rocksdb::FileSystem* files, const std::string& folder,
                          FoundDamage* found);

// A manifest that is being written, and its copy. An error of the copy does not stop the file. One
// caller at a time, as for any writable file.
//
// A copy that may be incomplete is removed. When the file itself fails, the copy is cut to the
// synced part: RocksDB goes on in another manifest, but only with its next change, and until then
// this one counts.
class CopiedFile : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  using Options = rocksdb::IOOptions;
  using Context = rocksdb::IODebugContext;
  using File = std::unique_ptr<rocksdb::FSWritableFile>;

  CopiedFile(File file, File copy, rocksdb::FileSystem* files, std::string copy_path)
      : FSWritableFileOwnerWrapper(std::move(file)),
        copy_(std::move(copy)),
        has_copy_(copy_ != nullptr),
        files_(files),
        copy_path_(std::move(copy_path)) {}
  ~CopiedFile() override = default;

  rocksdb::IOStatus Append(const rocksdb::Slice& data, const Options& options,
                           Context* dbg) override {
    return Appended(target()->Append(data, options, dbg), data);
  }
  rocksdb::IOStatus Append(const rocksdb::Slice& data, const Options& options,
                           const rocksdb::DataVerificationInfo& verification,
                           Context* dbg) override {
    return Appended(target()->Append(data, options, verification, dbg), data);
  }
  rocksdb::IOStatus Sync(const Options& options, Context* dbg) override {
    return Synced(target()->Sync(options, dbg));
  }
  rocksdb::IOStatus Fsync(const Options& options, Context* dbg) override {
    return Synced(target()->Fsync(options, dbg));
  }
  rocksdb::IOStatus Close(const Options& options, Context* dbg) override {
    if (copy_ != nullptr) copy_->Close(options, dbg).PermitUncheckedError();
    copy_ = nullptr;
    return target()->Close(options, dbg);
  }

 private:
  rocksdb::IOStatus Appended(rocksdb::IOStatus status, const rocksdb::Slice& data) {
    if (!status.ok()) {
      EndCopy();
    } else if (copy_ == nullptr || !copy_->Append(data, Options(), nullptr).ok()) {
      RemoveCopy();
    } else {
      copied_bytes_ += data.size();
    }
    return status;
  }
  // A record that could not be synced counts as not written, whatever is in the file after a crash.
  rocksdb::IOStatus Synced(rocksdb::IOStatus status) {
    if (status.ok()) {
      synced_bytes_ = copied_bytes_;
    } else {
      EndCopy();
    }
    return status;
  }
  void EndCopy() {
    if (copy_ == nullptr) return;
    const bool ends = synced_bytes_ > 0 &&
                      copy_->Truncate(synced_bytes_, Options(), nullptr).ok() &&
                      copy_->Sync(Options(), nullptr).ok();
    copy_ = nullptr;
    if (!ends) RemoveCopy();
  }
  void RemoveCopy() {
    copy_ = nullptr;
    if (!std::exchange(has_copy_, false)) return;
    files_->DeleteFile(copy_path_, Options(), nullptr).PermitUncheckedError();
  }

  File copy_;      // null: none, or no longer written
  bool has_copy_;  // there is a file of its name
  uint64_t copied_bytes_ = 0, synced_bytes_ = 0;
  rocksdb::FileSystem* const files_;
  const std::string copy_path_;
};

}  // namespace hearth

#endif  // HEARTH_CACHE_STORE_DISK_FILES_DISK_TIER_MANIFEST_H_
