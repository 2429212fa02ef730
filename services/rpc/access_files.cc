#include "services/rpc/access_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace hearth {
namespace {

// A certificate's chain has some KiB, a table of 100,000 tenants 10 MiB.
constexpr uint64_t kMaxFlagFileBytes = uint64_t{16} << 20;

}  // namespace

bool StaysOnHost(const std::string& address) {
  for (const char* local : {"unix:", "unix-abstract:", "localhost:", "[::1]:"}) {
    if (absl::StartsWith(address, local)) return true;
  }
  // A name may begin with "127." too.
  return absl::StartsWith(address, "127.") &&
         address.find_first_not_of("0123456789.:") == std::string::npos;
}

absl::StatusOr<std::string> ReadBoundedFile(const std::string& path, uint64_t max_bytes,
                                            bool pipes_too) {
  const auto fail = [&path](const auto&... why) {
    return absl::NotFoundError(absl::StrCat(path, why...));
  };
  // Without O_NONBLOCK a FIFO would wait for its writer here.
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
    if (count == text.size()) text.resize(2 * count);  // it grows, or tells no size, as in /proc
    got = read(fd, text.data() + count, text.size() - count);
    if (got < 0) return fail(" cannot be read (", std::strerror(errno), ")");
    if (count + got > max_bytes) return fail(" has more than ", max_bytes, " bytes, the limit");
  }
  text.resize(count);
  return text;
}

absl::StatusOr<std::string> ReadFlagFile(const std::string& flag, const std::string& path,
                                         bool pipes_too) {
  absl::StatusOr<std::string> text = ReadBoundedFile(path, kMaxFlagFileBytes, pipes_too);
  if (!text.ok()) {
    return absl::Status(text.status().code(),
                        absl::StrCat("--", flag, ": ", text.status().message()));
  }
  if (text->empty()) return absl::NotFoundError(absl::StrCat("--", flag, ": ", path, " is empty"));
  return text;
}

}  // namespace hearth
