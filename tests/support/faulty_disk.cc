#include "tests/support/faulty_disk.h"

#include <rocksdb/file_system.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

namespace hearth {

using rocksdb::FileOptions;
using rocksdb::IODebugContext;
using rocksdb::IOOptions;
using rocksdb::IOStatus;
using rocksdb::Slice;

namespace {

std::string FolderOf(const std::string& path) {
  return std::filesystem::path(path).parent_path().lexically_normal().string();
}
std::string Normal(const std::string& path) {
  return std::filesystem::path(path).lexically_normal().string();
}
IOStatus NoRoom() {
  IOStatus status = IOStatus::NoSpace("No space left on device");
  status.SetRetryable(true);  // like the NoSpace error of the real file system
  return status;
}
std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

class FaultyFile : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  FaultyFile(FaultyDisk* disk, std::shared_ptr<FaultyDisk::Content> content,
             std::unique_ptr<rocksdb::FSWritableFile> file)
      : FSWritableFileOwnerWrapper(std::move(file)), disk_(disk), content_(std::move(content)) {}
  IOStatus Append(const Slice& data, const IOOptions& options, IODebugContext* dbg) override {
    absl::MutexLock lock(&disk_->mu_);
    IOStatus status = disk_->Admit();
    if (!status.ok()) return status;
    if (disk_->Strikes(DiskFault::kFailedWrite)) return IOStatus::IOError("disk on fire");
    const size_t room = disk_->TakeRoom(data.size());
    Slice written(data.data(), room);
    const bool is_short = disk_->Strikes(DiskFault::kShortWrite);
    if (is_short) written = Slice(data.data(), data.size() / 2);
    status = target()->Append(written, options, dbg);
    if (status.ok()) content_->bytes += written.size();
    if (status.ok() && room < data.size()) return NoRoom();
    return is_short ? IOStatus::IOError("disk on fire, half way") : status;
  }
  IOStatus Append(const Slice& data, const IOOptions& options, const rocksdb::DataVerificationInfo&,
                  IODebugContext* dbg) override {
    return Append(data, options, dbg);
  }
  // Direct writes bypass the page cache. Like other writes, they are not durable before a sync.
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions& options,
                            IODebugContext* dbg) override {
    absl::MutexLock lock(&disk_->mu_);
    IOStatus status = disk_->Admit();
    if (!status.ok()) return status;
    if (disk_->Strikes(DiskFault::kFailedWrite)) return IOStatus::IOError("disk on fire");
    if (disk_->TakeRoom(data.size()) < data.size()) return NoRoom();
    const bool is_short = disk_->Strikes(DiskFault::kShortWrite);
    const size_t half = data.size() / 2 / FaultyDisk::kPageBytes * FaultyDisk::kPageBytes;
    const Slice written(data.data(), is_short ? half : data.size());
    if (!written.empty()) status = target()->PositionedAppend(written, offset, options, dbg);
    if (status.ok()) content_->bytes = std::max(content_->bytes, offset + written.size());
    return is_short ? IOStatus::IOError("disk on fire, half way") : status;
  }
  IOStatus PositionedAppend(const Slice& data, uint64_t offset, const IOOptions& options,
                            const rocksdb::DataVerificationInfo&, IODebugContext* dbg) override {
    return PositionedAppend(data, offset, options, dbg);
  }
  IOStatus Truncate(uint64_t size, const IOOptions& options, IODebugContext* dbg) override {
    absl::MutexLock lock(&disk_->mu_);
    if (disk_->dead_) return IOStatus::IOError("dead");
    content_->bytes = size;
    content_->synced_bytes = std::min(content_->synced_bytes, size);
    return target()->Truncate(size, options, dbg);
  }
  IOStatus Sync(const IOOptions&, IODebugContext*) override { return Keep(); }
  IOStatus Fsync(const IOOptions&, IODebugContext*) override { return Keep(); }
  IOStatus RangeSync(uint64_t, uint64_t, const IOOptions&, IODebugContext*) override {
    return IOStatus::OK();  // the range sync of RocksDB is only a hint and makes no promise
  }

