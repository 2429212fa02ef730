#include "cache_store/disk/disk_tier_backup.h"

#include <rocksdb/utilities/backup_engine.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cache_store/base/secret.h"
#include "cache_store/disk/data_folder.h"
#include "cache_store/disk/disk_tier_load.h"
#include "cache_store/disk/point_count.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

absl::Status Refuse(const std::string& path, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(path, why));
}

bool IsBackup(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path + "/meta", error);
}

rocksdb::BackupEngineOptions EngineOptions(const std::string& path) {
  rocksdb::BackupEngineOptions options(path);
  options.share_table_files = true;
  options.share_files_with_checksum = true;
  options.sync = true;
  return options;
}

// Creates the backup folder, or checks that an existing folder holds backups of the same store.
absl::Status PrepareTarget(const std::string& to, const std::string& secret) {
  if (IsEmptyFolder(to)) {
    // Parent folders must exist, as for a data folder.
    if (mkdir(to.c_str(), 0700) != 0 && errno != EEXIST) {
      return Refuse(to, absl::StrCat(": ", std::strerror(errno)));
    }
    return absl::OkStatus();
  }
  if (!IsBackup(to)) return Refuse(to, " is neither empty nor a backup; name another folder");
  // Check for links and pipes, because RocksDB will write and delete files in the folder.
  if (absl::Status found = CheckTree(to, /*follows_links=*/false); !found.ok()) return found;
  if (secret.empty() || !fs::exists(to + "/secret")) return absl::OkStatus();
  const absl::StatusOr<std::string> theirs = ReadSecret(to + "/secret");
  if (!theirs.ok()) return theirs.status();
  if (*theirs != secret) return Refuse(to, " holds backups of another store; name another folder");
  return absl::OkStatus();
}

uint64_t BytesUnder(const std::string& folder) {
  uint64_t sum = 0;
  std::error_code error;
  for (const auto& entry : fs::recursive_directory_iterator(folder, error)) {
    if (entry.is_regular_file(error)) sum += entry.file_size(error);
  }
  return sum;
}

// Returns a text that names the other backups of the folder, which the operator can try.
std::string OthersText(const std::vector<rocksdb::BackupInfo>& infos, uint32_t id) {
  std::vector<uint32_t> others;
  for (const rocksdb::BackupInfo& info : infos) {
    if (info.backup_id != id) others.push_back(info.backup_id);
  }
  if (others.empty()) return "; the folder has no other backup";
  return absl::StrCat("; other backups to try: --id ", absl::StrJoin(others, ", --id "));
}

// Returns a description of the damage, with the path of the damaged backup file if RocksDB's text
// contains it.
std::string DamageText(const rocksdb::Status& status, const std::string& from) {
  const std::string text = status.ToString();
  const size_t begin = text.find(from + "/");
  if (begin == text.npos) return "its bytes differ from those written";
  const std::string path = text.substr(begin, text.find_first_of(" ;,", begin) - begin);
  std::error_code error;
  return fs::exists(path, error) ? absl::StrCat(path, " differs from what was written")
                                 : absl::StrCat(path, " is missing");
}

// Restores the chosen backup to folder `to`, verifying every byte. Returns the backup's number.
absl::StatusOr<uint32_t> Extract(const std::string& from, uint32_t id, const std::string& to) {
  rocksdb::BackupEngineReadOnly* opened = nullptr;
  rocksdb::Status status =
      rocksdb::BackupEngineReadOnly::Open(rocksdb::Env::Default(), EngineOptions(from), &opened);
  if (!status.ok()) return FromRocks(status, absl::StrCat("backup ", from));
  const std::unique_ptr<rocksdb::BackupEngineReadOnly> engine(opened);
  std::vector<rocksdb::BackupInfo> infos;
  std::vector<rocksdb::BackupID> corrupt;
  engine->GetBackupInfo(&infos);
  engine->GetCorruptedBackups(&corrupt);
  if (id == 0) {
    for (const rocksdb::BackupInfo& info : infos) id = std::max(id, info.backup_id);
    for (const rocksdb::BackupID number : corrupt) id = std::max(id, number);
    if (id == 0) return Refuse(from, " holds no backup");
  }
  status = engine->RestoreDBFromBackup(rocksdb::RestoreOptions(), id, to, to);
  if (status.IsNotFound()) return Refuse(from, absl::StrCat(" holds no backup ", id));
  if (status.IsNoSpace()) return FromRocks(status, absl::StrCat("restoring to ", to));
  if (!status.ok()) {
    return absl::DataLossError(absl::StrCat("backup ", id, " in ", from, " is damaged: ",
                                            DamageText(status, from), OthersText(infos, id)));
  }
  return id;
}

}  // namespace

