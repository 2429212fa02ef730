#include <sys/statvfs.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cache_store/base/prompt_chain.h"
#include "cache_store/base/secret.h"
#include "cache_store/disk/data_folder.h"
#include "cache_store/disk/disk_tier_load.h"
#include "cache_store/disk/files/disk_tier_manifest.h"
#include "cache_store/disk/files/disk_tier_reserve.h"
#include "cache_store/disk/promises/disk_tier_promise_file.h"
#include "cache_store/disk/repair/disk_tier_rebuild.h"
#include "cache_store/disk/repair/repair.h"
#include "cache_store/disk/repair/repair_folder.h"
#include "cache_store/disk/repair/salvage.h"
#include "cache_store/disk/verify.h"
#include "proto/prefix_key.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

absl::Status RefuseRepair(absl::string_view path, absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat(path, why));
}

bool IsReadOnly(const std::string& dir) {
  struct statvfs info {};
  return ::statvfs(dir.c_str(), &info) == 0 && (info.f_flag & ST_RDONLY) != 0;
}

class Repair {
 public:
  Repair(const std::string& dir, const RepairOptions& options)
      : dir_(fs::path(dir + "/.").parent_path().string()),
        options_(options),
        salvage_(dir_, [this](const std::string& what) { Say(what); }) {}

  absl::StatusOr<RepairReport> Run() {
    if (absl::Status is_free = CheckIsFree(options_.to); !is_free.ok()) return is_free;
    if (absl::Status read = CheckPromises(); !read.ok()) return read;
    salvage_.ReadRecords();
    const auto version = salvage_.meta().find(kVersionKey);
    if (version != salvage_.meta().end()) {
      if (absl::Status read = CheckVersion(dir_, version->second); !read.ok()) return read;
    }
    salvage_.FindSlices(static_cast<uint64_t>(absl::ToUnixSeconds(options_.now)));
    ReportFiles();
    ReportPoints();
    report_.folder = options_.to.empty() ? dir_ : options_.to;
    if (IsHealthy()) {
      report_.was_healthy = true;
      // Of one that was killed behind the exchange.
      if (!options_.dry_run) const RepairFolder left(dir_, "");
      return std::move(report_);
    }
    if (absl::Status known = FindSecretCheck(); !known.ok()) return known;
    absl::Status done = options_.dry_run ? Estimate() : Rebuilt();
    if (!done.ok()) return done;
    return std::move(report_);
  }

 private:
  void Say(const std::string& what) const {
    if (options_.on_progress) options_.on_progress(what);
  }

  void Damaged(std::string line) {
    if (++report_.damaged_files <= RepairReport::kMaxNamed) {
      report_.damage.push_back(std::move(line));
    }
  }

  // Promises of a newer version, or unreadable ones, would count as none, and dropped points would
  // come back.
  absl::Status CheckPromises() const {
    const std::shared_ptr<rocksdb::FileSystem> files = rocksdb::FileSystem::Default();
    if (absl::Status read = CheckPromisesVersion(files.get(), dir_); !read.ok()) return read;
    PromiseBook book;
    std::vector<std::string> damage;
    const rocksdb::Status read = LookAtPromises(files.get(), dir_, ThisBoot(), &book, &damage);
    if (read.ok() || read.IsNotFound() || read.IsPathNotFound()) return absl::OkStatus();
    return RefuseRepair(
        PromisesPath(dir_),
        absl::StrCat(" cannot be read: ", read.ToString(),
                     "; it says what was dropped: make it readable, or move it away to repair "
                     "without it, and then what was dropped may come back"));
  }

  void ReportFiles() {
    for (const SalvageFile& file : salvage_.files()) {
      if (file.was_lost) {
        has_losses_ = has_lost_files_ = true;
        continue;
      }
      if (file.damage.places == 0) continue;
      (file.kind == SalvageFile::Kind::kLog ? has_losses_ : has_damage_) = true;
      const uint64_t more = file.damage.places - 1;
      Damaged(absl::StrCat(file.path, ": ", file.damage.first,
                           more > 0 ? absl::StrCat(", and ", more, " more places") : ""));
    }
    const std::string path = DatabasePath(dir_);
    const RawFile current(path + "/CURRENT");
    std::string name = current.Read(0, current.size());
    const bool is_named = absl::StartsWith(name, kManifestPrefix) && absl::EndsWith(name, "\n");
    if (is_named) name.pop_back();
    const RawFile manifest(absl::StrCat(path, "/", name));
    const std::string bytes = manifest.Read(0, manifest.size());
    const uint64_t whole = WholeBytes(bytes);
    if (is_named && whole > 0 && whole == bytes.size()) return;
    // A write that failed leaves a part of a record, and ends the copy where that began.
    const RawFile copy(absl::StrCat(path, "/", name, kCopySuffix));
    if (is_named && whole > 0 && copy.size() == whole && EndsInPart(bytes, whole)) return;
    has_damage_ = true;
    Damaged(is_named ? absl::StrCat(path, "/", name, bytes.empty() ? ": gone" : ": damaged")
                     : absl::StrCat(path, "/CURRENT: gone or damaged"));
  }

