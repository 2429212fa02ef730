#include "cache_store/disk/disk_tier_db.h"

#include <rocksdb/cache.h>
#include <rocksdb/env.h>
#include <rocksdb/listener.h>
#include <rocksdb/options.h>
#include <rocksdb/rate_limiter.h>
#include <rocksdb/table.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cassert>
#include <cstdarg>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "cache_store/disk/data_folder.h"
#include "cache_store/disk/disk_tier_recovery.h"

namespace hearth {
namespace {

// Size of a memtable: larger than the log limit, so that kMaxLogBytes decides when a flush begins.
constexpr size_t kWriteBufferBytes = 2 * kMaxLogBytes;
// Upper bound of the memory of an entry in a memtable, as a multiple of the entry's bytes in the
// log.
constexpr uint64_t kMemoryPerLogByte = 8;
constexpr int kNoLimit = std::numeric_limits<int>::max();
// Size of the tables that RocksDB writes in compactions (its default).
constexpr uint64_t kTableBytes = uint64_t{64} << 20;
constexpr uint64_t kMinTableBytes = uint64_t{1} << 20;
// On a small volume, a table is at most 1/kTablesToChoose of all files.
constexpr uint64_t kTablesToChoose = 64;
// RocksDB returns a block without a copy only if a block cache holds it until it is released. This
// cache keeps a block only while the block is in use. It belongs to the process, because blocks may
// be used after the database is closed.
std::shared_ptr<rocksdb::Cache> PinningCache() {
  static const auto* const cache = new std::shared_ptr<rocksdb::Cache>(rocksdb::NewLRUCache(0));
  return *cache;
}

// `files_bytes`: upper bound of the size of all files.
rocksdb::ColumnFamilyOptions FamilyOptions(Family family, uint64_t files_bytes) {
  rocksdb::ColumnFamilyOptions options;
  options.compression = rocksdb::kNoCompression;  // KV bytes are incompressible
  rocksdb::BlockBasedTableOptions table;
  table.checksum = rocksdb::kXXH3;
  if (family == kTables || family == kSlices) table.block_cache = PinningCache();
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.write_buffer_size = kWriteBufferBytes;
  if (family == kSlices) options.max_write_buffer_number = kMaxLogs;
  // A compaction writes its output before it deletes its input, so compactions must be smaller on a
  // small volume.
  if (const uint64_t table_bytes = files_bytes / kTablesToChoose; table_bytes < kTableBytes) {
    options.target_file_size_base = std::max(table_bytes, kMinTableBytes);
    options.max_bytes_for_level_base = 4 * options.target_file_size_base;
    options.max_compaction_bytes = 4 * options.target_file_size_base;
  }
  // If compactions fail again and again on a damaged block, tables that are not compacted
  // accumulate: they slow reads, but must not stop writes.
  options.level0_slowdown_writes_trigger = options.level0_stop_writes_trigger = kNoLimit;
  options.soft_pending_compaction_bytes_limit = options.hard_pending_compaction_bytes_limit = 0;
  return options;
}

// Returns the number of tables that RocksDB keeps open: half of the process's limit of descriptors.
// The other half is for connections. RocksDB opens further tables for each read.
int MaxOpenFiles() {
  constexpr rlim_t kMax = 4096, kMin = 64;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kMin;
  return static_cast<int>(std::clamp(limit.rlim_cur / 2, kMin, kMax));
}

constexpr size_t kLineBytes = 512;  // limit of a warning's length
constexpr size_t kMaxDropped = 16;

// Returns whether this line of RocksDB's log reports log entries that were lost to damage.
// "trailing data" and "truncated" do not count: they mean that the log ends inside a record, as
// after a crash.
bool IsDropped(const std::string& text) {
  return absl::StrContains(text, ".log: dropping ") && absl::StrContains(text, "Corruption") &&
         !absl::StrContains(text, "trailing data") && !absl::StrContains(text, "truncated");
}

// Passes warnings and errors of RocksDB's own log to `warnings`. RocksDB gets no log file: a log
// file would be in the data folder, and Debian's RocksDB asserts after a failed log write, for
// example on a full disk. Thread safe.
class DatabaseLog : public rocksdb::Logger {
 public:
  // `warnings` may be null.
  explicit DatabaseLog(std::shared_ptr<Warnings> warnings)
      : Logger(rocksdb::InfoLogLevel::WARN_LEVEL), warnings_(std::move(warnings)) {}