 private:
  // Records that the file's content is durable. The real file is not synced: only these records
  // decide what a crash leaves.
  IOStatus Keep() {
    absl::MutexLock lock(&disk_->mu_);
    if (disk_->dead_) return IOStatus::IOError("dead");
    ++disk_->syncs_;
    if (disk_->Strikes(DiskFault::kFailedSync)) return IOStatus::IOError("sync failed");
    content_->synced_bytes = content_->bytes;
    return IOStatus::OK();
  }

  FaultyDisk* const disk_;
  const std::shared_ptr<FaultyDisk::Content> content_;
};

class FaultyFileSystem : public rocksdb::FileSystemWrapper {
 public:
  explicit FaultyFileSystem(FaultyDisk* disk)
      : FileSystemWrapper(rocksdb::FileSystem::Default()), disk_(disk) {}
  const char* Name() const override { return "FaultyFileSystem"; }

  IOStatus NewWritableFile(const std::string& path, const FileOptions& options,
                           std::unique_ptr<rocksdb::FSWritableFile>* out,
                           IODebugContext* dbg) override {
    absl::MutexLock lock(&disk_->mu_);
    IOStatus status = disk_->Admit();
    if (status.ok() && options.use_direct_writes && disk_->lacks_direct_) {
      return IOStatus::InvalidArgument("direct I/O is not supported");
    }
    if (status.ok()) status = target()->NewWritableFile(path, options, out, dbg);
    if (!status.ok()) return status;
    auto content = std::make_shared<FaultyDisk::Content>();
    disk_->files_[Normal(path)] = content;
    disk_->unsynced_names_[Normal(path)] = FolderOf(path);
    *out = std::make_unique<FaultyFile>(disk_, std::move(content), std::move(*out));
    return status;
  }
  IOStatus ReopenWritableFile(const std::string& path, const FileOptions& options,
                              std::unique_ptr<rocksdb::FSWritableFile>* out,
                              IODebugContext* dbg) override {
    absl::MutexLock lock(&disk_->mu_);
    if (disk_->dead_) return IOStatus::IOError("dead");
    IOStatus status = target()->ReopenWritableFile(path, options, out, dbg);
    if (!status.ok()) return status;
    std::shared_ptr<FaultyDisk::Content>& content = disk_->files_[Normal(path)];
    if (content == nullptr) {
      content = std::make_shared<FaultyDisk::Content>();
      content->bytes = content->synced_bytes = std::filesystem::file_size(path);
    }
    *out = std::make_unique<FaultyFile>(disk_, content, std::move(*out));
    return status;
  }
  IOStatus NewRandomAccessFile(const std::string& path, const FileOptions& options,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* out,
                               IODebugContext* dbg) override;
  IOStatus NewSequentialFile(const std::string& path, const FileOptions& options,
                             std::unique_ptr<rocksdb::FSSequentialFile>* out,
                             IODebugContext* dbg) override;
  IOStatus NewDirectory(const std::string& path, const IOOptions& options,
                        std::unique_ptr<rocksdb::FSDirectory>* out, IODebugContext* dbg) override;

