#include "cache_store/disk/repair/repair_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache_store/base/secret.h"
#include "cache_store/disk/promises/promises.h"

namespace hearth {
namespace {

bool IsNameTaken(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

// A file's bytes, or a folder's names.
absl::Status SyncAt(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  const bool is_synced = fd >= 0 && ::fsync(fd) == 0;
  const int error = errno;
  if (fd >= 0) ::close(fd);
  if (is_synced) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(path, ": ", std::strerror(error)));
}

absl::Status Rename(const std::string& from, const std::string& to, unsigned flags = 0) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0) {
    return absl::OkStatus();
  }
  return absl::UnavailableError(absl::StrCat(from, " to ", to, ": ", std::strerror(errno)));
}

std::string WithoutSlash(const std::string& folder) {
  return std::filesystem::path(folder + "/.").parent_path().string();
}

}  // namespace

RepairFolder::RepairFolder(std::string dir, std::string to)
    : dir_(std::move(dir)),
      to_(std::move(to)),
      path_(to_.empty() ? dir_ + "/repair.tmp" : WithoutSlash(to_) + ".repairing") {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

RepairFolder::~RepairFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

// Root repairs for the store's user.
absl::Status RepairFolder::GiveToOwner() const {
  struct stat like {};
  if (::geteuid() != 0 || ::stat((dir_ + "/db").c_str(), &like) != 0) return absl::OkStatus();
  std::vector<std::string> paths = {path_};
  std::error_code error;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path_, error)) {
    paths.push_back(entry.path().string());
  }
  if (error) return absl::UnavailableError(absl::StrCat(path_, ": ", error.message()));
  for (const std::string& path : paths) {
    if (::lchown(path.c_str(), like.st_uid, like.st_gid) == 0) continue;
    return absl::UnavailableError(
        absl::StrCat(path, " cannot be given to user ", like.st_uid, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::Status RepairFolder::Make() const {
  struct stat old {};
  const bool is_there = ::stat((dir_ + "/db").c_str(), &old) == 0;
  if (to_.empty() && is_there && ::geteuid() != 0 && ::geteuid() != old.st_uid) {
    return absl::FailedPreconditionError(absl::StrCat(dir_, "/db belongs to user ", old.st_uid,
                                                      ": repair it as that user, or as root"));
  }
  if (::mkdir(path_.c_str(), 0700) != 0) {
    const std::string text = absl::StrCat(path_, ": ", std::strerror(errno));
    return errno == ENOSPC ? absl::ResourceExhaustedError(text)
                           : absl::FailedPreconditionError(text);
  }
  if (!to_.empty()) return absl::OkStatus();
  const std::string one = path_ + "/one", other = path_ + "/other";
  ::mkdir(one.c_str(), 0700);
  ::mkdir(other.c_str(), 0700);
  const bool can_exchange = Rename(one, other, RENAME_EXCHANGE).ok();
  ::rmdir(one.c_str());
  ::rmdir(other.c_str());
  if (can_exchange) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(dir_,
                   ": its file system cannot exchange two folders at once; repair into a new "
                   "folder with --to, and use that"));
}

bool RepairFolder::CanLink(const std::string& file) const {
  const std::string probe = path_ + "/probe";
  const bool can = ::link(file.c_str(), probe.c_str()) == 0;
  ::unlink(probe.c_str());
  return can;
}

absl::StatusOr<std::string> RepairFolder::Put(const Progress& progress) const {
  if (absl::Status given = GiveToOwner(); !given.ok()) return given;
  if (absl::Status synced = SyncAt(path_); !synced.ok()) return synced;
  return to_.empty() ? PutInPlace(progress) : PutAt(progress);
}

absl::StatusOr<std::string> RepairFolder::PutInPlace(const Progress& progress) const {
  int number = 1;
  while (IsNameTaken(absl::StrCat(dir_, "/db.damaged-", number))) ++number;
  // Until the exchange it is the name of the new one.
  const std::string kept = absl::StrCat(dir_, "/db.damaged-", number);
  progress("naming the new database");
  absl::Status status = Rename(path_ + "/db", kept);
  if (!status.ok()) return status;
  status = SyncAt(dir_);
  if (status.ok()) progress("exchanging the databases");
  if (status.ok()) status = Rename(dir_ + "/db", kept, RENAME_EXCHANGE);
  if (!status.ok()) {
    // Back, to be removed: it is no damaged database.
    Rename(kept, path_ + "/db").IgnoreError();
    return status;
  }
  progress("keeping the damaged database");
  // Its tables are older than what the new database knows.
  if (IsNameTaken(dir_ + "/lost")) Rename(dir_ + "/lost", kept + "/lost").IgnoreError();
  SyncAt(dir_).IgnoreError();  // exchanged they are, whatever this says
  return kept;
}

absl::StatusOr<std::string> RepairFolder::PutAt(const Progress& progress) const {
  if (IsNameTaken(dir_ + "/secret")) {
    const absl::StatusOr<std::string> secret = ReadSecret(dir_ + "/secret");
    if (!secret.ok()) return secret.status();
    if (absl::Status copied = CopySecret(*secret, path_ + "/secret"); !copied.ok()) return copied;
  }
  // The new folder's first start reports promises that it does not keep.
  const std::string promises = absl::StrCat("/", kPromisesFile);
  std::error_code error;
  if (IsNameTaken(dir_ + promises)) {
    std::filesystem::copy_file(dir_ + promises, path_ + promises, error);
    if (error) return absl::UnavailableError(absl::StrCat(path_, promises, ": ", error.message()));
    if (absl::Status synced = SyncAt(path_ + promises); !synced.ok()) return synced;
  }
  progress("naming the new folder");
  if (absl::Status moved = Rename(path_, to_); !moved.ok()) return moved;
  const std::string parent = std::filesystem::path(path_).parent_path().string();
  if (absl::Status synced = SyncAt(parent.empty() ? "." : parent); !synced.ok()) return synced;
  return dir_ + "/db";
}

}  // namespace hearth