  void LogHeader(const char*, va_list) override {}
  void Logv(const char*, va_list) override {}
  void Logv(rocksdb::InfoLogLevel level, const char* format, va_list arguments) override {
    if (level < rocksdb::InfoLogLevel::WARN_LEVEL || level >= rocksdb::InfoLogLevel::HEADER_LEVEL) {
      return;
    }
    char line[kLineBytes];
    if (std::vsnprintf(line, sizeof(line), format, arguments) < 0) return;
    const std::string text =
        absl::StrReplaceAll(absl::StripTrailingAsciiWhitespace(line), {{"\n", " "}, {"\r", " "}});
    // Ignore this line: RocksDB reports it for each linked table, before its manifest has the
    // table's id.
    if (absl::StrContains(text, "opened without unique ID to verify")) return;
    if (IsDropped(text)) {
      absl::MutexLock lock(&mu_);
      const std::string line =
          absl::StrCat("the log is damaged; entries written after the damage are lost: ", text);
      // A second opening of the database reports each line again.
      const bool is_new = std::find(dropped_.begin(), dropped_.end(), line) == dropped_.end();
      if (is_new && dropped_.size() < kMaxDropped) dropped_.push_back(line);
    }
    if (warnings_ != nullptr) warnings_->Say("database", text);
  }

  // Returns RocksDB's reports of logs that are damaged before their end (a crash damages only the
  // end). RocksDB reads the entries before the damage, and reports the loss of the others only in
  // its log.
  std::vector<std::string> dropped() const {
    absl::MutexLock lock(&mu_);
    return dropped_;
  }

