#include "worker/model/model_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace hearth {

absl::StatusOr<int> OpenModelFile(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not wait until a process opens it for writing.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be opened"));
  }
  struct stat info {};
  if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode)) return fd;
  close(fd);
  return absl::InvalidArgumentError(absl::StrCat(path, ": is not a regular file"));
}

bool ReadAt(int fd, uint64_t offset, size_t bytes, void* to) {
  while (bytes > 0) {
    const ssize_t now = pread(fd, to, bytes, static_cast<off_t>(offset));
    if (now < 0 && errno == EINTR) continue;
    if (now <= 0) return false;
    to = static_cast<char*>(to) + now;
    offset += static_cast<uint64_t>(now);
    bytes -= static_cast<size_t>(now);
  }
  return true;
}

absl::StatusOr<std::string> ReadModelFile(const std::string& path, size_t max_bytes) {
  const absl::StatusOr<int> fd = OpenModelFile(path);
  if (!fd.ok()) return fd.status();
  const absl::Cleanup close_file = [&fd] { close(*fd); };
  const auto too_large = [&] {
    return absl::ResourceExhaustedError(
        absl::StrCat(path, ": is larger than ", max_bytes, " bytes"));
  };
  struct stat info {};
  if (fstat(*fd, &info) != 0) return absl::ErrnoToStatus(errno, path);
  const auto size = static_cast<uint64_t>(info.st_size);
  if (size > max_bytes) return too_large();
  std::string text;
  text.reserve(size);  // reserve the exact size; growing the string would double the memory
  char piece[1 << 16];
  ssize_t bytes = 0;
  while ((bytes = read(*fd, piece, sizeof(piece))) > 0) {
    text.append(piece, static_cast<size_t>(bytes));
    if (text.size() > max_bytes) return too_large();
  }
  if (bytes < 0) return absl::ErrnoToStatus(errno, absl::StrCat(path, ": cannot be read"));
  return text;
}

void WriteCacheFile(const std::string& path, absl::string_view text) {
  std::error_code ignored;  // if this fails, open fails too
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  // The pid is not enough: processes in different containers may have the same pid.
  const std::string temporary = absl::StrCat(path, ".", getpid(), ".", absl::GetCurrentTimeNanos());
  // Mode 0644: users with a common cache folder read files that other users wrote.
  const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file < 0) return;
  const bool is_whole = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  close(file);
  if (!is_whole || std::rename(temporary.c_str(), path.c_str()) != 0) unlink(temporary.c_str());
}

}  // namespace hearth
