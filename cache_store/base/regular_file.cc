#include "cache_store/base/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

absl::Status NotRegular(const std::string& path, mode_t mode) {
  return absl::FailedPreconditionError(
      absl::StrCat(path, " must be a regular file; it is ", FileKind(mode)));
}

}  // namespace

const char* FileKind(mode_t mode) {
  if (S_ISREG(mode)) return "a regular file";
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISLNK(mode)) return "a symbolic link";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

absl::StatusOr<int> OpenRegularFile(const std::string& path, int flags, mode_t mode) {
  // O_NONBLOCK: otherwise opening a pipe would wait until another process opens the pipe's other
  // end.
  const int file = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, mode);
  struct stat info {};
  if (file < 0) {
    const int error = errno;
    const bool is_there = ::lstat(path.c_str(), &info) == 0;
    // These errors mean that the file is not regular: a symbolic link opened with O_NOFOLLOW, a
    // socket, a pipe without a reader, or a folder.
    if (is_there && !S_ISREG(info.st_mode) && (error == ELOOP || error == ENXIO || error == EISDIR))
      return NotRegular(path, info.st_mode);
    return absl::ErrnoToStatus(error, absl::StrCat("cannot open ", path));
  }
  if (::fstat(file, &info) == 0 && S_ISREG(info.st_mode)) return file;
  ::close(file);
  return NotRegular(path, info.st_mode);
}

absl::Status CheckIsRegular(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode)) return absl::OkStatus();
  return NotRegular(path, info.st_mode);
}

absl::StatusOr<std::string> ReadBoundedFile(const std::string& path, uint64_t max_bytes,
                                            bool pipes_too) {
  const auto fail = [&path](const auto&... why) {
    return absl::NotFoundError(absl::StrCat(path, why...));
  };
  // O_NONBLOCK: otherwise opening a pipe would wait until another process writes to it.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | (pipes_too ? 0 : O_NONBLOCK));
  if (fd < 0) return fail(" cannot be read (", std::strerror(errno), ")");
  const absl::Cleanup close_it = [fd] { close(fd); };
  struct stat info {};
  if (fstat(fd, &info) != 0 || (!pipes_too && !S_ISREG(info.st_mode))) {
    return fail(" is not a regular file");
  }
  std::string text(std::min<uint64_t>(info.st_size, max_bytes) + 1, '\0');
  size_t count = 0;
  for (ssize_t got = 1; got > 0; count += got) {
    if (count == text.size())
      text.resize(2 * count);  // the file is growing, or reports size 0 like files in /proc
    got = read(fd, text.data() + count, text.size() - count);
    if (got < 0) return fail(" cannot be read (", std::strerror(errno), ")");
    if (count + got > max_bytes) return fail(" has more than ", max_bytes, " bytes, the limit");
  }
  text.resize(count);
  return text;
}

std::string FileStampOf(const std::string& path) {
  struct stat found = {};
  if (path.empty() || stat(path.c_str(), &found) != 0) return "";
  return absl::StrCat(found.st_dev, " ", found.st_ino, " ", found.st_size, " ",
                      found.st_mtim.tv_sec, " ", found.st_mtim.tv_nsec, " ", found.st_ctim.tv_sec,
                      " ", found.st_ctim.tv_nsec);
}

void DropFromPageCache(const std::string& path) {
  const absl::StatusOr<int> file = OpenRegularFile(path, O_RDONLY | O_NOFOLLOW);
  if (!file.ok()) return;
  ::posix_fadvise(*file, 0, 0, POSIX_FADV_DONTNEED);
  ::close(*file);
}

}  // namespace hearth