 private:
  const std::shared_ptr<Warnings> warnings_;
  mutable absl::Mutex mu_;
  std::vector<std::string> dropped_ ABSL_GUARDED_BY(mu_);
};

// Decides which background errors of RocksDB stop the database. If a compaction finds a damaged
// block, it changes nothing, but RocksDB would then refuse all writes, even after the next start.
// So this error is ignored. A failed flush is always an error: otherwise RocksDB, opened without
// paranoid checks, would ignore it, and callers that wait for the flush would wait forever.
class ErrorsOfBackgroundWork : public rocksdb::EventListener {
 public:
  void OnBackgroundError(rocksdb::BackgroundErrorReason reason, rocksdb::Status* error) override {
    if (reason == rocksdb::BackgroundErrorReason::kCompaction) {
      if (error->IsCorruption()) *error = rocksdb::Status::OK();
    } else if (error->severity() == rocksdb::Status::Severity::kNoError) {
      *error = rocksdb::Status(*error, rocksdb::Status::Severity::kFatalError);
    }
  }
  // Disable RocksDB's automatic recovery: after an ignored error, Close() would wait for a recovery
  // that never starts.
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, rocksdb::Status,
                            bool* recovers) override {
    *recovers = false;
  }
};

rocksdb::DBOptions DatabaseOptions(Database::Mode mode, const DiskTierOptions& tier,
                                   uint64_t files_bytes) {
  rocksdb::DBOptions options;
  options.create_if_missing = options.create_missing_column_families = mode == Database::Mode::kOwn;
  options.info_log_level = rocksdb::WARN_LEVEL;
  options.listeners.push_back(std::make_shared<ErrorsOfBackgroundWork>());
  // Allow the system's read-ahead, because the slices of a restore point are adjacent.
  options.advise_random_on_open = false;
  options.max_background_jobs = 2;
  if (tier.background_bytes_per_s > 0) {
    constexpr uint64_t kMax = std::numeric_limits<int64_t>::max();
    options.rate_limiter.reset(rocksdb::NewGenericRateLimiter(
        static_cast<int64_t>(std::min(tier.background_bytes_per_s, kMax))));
  }
  options.max_open_files = MaxOpenFiles();
  // Disable RocksDB's resuming: after an error, the next change reopens the database (disk_tier.h).
  options.max_bgerror_resume_count = 0;
  // Flush when the logs reach this size. A larger limit would only keep unflushed records of the
  // small column families.
  options.max_total_wal_size = LogBytesFor(files_bytes);
  // Disable the limit (RocksDB's default is much higher), because erases must not start a flush,
  // for which there is no space.
  if (mode == Database::Mode::kOwnToErase) options.max_total_wal_size = 0;
  // Accept a torn end of the log, which kill -9 leaves; everything before it is intact.
  options.wal_recovery_mode = rocksdb::WALRecoveryMode::kPointInTimeRecovery;
  options.avoid_flush_during_recovery = true;
  options.avoid_flush_during_shutdown = true;
  return options;
}

std::vector<std::string> LogsIn(rocksdb::FileSystem* files, const std::string& path) {
  std::vector<std::string> names, logs;
  files->GetChildren(path, kPlain, &names, nullptr).PermitUncheckedError();
  for (const std::string& name : names) {
    if (absl::EndsWith(name, ".log")) logs.push_back(absl::StrCat(path, "/", name));
  }
  return logs;
}

// Returns the offset at which the last complete record of a log ends. A log consists of blocks. A
// record is one piece, or a first, middle and last pieces; no piece crosses the end of a block. If
// the rest of a block is too short for a header, it is zeros.
uint64_t EndOfRecords(absl::string_view log) {
  constexpr uint64_t kBlockBytes = 32768;
  constexpr uint64_t kHeaderBytes = 7;  // checksum (4 bytes), body length (2), type (1)
  constexpr uint8_t kWholeRecord = 1, kLastPiece = 4;
  uint64_t end = 0;
  for (uint64_t at = 0; at + kHeaderBytes <= log.size();) {
    const uint64_t left_in_block = kBlockBytes - at % kBlockBytes;
    if (left_in_block < kHeaderBytes) {
      at += left_in_block;
      continue;
    }
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(log[at + i]); };
    const uint8_t type = byte(6);
    at += kHeaderBytes + (byte(4) | byte(5) << 8);
    if (at <= log.size() && (type == kWholeRecord || type == kLastPiece)) end = at;
  }
  return end;
}

// Truncates each log after its last complete record, and syncs it. A killed process may leave a
// partial record, after which RocksDB would ignore the next log (it expects consecutive sequence
// numbers). RocksDB syncs only its own writes, but later acknowledgements of `sync` also depend on
// data that an earlier process left in the page cache. Sets `*bytes` to the total size of the logs.
rocksdb::IOStatus SettleLogs(RocksFileSystem* files, const std::string& path, uint64_t* bytes) {
  const std::vector<std::string> logs = LogsIn(files, path);
  for (const std::string& log : logs) {
    std::string content;
    std::unique_ptr<rocksdb::FSWritableFile> file;
    // Read the log once, because RocksDB will read it again. Before truncating, read until two
    // reads agree.
    rocksdb::IOStatus status = rocksdb::ReadFileToString(files->target(), log, &content);
    uint64_t end = EndOfRecords(content);
    if (status.ok() && end < content.size()) {
      status = rocksdb::ReadFileToString(files, log, &content);
      end = EndOfRecords(content);
    }
    if (!status.ok()) return status;
    *bytes += end;
    status = files->ReopenWritableFile(log, rocksdb::FileOptions(), &file, nullptr);
    if (status.ok() && end < content.size()) status = file->Truncate(end, kPlain, nullptr);
    if (status.ok()) status = file->Sync(kPlain, nullptr);
    if (!status.ok()) return status;
  }
  return logs.empty() ? rocksdb::IOStatus::OK() : SyncFolder(files, path);
}

// Returns whether the error says that two reads of the same bytes differed. RocksDB adds text
// before the message.
bool IsMisread(const rocksdb::Status& status) {
  return status.IsIOError() && absl::StrContains(status.ToString(), kReadsDifferently);
}

