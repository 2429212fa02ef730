#include "services/hearthctl/new_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cassert>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

absl::Status Exists(const std::string& path) {
  return absl::AlreadyExistsError(absl::StrCat(path, " exists; --force replaces it"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<NewFile>> NewFile::Create(const std::string& path, bool replaces) {
  struct stat info;
  if (!replaces && ::lstat(path.c_str(), &info) == 0) return Exists(path);
  std::string temporary = path + ".partial-XXXXXX";
  const int file = ::mkstemp(temporary.data());
  if (file < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write next to ", path));
  return std::unique_ptr<NewFile>(new NewFile(path, std::move(temporary), file, replaces));
}

NewFile::NewFile(std::string path, std::string temporary, int file, bool replaces)
    : path_(std::move(path)), temporary_(std::move(temporary)), file_(file), replaces_(replaces) {}

NewFile::~NewFile() {
  ::close(file_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

absl::Status NewFile::WriteAt(uint64_t offset, absl::string_view data) {
  while (!data.empty()) {
    const ssize_t count = ::pwrite(file_, data.data(), data.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path_));
    data.remove_prefix(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
  return absl::OkStatus();
}

absl::Status NewFile::Commit(mode_t mode) {
  assert(!temporary_.empty());  // Commit is called only once
  // link() fails if another process has created a file at this path; rename() would replace that
  // file.
  const bool named = ::fchmod(file_, mode) == 0 && ::fsync(file_) == 0 &&
                     (replaces_ ? std::rename(temporary_.c_str(), path_.c_str())
                                : ::link(temporary_.c_str(), path_.c_str())) == 0;
  if (!named && errno == EEXIST) return Exists(path_);
  if (!named) return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path_));
  if (!replaces_) ::unlink(temporary_.c_str());
  temporary_.clear();
  return absl::OkStatus();
}

}  // namespace hearth
