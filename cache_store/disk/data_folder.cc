#include "cache_store/disk/data_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cache_store/base/regular_file.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

// Refuses a folder entry that exists and is not of `kind` (S_IFREG or S_IFDIR). If a link is in the
// place of the database, the error warns against deleting the link's target.
absl::Status CheckEntry(const std::string& path, mode_t kind) {
  struct stat is {};
  if (::lstat(path.c_str(), &is) != 0 || (is.st_mode & S_IFMT) == kind) return absl::OkStatus();
  const char* const advice =
      S_ISLNK(is.st_mode)
          ? ": do not delete the link's target; move it here in place of the link, or mount it here"
          : ": move it out of the folder";
  return absl::FailedPreconditionError(
      absl::StrCat(path, " must be ", FileKind(kind), "; it is ", FileKind(is.st_mode), advice));
}

}  // namespace

absl::Status CheckEntries(const std::string& dir) {
  for (const char* folder : {"/db", "/tables.tmp"}) {
    if (absl::Status found = CheckEntry(dir + folder, S_IFDIR); !found.ok()) return found;
  }
  for (const char* file : {"/points", "/reserve"}) {
    if (absl::Status found = CheckEntry(dir + file, S_IFREG); !found.ok()) return found;
  }
  return CheckTree(dir + "/db", /*follows_links=*/false);
}

absl::Status CheckTree(const std::string& folder, bool follows_links) {
  std::vector<fs::path> folders = {folder};
  while (!folders.empty()) {
    const fs::path path = std::move(folders.back());
    folders.pop_back();
    std::error_code error;
    fs::directory_iterator it(path, fs::directory_options::skip_permission_denied, error);
    for (const fs::directory_iterator end; !error && it != end; it.increment(error)) {
      std::error_code ignored;  // an entry that was deleted since counts as absent
      if (fs::is_directory(it->symlink_status(ignored))) folders.push_back(it->path());
      const fs::file_status is = follows_links ? it->status(ignored) : it->symlink_status(ignored);
      if (is.type() == fs::file_type::none || is.type() == fs::file_type::not_found ||
          fs::is_directory(is) || fs::is_regular_file(is)) {
        continue;
      }
      if (absl::Status found = CheckEntry(it->path(), S_IFREG); !found.ok()) return found;
    }
    if (error && error != std::errc::no_such_file_or_directory) {
      return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot list ", path.string()));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCanBeOpened(const std::string& dir) {
  if (absl::Status found = CheckEntries(dir); !found.ok()) return found;
  return CheckHasDatabase(dir);
}

absl::Status CheckHasDatabase(const std::string& dir) {
  std::error_code error;
  if (std::filesystem::exists(dir + "/db/CURRENT", error)) return absl::OkStatus();
  for (const auto& entry : std::filesystem::directory_iterator(dir + "/db", error)) {
    const std::string kind = entry.path().extension().string();
    if (kind != ".sst" && kind != ".log") continue;
    return absl::DataLossError(absl::StrCat(dir,
                                            "/db/CURRENT is missing; start the store: it repairs ",
                                            dir, ", or begins with an empty database"));
  }
  return absl::FailedPreconditionError(absl::StrCat(dir, " is not a data folder of a store"));
}

absl::Status CheckIsFree(const std::string& dir) {
  struct statx info {};
  if (::statx(AT_FDCWD, dir.c_str(), 0, STATX_BASIC_STATS, &info) == 0 &&
      (info.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(dir, " is a mount point; name a folder inside it"));
  }
  if (IsEmptyFolder(dir)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(dir, " is not empty; name an empty or a new folder"));
}

std::string MakePrivate(const std::string& dir) {
  struct stat info {};
  if (::stat(dir.c_str(), &info) != 0) return "";
  const mode_t taken = (info.st_mode & S_ISGID) != 0 ? S_IRWXO : S_IRWXG | S_IRWXO;
  const auto take = [&](const std::string& path) {
    struct stat is {};
    if (::lstat(path.c_str(), &is) != 0 || S_ISLNK(is.st_mode)) return;
    if (is.st_uid == ::geteuid() && (is.st_mode & taken) != 0) {
      ::chmod(path.c_str(), is.st_mode & 07777 & ~taken);
    }
  };
  std::string readable;
  for (const std::string& path : {dir, dir + "/db", dir + "/tables.tmp"}) {
    take(path);
    const bool is_open = ::stat(path.c_str(), &info) == 0 && (info.st_mode & S_IRWXO) != 0;
    if (!is_open || !readable.empty()) continue;
    readable = absl::StrCat(
        path, " can be read by every user of this machine (mode ",
        absl::Hex((info.st_mode >> 6 & 7) << 8 | (info.st_mode >> 3 & 7) << 4 | (info.st_mode & 7)),
        ", owned by user ", info.st_uid, ", while this process runs as user ", ::geteuid(),
        "); it contains prompts: run chmod o-rwx on it");
  }
  return readable;
}

bool IsEmptyFolder(const std::string& dir) {
  std::error_code error;
  return !fs::exists(dir, error) || (fs::is_directory(dir, error) && fs::is_empty(dir, error));
}

std::optional<pid_t> FolderHolder(const std::string& dir) {
  const int file = ::open((dir + "/db/LOCK").c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return std::nullopt;
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  const bool is_held = ::fcntl(file, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  ::close(file);
  if (!is_held) return std::nullopt;
  return lock.l_pid;
}

}  // namespace hearth