rocksdb::Status Misread(const std::string& path, absl::string_view what) {
  return rocksdb::Status::IOError(absl::StrCat(path, kReadsDifferently, ": ", what));
}

bool IsDamage(const rocksdb::Status& status) {
  return status.IsCorruption() || status.IsPathNotFound() || status.IsNotFound();
}

// Pauses, and returns whether to open the database again.
bool OpensAgain(const rocksdb::Status& status, DamageConfirmation* confirmation) {
  if (IsMisread(status)) return confirmation->ReadAgainAfterMisread(status.ToString());
  return IsDamage(status) && confirmation->ReadAgain(status.ToString());
}

absl::Status CannotOpen(const std::string& dir, const rocksdb::Status& status) {
  const std::string text = status.ToString();
  if (status.IsIOError() && (absl::StrContains(text, "While lock file") ||
                             absl::StrContains(text, "lock hold by current process"))) {
    // If this process holds the lock, do not ask for its holder: the question would release the
    // lock.
    const bool is_other = absl::StrContains(text, "While lock file");
    const std::optional<pid_t> holder = is_other ? FolderHolder(dir) : std::nullopt;
    return absl::FailedPreconditionError(
        absl::StrCat("data folder ", dir, " is held by another process (",
                     holder.has_value() ? absl::StrCat("process id ", *holder) : text, ")"));
  }
  if (status.IsInvalidArgument() && absl::StrContains(text, "Column famil")) {
    return absl::FailedPreconditionError(absl::StrCat(
        "data folder ", dir, " was written by another version of this program (", text,
        "); delete the database (rm -r ", DatabasePath(dir), "), or use that version"));
  }
  if (IsMisread(status)) return ReadsDifferently(dir, text);
  const std::string message = absl::StrCat("data folder ", dir, " cannot be opened: ", text);
  if (status.IsCorruption() || status.IsPathNotFound()) {
    return absl::DataLossError(absl::StrCat(
        message, "; start the store: it repairs the database, or begins with an empty one"));
  }
  return absl::Status(FromRocks(status, "").code(), message);
}

}  // namespace

std::string DatabasePath(const std::string& dir) { return dir + "/db"; }

namespace {

// Returns a folder on the database's volume: DIR/db, which may be a mount point, or DIR before the
// first start.
std::string FolderOnVolume(const std::string& dir) {
  struct stat info {};
  const std::string path = DatabasePath(dir);
  return ::stat(path.c_str(), &info) == 0 ? path : dir;
}

// Returns the size of the volume; nullopt: unknown.
std::optional<uint64_t> VolumeBytes(const std::string& dir) {
  struct statvfs info {};
  if (::statvfs(FolderOnVolume(dir).c_str(), &info) != 0 || info.f_blocks == 0) return std::nullopt;
  return uint64_t{info.f_blocks} * info.f_frsize;
}

// Returns the bytes of the data folder's files on the database's volume. nullopt: a folder could
// not be read completely, for example because it was removed at the same time.
std::optional<uint64_t> OwnBytes(const std::string& dir) {
  namespace fs = std::filesystem;
  struct stat outer {};
  struct stat inner {};
  const std::string path = FolderOnVolume(dir);
  const bool is_one_volume = ::stat(dir.c_str(), &outer) == 0 &&
                             ::stat(path.c_str(), &inner) == 0 && outer.st_dev == inner.st_dev;
  uint64_t bytes = 0;
  std::error_code error;
  for (fs::recursive_directory_iterator
           it(is_one_volume ? dir : path, fs::directory_options::skip_permission_denied, error),
       end;
       !error && it != end; it.increment(error)) {
    struct stat info {};
    if (::lstat(it->path().c_str(), &info) != 0 || !S_ISREG(info.st_mode)) continue;
    // the file was just deleted, so its blocks will be freed soon
    if (info.st_nlink == 0) continue;
    constexpr uint64_t kBlockBytes = 512;  // unit of st_blocks on every file system
    bytes += static_cast<uint64_t>(info.st_blocks) * kBlockBytes / info.st_nlink;
  }
  if (error) return std::nullopt;
  return bytes;
}

}  // namespace