absl::StatusOr<BackupReport> BackUpDatabase(const Database& db, const std::string& dir,
                                            const std::string& folder) {
  // RocksDB needs an absolute path.
  const std::string to = fs::absolute(folder).lexically_normal().string();
  std::string secret;
  if (access((dir + "/secret").c_str(), F_OK) == 0) {
    absl::StatusOr<std::string> read = ReadSecret(dir + "/secret");
    if (!read.ok()) return read.status();
    secret = *std::move(read);
  }
  if (absl::Status status = PrepareTarget(to, secret); !status.ok()) return status;
  const uint64_t before = BytesUnder(to);
  rocksdb::BackupEngine* opened = nullptr;
  rocksdb::BackupEngineOptions options = EngineOptions(to);
  // All background writes share this rate limiter.
  options.backup_rate_limiter = db->GetDBOptions().rate_limiter;
  rocksdb::Status status = rocksdb::BackupEngine::Open(rocksdb::Env::Default(), options, &opened);
  if (!status.ok()) return FromRocks(status, absl::StrCat("backup ", to));
  const std::unique_ptr<rocksdb::BackupEngine> engine(opened);
  // Copy the secret first, because a backup without the secret is useless.
  if (!secret.empty()) {
    if (absl::Status kept = CopySecret(secret, to + "/secret"); !kept.ok()) return kept;
  }
  rocksdb::BackupID id = 0;
  status = engine->CreateNewBackup(rocksdb::CreateBackupOptions(), db.get(), &id);
  if (!status.ok()) return FromRocks(status, absl::StrCat("backup to ", to));
  assert(id > 0);  // 0 means the newest backup in RestoreDataDir()
  BackupReport report;
  const uint64_t after = BytesUnder(to);
  report.id = id;
  report.has_secret = !secret.empty();
  rocksdb::BackupInfo info;
  status = engine->GetBackupInfo(id, &info);
  if (status.ok()) report.bytes = info.size;
  // Do not count the files that the backup engine adds.
  report.new_bytes = std::min(after - std::min(before, after), report.bytes);
  if (status.ok()) status = engine->PurgeOldBackups(kKeptBackups);
  if (!status.ok()) return FromRocks(status, absl::StrCat("backup to ", to));
  return report;
}

absl::StatusOr<BackupReport> BackUpDataDir(const std::string& dir, const std::string& to) {
  if (absl::Status found = CheckCanBeOpened(dir); !found.ok()) return found;
  const PointCount::Noted noted = PointCount::Read(dir);
  std::unique_ptr<Database> db;
  DiskTierOptions options;
  options.background_bytes_per_s = 0;  // no rate limit: the folder has no other user
  // Open the database without changing it, so that programs that could open it before can also open
  // it and the backup afterwards.
  const absl::Status status = Database::Open(dir, Database::Mode::kAsIs, &db, options);
  if (!status.ok()) return status;
  const absl::StatusOr<DiskContents> contents = LoadContents(*db, noted, ThisBoot(), nullptr);
  if (!contents.ok()) return contents.status();
  std::vector<std::string> damage = contents->damage;
  // Refuse missing points even after a reboot: a start accepts the loss of unsynced data then, but
  // the missing points may have been synced.
  if (damage.empty() && contents->manifests.size() < noted.points) damage = db->cut_logs();
  if (!damage.empty()) {
    return absl::DataLossError(
        absl::StrCat("no backup was made, because data is damaged: ", damage[0],
                     "; start the store to drop the lost entries"));
  }
  return BackUpDatabase(*db, dir, to);
}

absl::StatusOr<RestoreReport> RestoreDataDir(const std::string& from, const std::string& dir,
                                             uint32_t id) {
  if (!IsBackup(from)) return Refuse(from, " is not a backup");
  if (absl::Status found = CheckTree(from, /*follows_links=*/true); !found.ok()) return found;
  if (absl::Status is_free = CheckIsFree(dir); !is_free.ok()) return is_free;
  // Restore to a temporary folder next to `dir` and rename it, so that `dir` never exists
  // incompletely.
  const std::string part = absl::StrCat(fs::path(dir + "/.").parent_path().string(), ".restoring");
  std::error_code error;
  fs::remove_all(part, error);
  if (mkdir(part.c_str(), 0700) != 0) {
    return Refuse(part, absl::StrCat(": ", std::strerror(errno)));
  }
  const auto restore = [&]() -> absl::StatusOr<RestoreReport> {
    RestoreReport report;
    absl::StatusOr<uint32_t> extracted = Extract(from, id, DatabasePath(part));
    if (!extracted.ok()) return extracted.status();
    report.id = *extracted;
    if (fs::exists(from + "/secret", error)) {
      const absl::StatusOr<std::string> secret = ReadSecret(from + "/secret");
      if (!secret.ok()) return secret.status();
      if (absl::Status kept = CopySecret(*secret, part + "/secret"); !kept.ok()) return kept;
      report.has_secret = true;
    }
    absl::StatusOr<VerifyReport> verified = VerifyDataDir(part);
    if (!verified.ok()) return verified.status();
    report.verified = *std::move(verified);
    fs::rename(part, dir, error);
    if (error) return Refuse(dir, absl::StrCat(": ", error.message()));
    return report;
  };
  absl::StatusOr<RestoreReport> report = restore();
  if (!report.ok()) fs::remove_all(part, error);
  return report;
}

}  // namespace hearth