  IOStatus RenameFile(const std::string& from, const std::string& to, const IOOptions& options,
                      IODebugContext* dbg) override {
    absl::MutexLock lock(&disk_->mu_);
    if (disk_->dead_) return IOStatus::IOError("dead");
    if (std::filesystem::exists(to)) {
      disk_->unsynced_renames_.push_back({FolderOf(to), Normal(to), BytesOf(to)});
      disk_->GiveRoom(to);
    }
    IOStatus status = target()->RenameFile(from, to, options, dbg);
    if (!status.ok()) return status;
    const auto it = disk_->files_.find(Normal(from));
    if (it != disk_->files_.end()) {
      disk_->files_[Normal(to)] = it->second;
      disk_->files_.erase(it);
    }
    disk_->unsynced_names_.erase(Normal(from));
    return status;
  }
  IOStatus LinkFile(const std::string& from, const std::string& to, const IOOptions& options,
                    IODebugContext* dbg) override {
    absl::MutexLock lock(&disk_->mu_);
    IOStatus status = disk_->Admit();
    if (status.ok()) status = target()->LinkFile(from, to, options, dbg);
    if (!status.ok()) return status;
    const auto it = disk_->files_.find(Normal(from));
    if (it != disk_->files_.end()) disk_->files_[Normal(to)] = it->second;
    disk_->unsynced_names_[Normal(to)] = FolderOf(to);
    return status;
  }
  IOStatus GetFreeSpace(const std::string& path, const IOOptions& options, uint64_t* bytes,
                        IODebugContext* dbg) override {
    IOStatus status = target()->GetFreeSpace(path, options, bytes, dbg);
    absl::MutexLock lock(&disk_->mu_);
    if (disk_->full_) *bytes = 0;
    *bytes = std::min(*bytes, disk_->room_);
    return status;
  }
  IOStatus DeleteFile(const std::string& path, const IOOptions& options,
                      IODebugContext* dbg) override {
    absl::MutexLock lock(&disk_->mu_);
    if (disk_->dead_) return IOStatus::IOError("dead");
    disk_->files_.erase(Normal(path));
    disk_->unsynced_names_.erase(Normal(path));
    disk_->GiveRoom(path);
    return target()->DeleteFile(path, options, dbg);
  }

 private:
  friend class FaultyReader;
  friend class FaultySequence;
  friend class FaultyFolder;

  IOStatus SyncFolder(const std::string& folder) {
    absl::MutexLock lock(&disk_->mu_);
    if (disk_->dead_) return IOStatus::IOError("dead");
    ++disk_->syncs_;
    if (disk_->Strikes(DiskFault::kFailedSync) || disk_->Strikes(DiskFault::kFailedFolderSync)) {
      return IOStatus::IOError("sync failed");
    }
    auto& names = disk_->unsynced_names_;
    for (auto it = names.begin(); it != names.end();) {
      it = it->second == folder ? names.erase(it) : std::next(it);
    }
    auto& renames = disk_->unsynced_renames_;
    renames.erase(std::remove_if(renames.begin(), renames.end(),
                                 [&](const auto& rename) { return rename.folder == folder; }),
                  renames.end());
    return IOStatus::OK();
  }
  // Applies the armed faults to the result of a read. `is_counted`: whether the read counts for a
  // fault at the nth read.
  IOStatus BreakRead(Slice* result, char* scratch, bool is_counted) {
    absl::MutexLock lock(&disk_->mu_);
    const auto strikes = [&](DiskFault fault) ABSL_EXCLUSIVE_LOCKS_REQUIRED(disk_->mu_) {
      return is_counted ? disk_->Strikes(fault) : disk_->StrikesByShare(fault);
    };
    if (strikes(DiskFault::kFailedRead)) return IOStatus::IOError("disk on fire");
    if (result->empty() || !strikes(DiskFault::kFlippedBit)) return IOStatus::OK();
    if (result->data() != scratch) std::memmove(scratch, result->data(), result->size());
    const auto share = disk_->shares_.find(DiskFault::kFlippedBit);
    const bool is_any = share != disk_->shares_.end() && share->second > 0;
    const uint64_t bit =
        is_any ? disk_->random_() % (8 * result->size()) : result->size() / 2 * 8 + 3;
    scratch[bit / 8] = static_cast<char>(scratch[bit / 8] ^ 1 << bit % 8);
    *result = Slice(scratch, result->size());
    return IOStatus::OK();
  }

  FaultyDisk* const disk_;
};