  void Lost(std::string line) {
    if (++report_.lost_points <= RepairReport::kMaxNamed) report_.lost.push_back(std::move(line));
  }

  void ReportPoints() {
    for (const auto& [number, point] : salvage_.points()) {
      if (point.is_expired) ++report_.expired_points;
      if (point.IsKept()) ++report_.restore_points;
      if (point.IsKept() && point.is_unnamed) ++report_.unnamed_points;
      if (point.problem.empty()) continue;
      const std::string id = salvage_.IdOf(point);
      Lost(absl::StrCat("restore point ", number, " (", point.record.manifest.token_count,
                        " tokens, tenant ", point.record.tenant, id.empty() ? "" : ", id " + id,
                        "): ", point.problem));
    }
    for (const uint64_t number : salvage_.unreadable()) {
      Lost(absl::StrCat("restore point ", number, ": its record is damaged"));
    }
    for (const Promise& promise : salvage_.vanished()) {
      Lost(absl::StrCat("restore point ", promise.manifest, " (", promise.tokens, " tokens, id ",
                        DigestHex(promise.id), "): it was acknowledged, and no file has it"));
    }
    for (const auto& [number, object] : salvage_.objects()) {
      if (!object.is_kept) continue;
      ++report_.objects;
      report_.slices += object.places.size();
      for (const SalvagedObject::Place& place : object.places) report_.slice_bytes += place.bytes;
    }
  }

  // Opened with RocksDB only where every file of it is what was written: it asserts otherwise.
  bool IsHealthy() {
    if (has_damage_) return false;
    Say("checking the folder as a store would see it");
    const absl::StatusOr<VerifyReport> verified = VerifyDataDir(dir_);
    if (!verified.ok() || !verified->is_whole()) return false;
    if (verified->ok() && !has_lost_files_) {
      // The bytes behind the torn end of a log are no damage where the machine stopped: neither a
      // start nor this reports them.
      report_.lost.clear();
      report_.damage.clear();
      report_.lost_points = report_.damaged_files = 0;
      report_.restore_points = verified->restore_points;
      return true;
    }
    if (!has_losses_ && verified->missing_points == 0) return true;
    // Of what was lost nothing is left that the folder does not have.
    std::unique_ptr<Database> db;
    if (!Database::Open(dir_, Database::Mode::kLook, &db).ok()) return false;
    const absl::StatusOr<DiskContents> contents = LoadContents(*db);
    if (!contents.ok()) return false;
    absl::flat_hash_set<uint64_t> shown;
    for (const ManifestNames& manifest : contents->manifests) shown.insert(manifest.number);
    for (const auto& [number, point] : salvage_.points()) {
      if (point.IsKept() && shown.count(number) == 0) return false;
    }
    return true;
  }

  absl::Status FindSecretCheck() {
    const bool is_given = !options_.secret_file.empty();
    const std::string file = is_given ? options_.secret_file : dir_ + "/secret";
    const absl::StatusOr<std::string> secret = ReadSecret(file);
    if (is_given && !secret.ok()) return secret.status();
    report_.has_secret = secret.ok();
    const auto kept = salvage_.meta().find(kSecretCheckKey);
    if (kept != salvage_.meta().end()) {
      secret_check_ = kept->second;
      if (!is_given || SecretCheck(*secret) == secret_check_) return absl::OkStatus();
      return RefuseRepair(file, absl::StrCat(" is not the secret that ", dir_,
                                             " was written with; pass the one that is"));
    }
    if (secret.ok() && IsSecretOfPoints(*secret)) {
      secret_check_ = SecretCheck(*secret);
      return absl::OkStatus();
    }
    if (report_.restore_points == 0) return absl::OkStatus();
    return RefuseRepair(
        dir_,
        absl::StrCat(": the record that tells its secret from another is lost, and ",
                     secret.ok() ? file + " is another" : std::string(secret.status().message()),
                     ": pass --secret-file FILE, the secret that the store was started with"));
  }

  // Whether the keys of the kept points follow from the secret.
  bool IsSecretOfPoints(const std::string& secret) const {
    for (const auto& [number, point] : salvage_.points()) {
      if (!point.IsKept()) continue;
      const Manifest& manifest = point.record.manifest;
      const KvLayout layout = salvage_.FingerprintOf(point).Layout().value();
      const PromptChain chain = MakeChain(
          layout, RootKey(manifest.fingerprint, point.record.tenant, secret), manifest.token_ids,
          manifest.cuts, manifest.token_count, {&manifest.token_count, 1});
      const KeyedSegment* last = chain.EndingAt(manifest.token_count, layout.chunk_tokens);
      return last != nullptr && DigestHex(last->key) == salvage_.IdOf(point);
    }
    return true;
  }