std::optional<uint64_t> MeasureFreeBytes(rocksdb::FileSystem* files, const std::string& dir) {
  uint64_t bytes = 0;
  if (!VolumeBytes(dir).has_value()) return std::nullopt;
  const rocksdb::IOStatus asked = files->GetFreeSpace(FolderOnVolume(dir), kPlain, &bytes, nullptr);
  if (!asked.ok()) return std::nullopt;
  return bytes;
}

std::optional<DiskRoom> MeasureRoom(rocksdb::FileSystem* files, const std::string& dir,
                                    uint64_t volume_bytes) {
  const std::optional<uint64_t> before = MeasureFreeBytes(files, dir);
  const std::optional<uint64_t> own = OwnBytes(dir), all = VolumeBytes(dir);
  const std::optional<uint64_t> after = MeasureFreeBytes(files, dir);
  if (!before.has_value() || !own.has_value() || !all.has_value() || !after.has_value()) {
    return std::nullopt;
  }
  // Take the smaller of two measurements of the free bytes: if a file was created or deleted
  // between them, its bytes must not count both as used and as free.
  return DiskRoom{*own, std::min(*before, *after), volume_bytes > 0 ? volume_bytes : *all};
}

namespace {

// Returns the upper bound of the size of all files of the database.
uint64_t FilesBytesOf(rocksdb::FileSystem* files, const std::string& dir) {
  DiskRoom room;
  room.free_bytes = MeasureFreeBytes(files, dir).value_or(std::numeric_limits<uint64_t>::max());
  // If the volume is large, do not count the files: counting may be slow, and more space makes no
  // difference.
  if (room.FilesBytes() < kTablesToChoose * kTableBytes) {
    room = MeasureRoom(files, dir).value_or(room);
  }
  return room.FilesBytes();
}

}  // namespace

rocksdb::ReadOptions VerifiedReads() {
  rocksdb::ReadOptions options;
  options.verify_checksums = true;
  options.fill_cache = false;
  return options;
}

absl::Status Database::Open(const std::string& dir, Mode mode, std::unique_ptr<Database>* out,
                            const DiskTierOptions& tier) {
  // Check the entries only at the first opening: after the start, only the store's own user could
  // plant a link or a pipe.
  const bool is_first = mode == Mode::kOwn || mode == Mode::kAsIs || mode == Mode::kLook;
  if (absl::Status found = is_first ? CheckEntries(dir) : absl::OkStatus(); !found.ok()) {
    return found;
  }
  std::unique_ptr<Database> database(new Database);
  const std::string path = DatabasePath(dir);
  rocksdb::Env* const env = tier.env != nullptr ? tier.env : rocksdb::Env::Default();
  const uint64_t files_bytes = FilesBytesOf(env->GetFileSystem().get(), dir);
  rocksdb::DBOptions options = DatabaseOptions(mode, tier, files_bytes);
  const auto log = std::make_shared<DatabaseLog>(tier.warnings);
  options.info_log = log;
  database->files_ = std::make_shared<RocksFileSystem>(env->GetFileSystem());
  database->env_ = rocksdb::NewCompositeEnv(database->files_);
  options.env = database->env_.get();
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  for (int i = 0; i < kFamilies; ++i) {
    families.emplace_back(kFamilyNames[i], FamilyOptions(static_cast<Family>(i), files_bytes));
  }
  rocksdb::Status status;
  if (mode == Mode::kOwn || mode == Mode::kOwnAgain || mode == Mode::kOwnToErase) {
    status = database->OpenOrRepair(dir, mode, options, families, tier);
  } else if (mode == Mode::kAsIs) {
    status = rocksdb::DB::Open(options, path, families, &database->handles_, &database->db_);
  } else {
    if (mode == Mode::kServe) {
      database->lock_ = std::make_unique<FolderLock>(database->files_.get(), path);
      status = database->lock_->status();
    }
    if (status.ok()) {
      status = rocksdb::DB::OpenForReadOnly(options, path, families, &database->handles_,
                                            &database->db_);
    }
  }
  if (!status.ok()) return CannotOpen(dir, status);
  assert(database->db_ != nullptr && database->handles_.size() == kFamilies);
  // DiskTier takes a database with a reserve file for one that may be written.
  assert((database->reserve_ != nullptr) ==
         (mode == Mode::kOwn || mode == Mode::kOwnAgain || mode == Mode::kOwnToErase));
  database->cut_logs_ = log->dropped();
  if (mode == Mode::kServe && !database->cut_logs_.empty()) {
    return absl::DataLossError(database->cut_logs_[0]);
  }
  *out = std::move(database);
  return absl::OkStatus();
}