class FaultyReader : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  FaultyReader(FaultyFileSystem* system, std::unique_ptr<rocksdb::FSRandomAccessFile> file)
      : FSRandomAccessFileOwnerWrapper(std::move(file)), system_(system) {}
  IOStatus Read(uint64_t offset, size_t bytes, const IOOptions& options, Slice* result,
                char* scratch, IODebugContext* dbg) const override {
    IOStatus status =
        FSRandomAccessFileOwnerWrapper::Read(offset, bytes, options, result, scratch, dbg);
    return status.ok() ? system_->BreakRead(result, scratch, true) : status;
  }
  IOStatus MultiRead(rocksdb::FSReadRequest* requests, size_t count, const IOOptions& options,
                     IODebugContext* dbg) override {
    for (size_t i = 0; i < count; ++i) {
      rocksdb::FSReadRequest& read = requests[i];
      read.status = Read(read.offset, read.len, options, &read.result, read.scratch, dbg);
    }
    return IOStatus::OK();
  }

 private:
  FaultyFileSystem* const system_;
};

class FaultySequence : public rocksdb::FSSequentialFileOwnerWrapper {
 public:
  FaultySequence(FaultyFileSystem* system, std::unique_ptr<rocksdb::FSSequentialFile> file)
      : FSSequentialFileOwnerWrapper(std::move(file)), system_(system) {}
  IOStatus Read(size_t bytes, const IOOptions& options, Slice* result, char* scratch,
                IODebugContext* dbg) override {
    IOStatus status = FSSequentialFileOwnerWrapper::Read(bytes, options, result, scratch, dbg);
    return status.ok() ? system_->BreakRead(result, scratch, false) : status;
  }

 private:
  FaultyFileSystem* const system_;
};

class FaultyFolder : public rocksdb::FSDirectoryWrapper {
 public:
  FaultyFolder(FaultyFileSystem* system, const std::string& path,
               std::unique_ptr<rocksdb::FSDirectory> folder)
      : FSDirectoryWrapper(std::move(folder)), system_(system), path_(Normal(path + "/x")) {}
  IOStatus Fsync(const IOOptions&, IODebugContext*) override {
    return system_->SyncFolder(FolderOf(path_));
  }
  IOStatus FsyncWithDirOptions(const IOOptions& options, IODebugContext* dbg,
                               const rocksdb::DirFsyncOptions&) override {
    return Fsync(options, dbg);
  }

 private:
  FaultyFileSystem* const system_;
  const std::string path_;  // path of one of the files in the folder
};

IOStatus FaultyFileSystem::NewRandomAccessFile(const std::string& path, const FileOptions& options,
                                               std::unique_ptr<rocksdb::FSRandomAccessFile>* out,
                                               IODebugContext* dbg) {
  {
    absl::MutexLock lock(&disk_->mu_);
    if (options.use_direct_reads && disk_->lacks_direct_) {
      return IOStatus::InvalidArgument("direct I/O is not supported");
    }
  }
  IOStatus status = target()->NewRandomAccessFile(path, options, out, dbg);
  if (status.ok()) *out = std::make_unique<FaultyReader>(this, std::move(*out));
  return status;
}

IOStatus FaultyFileSystem::NewSequentialFile(const std::string& path, const FileOptions& options,
                                             std::unique_ptr<rocksdb::FSSequentialFile>* out,
                                             IODebugContext* dbg) {
  IOStatus status = target()->NewSequentialFile(path, options, out, dbg);
  if (status.ok()) *out = std::make_unique<FaultySequence>(this, std::move(*out));
  return status;
}

IOStatus FaultyFileSystem::NewDirectory(const std::string& path, const IOOptions& options,
                                        std::unique_ptr<rocksdb::FSDirectory>* out,
                                        IODebugContext* dbg) {
  IOStatus status = target()->NewDirectory(path, options, out, dbg);
  if (status.ok()) *out = std::make_unique<FaultyFolder>(this, path, std::move(*out));
  return status;
}

FaultyDisk::FaultyDisk()
    : env_(rocksdb::NewCompositeEnv(std::make_shared<FaultyFileSystem>(this))) {}