  void Count(const RebuildBytes& bytes) {
    report_.copied_bytes = bytes.copied;
    report_.linked_bytes = bytes.linked;
  }

  absl::Status Estimate() {
    Count(BytesToRebuild(salvage_, options_.to.empty()));
    return absl::OkStatus();
  }

  absl::Status Rebuilt() {
    const RepairFolder part(dir_, options_.to);
    absl::Status status = part.Make();
    if (status.ok()) status = Build(part);
    if (status.ok()) status = CheckBuilt(part.path());
    if (status.ok()) {
      absl::StatusOr<std::string> old = part.Put([this](const std::string& what) { Say(what); });
      status = old.status();
      if (old.ok()) report_.old_database = *std::move(old);
    }
    if (status.ok()) return status;
    return absl::Status(status.code(), absl::StrCat(status.message(), "; ", dir_, " is as it was"));
  }

  static bool CanLink(const SalvagedFolder& salvage, const RepairFolder& part) {
    for (const SalvageFile& file : salvage.files()) {
      if (file.CanBeLinked()) return part.CanLink(file.path);
    }
    return false;
  }

  absl::Status Build(const RepairFolder& folder) {
    const std::string& part = folder.path();
    const bool can_link = CanLink(salvage_, folder);
    const RebuildBytes bytes = BytesToRebuild(salvage_, can_link);
    Count(bytes);
    // Records go through the log, and small slices: twice. A file's name, a table's index: little.
    const uint64_t needed = bytes.copied + bytes.copied / 8 + 2 * bytes.records + 4 * kReserveBytes;
    std::error_code error;
    const fs::space_info space = fs::space(part, error);
    if (!error && space.available < needed) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "the new database takes ", needed, " bytes at ", part, ", where ", space.available,
          " are free: make room, or repair into a folder elsewhere with --to"));
    }
    Say("making the new database");
    DiskTierOptions tier;
    tier.env = options_.env;
    tier.background_bytes_per_s = 0;  // nobody else uses it
    std::unique_ptr<Database> db;
    absl::Status status = Database::Open(part, Database::Mode::kOwn, &db, tier);
    if (status.ok()) status = SliceTables::Prepare(part);
    if (!status.ok()) return status;
    // Compacted or flushed files are to take no room.
    db->files()->LetGo(/*is_damaged=*/false).PermitUncheckedError();
    Rebuild rebuild(salvage_, *db, part, can_link, [this](const std::string& what) { Say(what); });
    status = rebuild.Run(secret_check_);
    if (absl::IsResourceExhausted(status)) {
      return absl::ResourceExhaustedError(absl::StrCat(
          status.message(), "; make room, or repair into a folder elsewhere with --to"));
    }
    return status;
  }

  absl::Status CheckBuilt(const std::string& part) const {
    Say("checking the new database");
    if (secret_check_.empty()) return absl::OkStatus();  // there is nothing in it
    const absl::StatusOr<VerifyReport> verified = VerifyDataDir(part);
    if (!verified.ok()) return verified.status();
    // Promised points that are lost are in the report; promises are copied when the folder is
    // named.
    if (!verified->is_whole()) return absl::DataLossError(verified->problems.back());
    if (verified->restore_points == report_.restore_points) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("of ", report_.restore_points, " restore points ",
                                            verified->restore_points, " were written"));
  }

  const std::string dir_;
  const RepairOptions& options_;
  SalvagedFolder salvage_;
  RepairReport report_;
  bool has_damage_ = false;      // where every file is to be whole
  bool has_losses_ = false;      // a log, or tables that a start gave up
  bool has_lost_files_ = false;  // the latter
  std::string secret_check_;
};

}  // namespace

absl::StatusOr<RepairReport> RepairDataDir(const std::string& dir, const RepairOptions& options) {
  if (absl::Status found = CheckIsDataFolder(dir); !found.ok()) return found;
  std::optional<FolderLock> lock;  // as a store has it
  // A disk that fails is often mounted so by the system. No store can have a folder there open.
  if (IsReadOnly(dir)) {
    if (options.to.empty() && !options.dry_run) {
      return RefuseRepair(dir,
                          ": its file system is read-only; repair into a new folder with --to");
    }
  } else if (const std::optional<pid_t> holder = FolderHolder(dir); holder.has_value()) {
    return RefuseRepair(dir, absl::StrCat(" is held by another process (its id is ", *holder,
                                          "): stop it, and repair then"));
  } else {
    lock.emplace(rocksdb::FileSystem::Default().get(), DatabasePath(dir));
    if (!lock->status().ok()) {
      return RefuseRepair(dir,
                          absl::StrCat(" cannot be locked, a process may have it open: stop it (",
                                       lock->status().ToString(), ")"));
    }
  }
  return Repair(dir, options).Run();
}

}  // namespace hearth