namespace {

// Moves the damaged database aside, and creates an empty folder for a new database.
rocksdb::Status StartEmptyDatabase(rocksdb::FileSystem* files, const std::string& dir,
                                   const std::string& why, std::vector<std::string>* lines) {
  const std::string path = DatabasePath(dir);
  const FolderLock lock(files, path);
  if (!lock.status().ok()) return lock.status();
  const absl::Status aside = SetAside(dir, why, lines);
  if (!aside.ok()) return rocksdb::Status::IOError(aside.ToString());
  mkdir(path.c_str(), kPrivateFolder);
  return rocksdb::Status::OK();
}

}  // namespace

rocksdb::Status Database::OpenOrRepair(const std::string& dir, Mode mode,
                                       rocksdb::DBOptions options,
                                       std::vector<rocksdb::ColumnFamilyDescriptor> families,
                                       const DiskTierOptions& tier) {
  const bool may_repair = mode == Mode::kOwn;
  const std::string path = DatabasePath(dir);
  mkdir(path.c_str(), kPrivateFolder);
  reserve_ = std::make_unique<Reserve>(files_.get(), dir);
  const auto settle_logs = [&]() -> rocksdb::Status {
    // RocksDB takes this lock itself when it opens the database
    const FolderLock lock(files_.get(), path);
    if (!lock.status().ok()) return lock.status();
    uint64_t log_bytes = 0;
    const rocksdb::IOStatus settled = SettleLogs(files_.get(), path, &log_bytes);
    // Make the buffers so large that all log entries fit into memory, because a start must not
    // write a table for which there may be no space. The limit of the logs bounds this memory.
    for (rocksdb::ColumnFamilyDescriptor& family : families) {
      family.options.write_buffer_size = kWriteBufferBytes + kMemoryPerLogByte * log_bytes;
    }
    return settled;
  };
  // On a full disk, prevent compactions: they would start when the database is opened, and use up
  // the reserved space.
  const auto stop_compactions = [&] {
    compacts_ = false;
    for (auto& family : families) family.options.disable_auto_compactions = true;
  };
  if (mode == Mode::kOwnToErase) stop_compactions();
  const auto open = [&] {
    handles_.clear();
    // Refuse a database without CURRENT, for which RocksDB would create an empty database.
    assert(db_ == nullptr);  // otherwise the open database would be lost without being closed
    if (absl::IsDataLoss(CheckHasDatabase(dir))) {
      return rocksdb::Status::Corruption("the database's file CURRENT is missing");
    }
    rocksdb::Status opened = rocksdb::DB::Open(options, path, families, &handles_, &db_);
    if (!absl::IsResourceExhausted(FromRocks(opened, "")) || !reserve_->GiveUp()) return opened;
    stop_compactions();
    return rocksdb::DB::Open(options, path, families, &handles_, &db_);
  };
  rocksdb::Status status;
  DamageConfirmation confirmation(dir, tier.wait, tier.warnings);
  do {
    status = settle_logs();
    if (status.ok()) status = open();
  } while (may_repair && OpensAgain(status, &confirmation));
  if (may_repair && IsDamage(status)) {
    if (!confirmation.confirmed()) return Misread(path, status.ToString());
    status = Repair(dir, status.ToString(), &options, families,
                    DamageConfirmation(dir, tier.wait, tier.warnings), open);
  }
  if (status.ok()) mode == Mode::kOwnToErase ? reserve_->MakeLater() : reserve_->MakeFile();
  return status;
}