FaultyDisk::~FaultyDisk() = default;

void FaultyDisk::Arm(DiskFault fault, int nth) {
  absl::MutexLock lock(&mu_);
  armed_[fault] = nth;
}
void FaultyDisk::Disarm() {
  absl::MutexLock lock(&mu_);
  armed_.clear();
}
void FaultyDisk::Die() {
  absl::MutexLock lock(&mu_);
  dead_ = true;
}
void FaultyDisk::SetLacksDirect() {
  absl::MutexLock lock(&mu_);
  lacks_direct_ = true;
}
int FaultyDisk::syncs() const {
  absl::MutexLock lock(&mu_);
  return syncs_;
}
int FaultyDisk::struck() const {
  absl::MutexLock lock(&mu_);
  return struck_;
}

bool FaultyDisk::Strikes(DiskFault fault) {
  const auto it = armed_.find(fault);
  if (it == armed_.end() || --it->second > 0) return StrikesByShare(fault);
  armed_.erase(it);
  ++struck_;
  return true;
}

bool FaultyDisk::StrikesByShare(DiskFault fault) {
  const auto it = shares_.find(fault);
  if (it == shares_.end() || static_cast<int>(random_() % 1000) >= it->second) return false;
  if (spared_reads_ > 0) return --spared_reads_, false;
  ++struck_;
  return true;
}

IOStatus FaultyDisk::Admit() {
  if (dead_) return IOStatus::IOError("dead");
  if (!full_) return IOStatus::OK();
  ++struck_;
  return NoRoom();
}

void FaultyDisk::GiveRoom(const std::string& path) {
  std::error_code error;
  if (room_ == kAmple || std::filesystem::hard_link_count(path, error) > 1 || error) return;
  const uint64_t bytes = std::filesystem::file_size(path, error);
  if (!error) room_ += bytes;
}

void FaultyDisk::LosePages(const std::string& path, const Content& content,
                           std::mt19937_64* random) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const std::string zeros(kPageBytes, '\0');
  uint64_t end = content.synced_bytes;
  for (uint64_t at = content.synced_bytes; at < content.bytes;) {
    const uint64_t next =
        std::min((at / FaultyDisk::kPageBytes + 1) * FaultyDisk::kPageBytes, content.bytes);
    if ((*random)() % 3 == 0) {
      file.seekp(static_cast<std::streamoff>(at));
      file.write(zeros.data(), static_cast<std::streamsize>(next - at));
    } else {
      end = next;
    }
    at = next;
  }
  file.close();
  // In half of the cases no unsynced byte survives, because independent random choices per page
  // would rarely give this case.
  if ((*random)() % 2 == 0) end = content.synced_bytes;
  std::filesystem::resize_file(path, end);
}

void FaultyDisk::Restart(bool machine, std::mt19937_64* random) {
  absl::MutexLock lock(&mu_);
  if (machine) {
    for (auto it = unsynced_renames_.rbegin(); it != unsynced_renames_.rend(); ++it) {
      if ((*random)() % 2 == 0) break;  // this rename and all earlier renames survive
      std::ofstream(it->to, std::ios::binary | std::ios::trunc) << it->overwritten;
      files_.erase(it->to);
    }
    for (const auto& [path, folder] : unsynced_names_) {
      if ((*random)() % 2 == 0) continue;
      std::filesystem::remove(path);
      files_.erase(path);
    }
    for (const auto& [path, content] : files_) {
      if (std::filesystem::exists(path) && content->synced_bytes < content->bytes) {
        LosePages(path, *content, random);
      }
    }
  }
  // If only the process died, keep the records: a later crash of the machine may still lose the
  // unsynced bytes.
  if (machine) files_.clear(), unsynced_names_.clear(), unsynced_renames_.clear();
  armed_.clear();
  shares_.clear();
  full_ = dead_ = false;
  room_ = kAmple;
}

}  // namespace hearth
