#include "cache_store/disk/files/disk_tier_lost_folder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cache_store/disk/files/rocks_status.h"

namespace hearth {
namespace {

rocksdb::IOStatus CannotKeep(const std::string& path, const std::string& lost,
                             const rocksdb::IOStatus& why) {
  const std::string text =
      absl::StrCat(path, " cannot be kept in ", lost, ", and stays where it is: ", why.ToString());
  return why.IsNoSpace() ? rocksdb::IOStatus::NoSpace(text) : rocksdb::IOStatus::IOError(text);
}

// `*is_there`: under that name it is the same file.
rocksdb::IOStatus FreeName(rocksdb::FileSystem* files, const std::string& path,
                           const std::string& lost, std::string* free, bool* is_there) {
  rocksdb::IOStatus status = files->CreateDirIfMissing(lost, kPlain, nullptr);
  if (!status.ok()) return status;
  const std::string name = path.substr(path.find_last_of('/') + 1);
  const size_t ending = std::min(name.find_last_of('.'), name.size());
  *free = absl::StrCat(lost, "/", name);
  for (int number = 1;; ++number) {
    status = files->FileExists(*free, kPlain, nullptr);
    if (status.IsNotFound()) return rocksdb::IOStatus::OK();
    if (!status.ok()) return status;
    *is_there = false;
    files->AreFilesSame(path, *free, kPlain, is_there, nullptr).PermitUncheckedError();
    if (*is_there) return rocksdb::IOStatus::OK();
    *free = absl::StrCat(lost, "/", name.substr(0, ending), "-", number, name.substr(ending));
  }
}

}  // namespace

std::string LostFolderOf(const std::string& database) {
  return absl::StrCat(database.substr(0, database.find_last_of('/')), "/lost");
}

rocksdb::IOStatus MoveToLost(rocksdb::FileSystem* files, const std::string& path,
                             std::string* kept) {
  const std::string lost = LostFolderOf(path.substr(0, path.find_last_of('/')));
  std::string free;
  bool is_there = false;
  rocksdb::IOStatus status = FreeName(files, path, lost, &free, &is_there);
  // Of two names of one file a rename would leave both.
  if (status.ok()) {
    status = is_there ? files->DeleteFile(path, kPlain, nullptr)
                      : files->RenameFile(path, free, kPlain, nullptr);
  }
  if (!status.ok()) return CannotKeep(path, lost, status);
  if (kept != nullptr) *kept = free;
  return status;
}

rocksdb::IOStatus LinkToLost(rocksdb::FileSystem* files, const std::string& path,
                             std::string* kept) {
  const std::string lost = LostFolderOf(path.substr(0, path.find_last_of('/')));
  std::string free;
  bool is_there = false;
  rocksdb::IOStatus status = FreeName(files, path, lost, &free, &is_there);
  if (status.ok() && !is_there) status = files->LinkFile(path, free, kPlain, nullptr);
  if (!status.ok()) return CannotKeep(path, lost, status);
  if (kept != nullptr) *kept = free;
  return status;
}

}  // namespace hearth