rocksdb::Status Database::Repair(const std::string& dir, const std::string& why,
                                 rocksdb::DBOptions* options,
                                 const std::vector<rocksdb::ColumnFamilyDescriptor>& families,
                                 DamageConfirmation confirmation,
                                 absl::FunctionRef<rocksdb::Status()> open) {
  const std::string path = DatabasePath(dir);
  assert(db_ == nullptr && recovery_files_ == nullptr);
  recovery_files_ = std::make_shared<RecoveryFileSystem>(files_);
  recovery_env_ = rocksdb::NewCompositeEnv(recovery_files_);
  options->env = recovery_env_.get();
  options->paranoid_checks = false;  // an unreadable table then loses only its own contents
  bool went_back = false;
  rocksdb::Status status;
  do {
    recovery_files_->Begin();
    status = open();
    if (IsDamage(status) && recovery_files_->failure().empty()) {
      rocksdb::Log(rocksdb::InfoLogLevel::WARN_LEVEL, options->info_log,
                   "the database is damaged; RocksDB repairs it, which may take minutes: %s",
                   why.c_str());
      const absl::Status recovered = RecoverInChild(*options, path, families, *recovery_files_);
      if (absl::IsUnavailable(recovered)) return rocksdb::Status::IOError(recovered.ToString());
      if (absl::IsAborted(recovered)) status = Misread(path, recovered.message());
      went_back = went_back || recovered.ok();
      if (recovered.ok()) status = open();
    }
    if (const std::string failure = recovery_files_->failure(); !failure.empty()) {
      Close();  // data that could not be read may be missing
      status = Misread(path, failure);
    }
    recovery_files_->End();
  } while (OpensAgain(status, &confirmation));
  if (status.ok() && went_back) {
    found_.push_back(absl::StrCat(
        "the manifest of the database is damaged; RocksDB returned to the newest complete state: ",
        why));
  }
  if (!IsDamage(status)) return status;
  if (!confirmation.confirmed()) return Misread(path, status.ToString());
  status = StartEmptyDatabase(files_.get(), dir, why, &found_);
  return status.ok() ? open() : status;
}

absl::Status Database::TryDisk(const std::string& dir, const DiskTierOptions& options,
                               bool flushes) {
  rocksdb::Env* const env = options.env != nullptr ? options.env : rocksdb::Env::Default();
  rocksdb::FileSystem* const files = env->GetFileSystem().get();
  const std::string path = absl::StrCat(dir, kTablesFolder, "/try");
  uint64_t room = 0, needed = flushes ? kReserveBytes : kReserveBytes / 4;
  std::unique_ptr<rocksdb::FSWritableFile> file;
  rocksdb::IOStatus status = files->GetFreeSpace(dir, kPlain, &room, nullptr);
  for (const std::string& log : LogsIn(files, DatabasePath(dir))) {
    uint64_t bytes = 0;
    if (flushes && files->GetFileSize(log, kPlain, &bytes, nullptr).ok()) needed += bytes;
  }
  if (status.ok() && room < needed) {
    status = rocksdb::IOStatus::NoSpace("No space left on device");
  }
  if (status.ok()) status = files->NewWritableFile(path, rocksdb::FileOptions(), &file, nullptr);
  if (status.ok()) status = file->Append("try", kPlain, nullptr);
  if (status.ok()) status = file->Sync(kPlain, nullptr);
  if (status.ok()) status = SyncFolder(files, DatabasePath(dir));
  if (file != nullptr) {
    file->Close(kPlain, nullptr).PermitUncheckedError();
    files->DeleteFile(path, kPlain, nullptr).PermitUncheckedError();
  }
  return FromRocks(status, "the disk still fails");
}

void Database::Close() {
  if (db_ == nullptr) return;
  assert(handles_.size() == kFamilies);
  for (rocksdb::ColumnFamilyHandle* handle : handles_) db_->DestroyColumnFamilyHandle(handle);
  handles_.clear();
  db_->Close().PermitUncheckedError();
  delete db_;
  db_ = nullptr;
}

Database::~Database() { Close(); }

}  // namespace hearth
